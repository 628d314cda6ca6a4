"""An engine, started like the workbench's, with timed answers."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeVar

from buddy.app.session.client import EngineClient, EngineError, RequestFailed
from buddy.compiler.protocol import Captured, Compile, Compiled, Failed, GraphInfo, Open, Ran, Run, WorkerState
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe

Answer = tuple[float, Any]
Found = TypeVar("Found")
BERT = str(Path(__file__).resolve().parents[2] / "samples" / "bert.py")


class TimedEngine:
    """Sends requests to an engine; answers are frames with the seconds since the request."""

    def __init__(self, client: EngineClient) -> None:
        self.client = client
        self._ready_workers: set[str] = set()

    async def open_bert(self, tiny: bool) -> tuple[float, GraphInfo, Recipe]:
        """Seconds until samples/bert.py is captured, its graph, and the default recipe for it.

        Returns when the compiler, which the engine starts to open a program, is ready too.
        """
        arguments = ("--tiny",) if tiny else ()
        opening = self.follow(Open(self.client.new_request_id(), BERT, arguments), Captured)
        seconds, captured = [answer async for answer in opening][-1]
        await self.wait_for_worker("compiler")
        return seconds, captured.graphs[0], default_recipe(BERT, arguments)

    async def run(self, recipe: Recipe, repeats: int) -> list[Answer]:
        return [answer async for answer in self.follow(Run(self.client.new_request_id(), recipe, repeats, 600.0), Ran)]

    def compile(self, recipe: Recipe) -> AsyncIterator[Answer]:
        return self.follow(Compile(self.client.new_request_id(), recipe), Compiled)

    async def wait_for_worker(self, name: str) -> None:
        """Waits until the engine has said that a worker is ready."""
        while name not in self._ready_workers:
            await anext(self._frames())

    async def _frames(self) -> AsyncIterator[Any]:
        """Yields the frames of the engine, and notes which workers are ready."""
        async for frame in self.client.frames():
            if isinstance(frame, WorkerState) and frame.state == "ready":
                self._ready_workers.add(frame.worker)
            yield frame

    async def follow(self, request: Any, last: type) -> AsyncIterator[Answer]:
        """Yields every answer to `request`, up to a frame of type `last`.

        Raises `RequestFailed`.
        """
        start = time.perf_counter()
        self.client.send(request)
        async for frame in self._frames():
            if getattr(frame, "request", 0) != request.request:
                continue
            if isinstance(frame, Failed):
                raise RequestFailed(frame)
            yield time.perf_counter() - start, frame
            if isinstance(frame, last):
                return


@contextmanager
def empty_object_cache() -> Iterator[None]:
    """Engines started inside have an empty object cache at first."""
    before = os.environ.get("BUDDY_CACHE", "")
    with tempfile.TemporaryDirectory() as folder:
        os.environ["BUDDY_CACHE"] = folder
        try:
            yield
        finally:
            os.environ["BUDDY_CACHE"] = before


def run(conversation: Coroutine[Any, Any, Found]) -> Found:
    """Runs a conversation with engines; a failure exits the process with a message."""
    try:
        return asyncio.run(conversation)
    except (EngineError, RequestFailed) as error:
        sys.exit(f"error: {error}")


@asynccontextmanager
async def warm_engine() -> AsyncIterator[TimedEngine]:
    """Starts an engine with a warm host and no program, which is closed after the block."""
    client = EngineClient()
    await client.start()
    try:
        engine = TimedEngine(client)
        await engine.wait_for_worker("host")
        yield engine
    finally:
        await client.close()
