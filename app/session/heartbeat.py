"""Noticing an engine that is there and says nothing: one that a signal has stopped, or that hangs. No Textual."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

# An engine that has said nothing for so long is asked whether it is there; its loop is never busy for a tenth of that.
QUIET = 1.0
# When it is told that nothing came, and how often that is looked at: a slow link and a loaded machine answer by then.
SILENT = 4.0
LOOK = 0.5
# A start reads some hundred files, on a cold disk of a loaded machine.
SILENT_START = 20.0


class Pinged(Protocol):
    """What is listened to: when it was heard last, by `time.monotonic`, and whether it has greeted."""

    heard: float

    @property
    def greeted(self) -> bool: ...

    def ping(self) -> None: ...


class Heartbeat:
    """Listens to one engine at a time; `told` gets the seconds since it was heard, and 0 once it is heard again."""

    def __init__(self, told: Callable[[int], object]) -> None:
        self._told = told
        self._task: asyncio.Task[None] | None = None

    def start(self, client: Pinged) -> None:
        self.stop()
        self._task = asyncio.ensure_future(self._listen(client))

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _listen(self, client: Pinged) -> None:
        asked, silent, looked = 0.0, 0, time.monotonic()
        while True:
            await asyncio.sleep(LOOK)
            now = time.monotonic()
            if now - looked > 2 * QUIET:
                # It was this process that slept, or was stopped: what the engine has said is still to be read.
                client.heard = now
            looked = now
            quiet = now - client.heard
            if client.greeted and quiet > QUIET and asked <= client.heard:
                client.ping()
                asked = now
            # Time runs from the question: an engine that nobody has asked anything has nothing to say.
            late = now - max(asked, client.heard) > (SILENT if client.greeted else SILENT_START)
            before, silent = silent, int(quiet) if late else 0
            if silent != before:
                self._told(silent)
