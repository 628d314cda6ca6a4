"""The progress of jobs: estimates the remaining time, times the parts of opening a program, and formats both."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from buddy.compiler.protocol import Part

Clock = Callable[[], float]
# An elapsed time is shown from this many seconds.
MIN_SHOWN_SECONDS = 10.0
# The remaining time is estimated after at least this many seconds and this share of the work: earlier estimates jump.
_MIN_ESTIMATE_SECONDS, _MIN_ESTIMATE_SHARE = 2.0, 0.02


class RemainingTimeEstimate:
    """Estimates the remaining seconds of a request from its progress so far."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._request = 0
        # When the request, or its current part, was seen first, and how much of it was done then.
        self._start_time, self._start_share = 0.0, 0.0
        # The time of the last call of `record`, and the share of the request that was done then.
        self._update_time, self._share, self._is_share_known = 0.0, 0.0, False

    def record(self, request: int, done: float) -> None:
        """Records that the share `done` of request number `request` is done: 0 to 1, or negative if unknown."""
        now = self._clock()
        is_same_request = request == self._request
        self._is_share_known = done >= 0
        previous_share = self._share if is_same_request else 0.0
        share = done if self._is_share_known else previous_share
        # A share that decreases belongs to another part of the work.
        if not is_same_request or share < self._share:
            self._request, self._start_time, self._start_share = request, now, share
        self._update_time, self._share = now, share

    def seconds_since_update(self) -> float:
        """Returns the seconds since the last call of `record`."""
        return self._clock() - self._update_time

    def seconds_left(self) -> float | None:
        """Estimates the remaining seconds. Returns `None` if there is too little progress for an estimate."""
        seconds, share = self._update_time - self._start_time, self._share - self._start_share
        if not self._is_share_known or seconds < _MIN_ESTIMATE_SECONDS or share < _MIN_ESTIMATE_SHARE:
            return None
        return max(0.0, seconds * (1.0 - self._share) / share - self.seconds_since_update())


# The descriptions of the parts of opening, compiling and running a program, in order.
PART_DESCRIPTIONS: dict[Part, str] = {
    "torch": "importing torch",
    "script": "running the script",
    "capture": "capturing",
    "compile": "compiling",
    "run": "running",
}
# The number of parts until a program has been opened and compiled: all except the run.
N_PARTS_BEFORE_RUN = len(PART_DESCRIPTIONS) - 1


class PartTimes:
    """Measures how long the parts of opening, compiling and running a program take.

    `running_part` is the part that is running, or "" if none is.
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[Part, float] = {}
        self._start_time = 0.0
        self.running_part: Part | Literal[""] = ""

    def record(self, part: Part | Literal[""]) -> None:
        """Records that `part` is running, as a `Progress` frame says. An empty `part` changes nothing.

        When the program is opened again, the earlier times are dropped: opening starts with "torch", or with "script"
        if torch was imported before.
        """
        if part in ("", self.running_part):
            return
        self.stop()
        if part == "torch" or (part == "script" and "torch" not in self._seconds):
            self._seconds.clear()
        self.running_part, self._start_time = part, self._clock()

    def stop(self) -> None:
        """Records that no part is running."""
        if self.running_part:
            self._seconds[self.running_part] = self.seconds(self.running_part)
        self.running_part = ""

    @property
    def part_number(self) -> int:
        """The number (from 1) of the running part while a program is opened and compiled for the first time; else 0.

        It is 0 for a run, and for a later compilation, whose times are recorded by a new object.
        """
        was_opened = not {"torch", "script"}.isdisjoint((*self._seconds, self.running_part))
        if not self.running_part or self.running_part == "run" or not was_opened:
            return 0
        return list(PART_DESCRIPTIONS).index(self.running_part) + 1

    def seconds(self, part: Part) -> float:
        """Returns the seconds that a part has taken so far; 0 if it has not started."""
        current = self._clock() - self._start_time if part == self.running_part else 0.0
        return self._seconds.get(part, 0.0) + current


class BusyPeriod:
    """Measures how long the workbench is busy without a break, to report the end of long jobs."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._busy_since: float | None = None

    def update(self, is_busy: bool, min_seconds: float) -> bool:
        """Records whether the workbench is busy. Returns whether this ends a busy period of at least `min_seconds`.

        If `min_seconds` is 0, it always returns false.
        """
        busy_since, now = self._busy_since, self._clock()
        if is_busy:
            self._busy_since = now if busy_since is None else busy_since
            return False
        self._busy_since = None
        return busy_since is not None and min_seconds > 0 and now - busy_since >= min_seconds


def elapsed_text(seconds: float) -> str:
    """Formats an elapsed time as `for 12 s`; empty below `MIN_SHOWN_SECONDS`."""
    if seconds < MIN_SHOWN_SECONDS:
        return ""
    return f"for {seconds:.0f} s" if seconds < 100 else f"for {seconds / 60:.0f} min"


def remaining_text(seconds: float | None) -> str:
    """Formats a remaining time as `about 40 s left`; empty if it is `None` or below one second."""
    if seconds is None or seconds < 1:
        return ""
    if seconds < 100:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left"
