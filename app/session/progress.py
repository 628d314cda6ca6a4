"""Estimates the remaining time of a request, and detects an engine that does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

# A ping is sent after this many silent seconds. The engine's loop is never busy for a tenth of that.
QUIET = 1.0
# When silence is reported, and how often it is checked. Slow connections and loaded machines answer earlier.
SILENT = 4.0
LOOK = 0.5
# The limit at startup, which reads some hundred files, possibly from a cold disk.
SILENT_START = 20.0


class HeartbeatTarget(Protocol):
    """An engine: the time of its last data, by `time.monotonic`, and whether the handshake is complete."""

    last_data_time: float

    @property
    def greeted(self) -> bool: ...

    def ping(self) -> None: ...


class Heartbeat:
    """Monitors one engine at a time. `report` is called with the seconds of silence, and with 0 when it ends."""

    def __init__(self, report: Callable[[int], object]) -> None:
        self._report = report
        self._task: asyncio.Task[None] | None = None

    def start(self, client: HeartbeatTarget) -> None:
        self.stop()
        self._task = asyncio.ensure_future(self._monitor(client))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _monitor(self, client: HeartbeatTarget) -> None:
        asked, silent, looked = 0.0, 0, time.monotonic()
        while True:
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            if now - looked > 2 * QUIET:
                # This process was suspended: the engine's data has not been read yet.
                client.last_data_time = now
            looked = now
            quiet = now - client.last_data_time
            if client.greeted and quiet > QUIET and asked <= client.last_data_time:
                client.ping()
                asked = now
            # Silence counts from the ping, because an idle engine sends nothing.
            late = now - max(asked, client.last_data_time) > (SILENT if client.greeted else SILENT_START)
            before, silent = silent, int(quiet) if late else 0
            if silent != before:
                self._report(silent)


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
