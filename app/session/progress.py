"""Estimates the remaining time of a request, and detects the end of long jobs. No Textual."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
# The elapsed or remaining seconds from which a time is shown.
_LONG = 10.0
# The minimum time and progress for an estimate.
_LEAST_SECONDS, _LEAST_SHARE = 2.0, 0.02


class ProgressRate:
    """The pace of a request: estimates the remaining seconds from its progress."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._request = 0
        self._start_time, self._start_done = 0.0, 0.0
        self._last_time, self._done = 0.0, -1.0

    def note(self, request: int, done: float) -> None:
        """Record that request number `request` is `done` (0..1; negative if unknown)."""
        now = self._clock()
        if request != self._request or done < self._done:
            self._request, self._start_time, self._start_done = request, now, max(done, 0.0)
        self._last_time, self._done = now, done

    def seconds_since_progress(self) -> float:
        """The seconds since the last progress."""
        return self._clock() - self._last_time

    def seconds_left(self) -> float | None:
        """The estimated remaining seconds, `None` if there is too little progress for an estimate."""
        spent, share = self._last_time - self._start_time, self._done - self._start_done
        if self._done < 0 or spent < _LEAST_SECONDS or share < _LEAST_SHARE:
            return None
        return max(0.0, spent * (1.0 - self._done) / share - (self._clock() - self._last_time))


class LongRequests:
    """Detects the end of a long busy period."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def ended(self, busy: bool, least: float) -> bool:
        """Whether a busy period of at least `least` seconds has just ended; always false if `least` is 0."""
        since, now = self._since, self._clock()
        if busy:
            self._since = now if since is None else since
            return False
        self._since = None
        return since is not None and least > 0 and now - since >= least


def elapsed_text(seconds: float) -> str:
    """`for 12 s`; empty if there was progress recently."""
    if seconds < _LONG:
        return ""
    return f"for {seconds:.0f} s" if seconds < 100 else f"for {seconds / 60:.0f} min"


def remaining_text(seconds: float | None) -> str:
    """`about 40 s left`; empty if unknown or short."""
    if seconds is None or seconds < 1:
        return ""
    if seconds < 100:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left"
