"""Detects an engine that does not answer, because it hangs or is stopped by a signal. No Textual."""

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
