"""The heartbeat of the connection to an engine: pings an idle engine, and reports one that does not answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

# A ping is sent after this many seconds without data. An engine that works answers within a tenth of that.
PING_SECONDS = 1.0
# An engine is reported as silent if it does not answer a ping for this many seconds. Engines behind slow connections
# and on loaded machines answer faster.
SILENCE_SECONDS = 4.0
# The limit for the first data of an engine, whose startup reads some hundred files, possibly from a cold disk.
START_SILENCE_SECONDS = 20.0
# How often the time since the last data is checked.
CHECK_SECONDS = 0.5


class HeartbeatTarget(Protocol):
    """The client of an engine that is monitored.

    `last_data_time` is when the engine last sent data, by `time.monotonic`. `handshake_done` says whether the engine
    has answered the greeting, so that it can be pinged.
    """

    last_data_time: float

    @property
    def handshake_done(self) -> bool: ...

    def ping(self) -> None:
        """Sends a ping, whose answer updates `last_data_time`."""


class Heartbeat:
    """Monitors one engine at a time.

    `on_silence` is called with the whole seconds since the last data of an engine that does not answer, whenever their
    number changes, and with 0 when it answers again.
    """

    def __init__(self, on_silence: Callable[[int], object]) -> None:
        self._on_silence = on_silence
        self._task: asyncio.Task[None] | None = None

    def start(self, client: HeartbeatTarget) -> None:
        """Monitors the engine of `client`, instead of the one monitored so far."""
        self.stop()
        self._task = asyncio.ensure_future(self._monitor(client))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _monitor(self, client: HeartbeatTarget) -> None:
        """Pings the engine when it is idle, and reports its silence, until the task is cancelled."""
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
                self._on_silence(silent_seconds)
