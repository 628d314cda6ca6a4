"""A client with a real engine, and functions to find its processes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from buddy.app.session.client import EngineClient
from buddy.compiler.protocol import Assigned, Compiled, ListPresets, Open, Presets, Progress, Run, StageDone
from buddy.compiler.protocol.recipe import Recipe
from tests.support.engine_processes import children, command, everything_below, gone

# Far more than anything takes: a loaded machine may be ten times as slow.
PATIENCE = 240.0


@asynccontextmanager
async def started() -> AsyncIterator[Bench]:
    """Starts an engine; at the end, closes it and checks that all its processes have ended."""
    client = EngineClient()
    await client.start()
    found = Bench(client)
    try:
        yield found
    finally:
        pids = [found.pid, *everything_below(found.pid)]
        await client.close()
        assert await gone(*pids)


class Bench:
    """A client with an engine, and the received frames."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self.seen: list[Any] = []

    async def until(self, wanted: Callable[[Any], bool]) -> Any:
        """Returns the next frame that `wanted` accepts."""

        async def look() -> Any:
            async for frame in self.client.frames():
                self.seen.append(frame)
                if wanted(frame):
                    return frame

        return await asyncio.wait_for(look(), PATIENCE)

    async def ask(self, frame: Any) -> Any:
        """Returns the frame that ends the request: its answer, or `Failed`."""
        self.client.send(frame)
        return await self.end_of(frame.request, isinstance(frame, Run))

    async def end_of(self, request: int, run: bool = False) -> Any:
        """Returns the frame that ends `request`; a run includes a compilation before its end."""
        interim = (Progress, StageDone, Assigned, *(Compiled,) * run)
        return await self.until(lambda f: getattr(f, "request", 0) == request and not isinstance(f, interim))

    async def open(self, source: Path | str, *arguments: str) -> Any:
        return await self.ask(Open(self.client.new_request_id(), str(source), arguments))

    async def presets(self) -> Presets:
        return await self.client.request(ListPresets(0))

    async def recipe(self, source: Path | str, *arguments: str) -> Recipe:
        preset = (await self.presets()).presets[0]
        return msgspec.structs.replace(preset.recipe, source=str(source), arguments=arguments)

    async def quiet(self) -> None:
        """Discards the received frames."""
        try:
            while True:
                await asyncio.wait_for(anext(self.client.frames()), 0.05)
        except asyncio.TimeoutError:
            self.seen.clear()

    async def state(self, worker: str, state: str) -> Any:
        return await self.until(lambda f: getattr(f, "worker", "") == worker and f.state == state)

    @property
    def pid(self) -> int:
        assert self.client.welcome is not None
        return self.client.welcome.pid

    def worker_pid(self, module: str) -> int:
        """Returns the process of `buddy.compiler.engine.<module>`."""
        (pid,) = (child for child in children(self.pid) if f"engine.{module}" in command(child))
        return pid

    async def runner_pid(self) -> int:
        """Returns the process forked to run compiled code, as soon as it exists."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := children(self.worker_pid("host")):
                return found[0]
            await asyncio.sleep(0.01)
        raise AssertionError("no runner")
