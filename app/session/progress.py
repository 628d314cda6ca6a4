"""Estimates the remaining time of a request, and detects the end of long jobs and engines that do not answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol

from buddy.compiler.protocol import Part

if TYPE_CHECKING:
    import asyncio

# A ping is sent after this many seconds without data. The engine's loop is never busy for a tenth of that.
PING_SECONDS = 1.0
# An engine is silent if it does not answer a ping for this long. Slow connections and loaded machines are faster.
SILENCE_SECONDS = 4.0
# The limit for the first data of an engine, whose startup reads some hundred files, possibly from a cold disk.
START_SILENCE_SECONDS = 20.0
CHECK_SECONDS = 0.5


class HeartbeatTarget(Protocol):
    """An engine: the time of its last data, by `time.monotonic`, and whether the handshake is complete."""

    last_data_time: float

    @property
    def handshake_done(self) -> bool: ...

    def ping(self) -> None: ...


class Heartbeat:
    """Monitors one engine at a time. `report` is called with the seconds of its silence, and with 0 after it."""

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report = report
        self._task: asyncio.Task[None] | None = None

    def start(self, client: HeartbeatTarget) -> None:
        import asyncio  # headless verbs import this module to format times

        self.stop()
        self._task = asyncio.ensure_future(self._monitor(client))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _monitor(self, client: HeartbeatTarget) -> None:
        import asyncio

        ping_time, reported_seconds, last_check = 0.0, 0, time.monotonic()
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            now = time.monotonic()
            if now - last_check > 2 * PING_SECONDS:
                # This process was suspended: the engine's data has not been read yet.
                client.last_data_time = now
            last_check = now
            seconds_without_data = now - client.last_data_time
            if client.handshake_done and seconds_without_data > PING_SECONDS and ping_time <= client.last_data_time:
                client.ping()
                ping_time = now
            limit = SILENCE_SECONDS if client.handshake_done else START_SILENCE_SECONDS
            # Silence counts from the ping, because an idle engine sends nothing.
            is_silent = now - max(ping_time, client.last_data_time) > limit
            silent_seconds = int(seconds_without_data) if is_silent else 0
            if silent_seconds != reported_seconds:
                reported_seconds = silent_seconds
                self._report(silent_seconds)


Clock = Callable[[], float]
# An elapsed time is shown from this many seconds.
MIN_SHOWN_SECONDS = 10.0
# The minimum time and progress for an estimate.
_MIN_ESTIMATE_SECONDS, _MIN_ESTIMATE_SHARE = 2.0, 0.02


class ProgressRate:
    """The pace of a request: estimates the remaining seconds from its progress."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._request = 0
        self._start_time, self._start_done = 0.0, 0.0
        self._last_time, self._done = 0.0, -1.0

    def record(self, request: int, done: float) -> None:
        """Record that the share `done` of request number `request` is done: 0 to 1, or negative if unknown."""
        now = self._clock()
        if request != self._request or done < self._done:
            self._request, self._start_time, self._start_done = request, now, max(done, 0.0)
        self._last_time, self._done = now, done

    def seconds_since_progress(self) -> float:
        """The seconds since the last progress."""
        return self._clock() - self._last_time

    def seconds_left(self) -> float | None:
        """The estimated remaining seconds, `None` if there is too little progress for an estimate."""
        seconds, share = self._last_time - self._start_time, self._done - self._start_done
        if self._done < 0 or seconds < _MIN_ESTIMATE_SECONDS or share < _MIN_ESTIMATE_SHARE:
            return None
        return max(0.0, seconds * (1.0 - self._done) / share - (self._clock() - self._last_time))


# The number of parts until a program is opened and compiled.
OPENING_PARTS = 4
# The parts of opening, compiling and running a program, in order, as they are shown.
PART_NAMES: dict[Part, str] = {
    "torch": "importing torch",
    "script": "running the script",
    "capture": "capturing",
    "compile": "compiling",
    "run": "running",
}


class PartTimes:
    """Measures the parts of the jobs on a program. `part` is the one that runs, "" without one."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._seconds: dict[Part, float] = {}
        self._start_time = 0.0
        self.part: Part | Literal[""] = ""

    def record(self, part: Part | Literal[""]) -> None:
        """Record the part of a progress. If a part starts again from the first one on, the times start again."""
        if part in ("", self.part):
            return
        self.stop()
        if part == "torch" or (part == "script" and "torch" not in self._seconds):
            self._seconds.clear()
        self.part, self._start_time = part, self._clock()

    def stop(self) -> None:
        """Record that no part runs."""
        if self.part:
            self._seconds[self.part] = self.seconds(self.part)
        self.part = ""

    @property
    def step(self) -> int:
        """The number of the part that runs, from 1, while a program is opened and then compiled; otherwise 0."""
        order = list(PART_NAMES)
        opens = bool(self._seconds.keys() & {"torch", "script"}) or self.part in ("torch", "script")
        return order.index(self.part) + 1 if self.part and self.part != "run" and opens else 0

    def seconds(self, part: Part) -> float:
        """The seconds that a part has taken so far; 0 if it has not started."""
        running = self._clock() - self._start_time if part == self.part else 0.0
        return self._seconds.get(part, 0.0) + running


class LongJobs:
    """Detects the end of a long busy period."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        self._busy_since: float | None = None

    def has_ended(self, busy: bool, min_seconds: float) -> bool:
        """Record whether the workbench is busy. Returns whether a busy period of at least `min_seconds` has just ended.

        If `min_seconds` is 0, it always returns false.
        """
        busy_since, now = self._busy_since, self._clock()
        if busy:
            self._busy_since = now if busy_since is None else busy_since
            return False
        self._busy_since = None
        return busy_since is not None and min_seconds > 0 and now - busy_since >= min_seconds


def elapsed_text(seconds: float) -> str:
    """The elapsed time as `for 12 s`; empty if it is short."""
    if seconds < MIN_SHOWN_SECONDS:
        return ""
    return f"for {seconds:.0f} s" if seconds < 100 else f"for {seconds / 60:.0f} min"


def remaining_text(seconds: float | None) -> str:
    """The remaining time as `about 40 s left`; empty if it is unknown or below one second."""
    if seconds is None or seconds < 1:
        return ""
    if seconds < 100:
        return f"about {seconds:.0f} s left"
    return f"about {seconds / 60:.0f} min left"
