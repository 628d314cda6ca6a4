"""Decides when the host worker starts, whose import of torch takes seconds on all cores."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager

# The delay of the host's start, in seconds, in which the client may connect and ask to open a program.
_START_SECONDS = 0.3


class HostStart:
    """Starts the host, at once or after a delay.

    The start waits while the client draws a program of an earlier session. The compiler worker starts with the first
    request that needs it or that opens a new program: the results of an earlier session need no compiler.
    """

    def __init__(self, start_host: Callable[[], None]) -> None:
        self._start_host = start_host
        self._timer: asyncio.TimerHandle | None = None
        self._may_start = asyncio.Event()
        self._may_start.set()

    def schedule(self) -> None:
        """Starts the host after `_START_SECONDS`, so that it is ready when the client needs it."""
        self._timer = asyncio.get_running_loop().call_later(_START_SECONDS, self.start_now)

    def start_now(self) -> None:
        """Starts the host, unless it runs."""
        self._stop_timer()
        self._start_host()

    @contextmanager
    def postponed(self) -> Iterator[None]:
        """Cancels a scheduled start; while active, `wait_until_allowed` waits."""
        self._stop_timer()
        self._may_start.clear()
        try:
            yield
        finally:
            self._may_start.set()

    async def wait_until_allowed(self) -> None:
        """Waits until no `postponed` block is active."""
        await self._may_start.wait()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
