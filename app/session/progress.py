"""How long what is under way may still take, and when something long has ended. No Textual."""

from __future__ import annotations

import time
from collections.abc import Callable

Clock = Callable[[], float]
# From how many seconds on it is told that something takes long.
_LONG = 10.0
# Before this much time and progress, going on as until now says nothing.
_LEAST_SECONDS, _LEAST_SHARE = 2.0, 0.02


class Pace:
    """How fast a request gets on: told of its progress, says how many seconds are left."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._request = 0
        self._began, self._from = 0.0, 0.0
        self._at, self._done = 0.0, -1.0

    def note(self, request: int, done: float) -> None:
        """Request number `request` is `done` (0..1, less where that is not known)."""
        now = self._clock()
        if request != self._request or done < self._done:
            self._request, self._began, self._from = request, now, max(done, 0.0)
        self._at, self._done = now, done

    def at_it(self) -> float:
        """The seconds since anything was told."""
        return self._clock() - self._at

    def left(self) -> float | None:
        """The seconds left as it has gone until now, `None` while that is no base."""
        spent, share = self._at - self._began, self._done - self._from
        if self._done < 0 or spent < _LEAST_SECONDS or share < _LEAST_SHARE:
            return None
        return max(0.0, spent * (1.0 - self._done) / share - (self._clock() - self._at))


class LongJobs:
    """Notices the end of what kept the workbench busy for long."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._since: float | None = None

    def ended(self, busy: bool, least: float) -> bool:
        """Whether the workbench, being `busy` or no longer, has just been so for `least` seconds; never where 0."""
        since, now = self._since, self._clock()
        if busy:
            self._since = now if since is None else since
            return False
        self._since = None
        return since is not None and least > 0 and now - since >= least


def told_since(seconds: float) -> str:
    """`for 12 s`, "" where something has been told only just now."""
    if seconds < _LONG:
        return ""
    return f"for {seconds:.0f} s" if seconds < 100 else f"for {seconds / 60:.0f} min"


def told_left(seconds: float | None) -> str:
    """`about 40 s left`, "" where that is not known or does not matter."""
    if seconds is None or seconds < 1:
        return ""
    if seconds < 100:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left"
