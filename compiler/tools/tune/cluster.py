"""Tries recipes on the workers of a Dask cluster, which need this package and the same torch.

A worker imports neither torch nor MLIR and runs no compiled code, so a recipe cannot crash it. Each thread of a worker
has a separate process, which it keeps for later requests.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from buddy.compiler.protocol.worker_messages import LoadProgram, Refused, Trouble
from buddy.compiler.support.cluster import (
    CONNECT_TIMEOUT,
    RETRIES,
    ClusterError,
    distributed,
    no_scheduler_error,
    no_workers_error,
)
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune.messages import (
    Beginning,
    CompareRecipes,
    LoadForTuning,
    RecipesCompared,
    RecipeTried,
    TryRecipe,
    TuningMessage,
)

_mine = threading.local()


def answer_tune_request(begin: bytes, question: bytes) -> bytes:
    """The answer to a `TryRecipe` or `CompareRecipes` on the program of `begin`; all three are MessagePack."""
    asked = msgspec.msgpack.decode(question, type=TryRecipe | CompareRecipes)
    process = getattr(_mine, "process", None)
    if process is None or process.begin != begin or not process.alive:
        if process is not None:
            _mine.process = None
            process.close()
        process = _mine.process = RecipeTrier(begin)
    return msgspec.msgpack.encode(process.ask(asked))


class RecipeTrier:
    """A process that tries recipes on the program of `begin`, which is a `Beginning`.

    Raises `RuntimeError` if the process exits before it has loaded the program, and in `ask` if it exits without an
    answer.
    """

    def __init__(self, begin: bytes) -> None:
        self.begin = begin
        # Its stderr is the log of the cluster's worker.
        self._worker = BlockingWorker("buddy.compiler.tools.tune.worker:serve", TuningMessage, log=2)
        atexit.register(self.close)
        try:
            self._refused = self._check_answer(msgspec.msgpack.decode(begin, type=Beginning))
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._worker.alive

    @property
    def refusal(self) -> str:
        """The reason why the process cannot load the program, "" if it has loaded it."""
        return str(self._refused.diagnostic) if isinstance(self._refused, Refused) else ""

    def ask(self, question: TryRecipe | CompareRecipes) -> Any:
        found = self._refused if isinstance(self._refused, Refused) else self._check_answer(question)
        if isinstance(found, Refused):
            kind = RecipeTried if isinstance(question, TryRecipe) else RecipesCompared
            return kind(problem=str(found.diagnostic))
        return found

    def _check_answer(self, message: Any) -> Any:
        found = None
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(message)
            while isinstance(found := self._worker.receive(), Trouble):
                continue
        if found is None:
            raise RuntimeError(f"the process that tries recipes exited with {self._worker.wait()}")
        return found

    def close(self) -> None:
        atexit.unregister(self.close)
        self._worker.end()


class ClusterTuneWorker:
    """A `TuneWorker` for one thread of the cluster's workers."""

    def __init__(self, client: Any, begin: bytes) -> None:
        self._client, self._begin = client, begin

    async def ask(self, question: TryRecipe | CompareRecipes) -> Any:
        """Returns the answer. Raises `ConnectionError` if the cluster has no worker left."""
        kind: Any = RecipeTried if isinstance(question, TryRecipe) else RecipesCompared
        data = msgspec.msgpack.encode(question)
        future = self._client.submit(answer_tune_request, self._begin, data, pure=False, retries=RETRIES)
        try:
            found = await future.result()
        except asyncio.CancelledError:
            await future.cancel()
            raise
        except Exception as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        return msgspec.msgpack.decode(found, type=kind)


@asynccontextmanager
async def cluster_tune_workers(address: str, load: LoadProgram, graph: int) -> AsyncIterator[list[ClusterTuneWorker]]:
    """A `TuneWorker` for each thread of the cluster, for graph number `graph` of the program of `load`.

    Raises `JobFailed` if there is no such cluster.
    """
    try:
        client = await _connect(address)
    except ClusterError as error:
        raise JobFailed(error.diagnostic) from error
    async with client:
        try:
            await client.wait_for_workers(1, timeout=CONNECT_TIMEOUT)
        except TimeoutError as error:
            raise JobFailed(no_workers_error(address).diagnostic) from error
        threads = await client.nthreads()
        begin = msgspec.msgpack.encode(LoadForTuning(load, graph))
        yield [ClusterTuneWorker(client, begin) for _ in range(sum(threads.values()))]


async def _connect(address: str) -> Any:
    package = distributed()
    try:
        return await package.Client(address, asynchronous=True, timeout=CONNECT_TIMEOUT)
    except (OSError, ValueError) as error:
        raise no_scheduler_error(address, error) from error
