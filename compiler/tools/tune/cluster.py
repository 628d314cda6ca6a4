"""Tries recipes on the workers of a Dask cluster, which need this package and the program's files at the same paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from buddy.compiler.protocol.worker_messages import LoadProgram
from buddy.compiler.support.cluster import (
    CONNECT_TIMEOUT,
    RETRIES,
    ClusterError,
    distributed,
    no_scheduler_error,
    no_workers_error,
)
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune.messages import CompareRecipes, LoadForTuning, RecipesCompared, RecipeTried, TryRecipe
from buddy.compiler.tools.tune.on_worker import answer_tune_request


class ClusterTuneWorker:
    """One thread of the cluster's workers."""

    def __init__(self, client: Any, begin: bytes) -> None:
        self._client, self._begin = client, begin

    async def ask(self, question: TryRecipe | CompareRecipes) -> Any:
        """Raises `ConnectionError` if the cluster has no worker left for it."""
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
    """A hand for each thread of the workers, which try recipes on graph number `graph` of the program of `load`.

    Raises `JobFailed` if there is no such cluster.
    """
    try:
        client = await _connected(address)
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


async def _connected(address: str) -> Any:
    package = distributed()
    try:
        return await package.Client(address, asynchronous=True, timeout=CONNECT_TIMEOUT)
    except (OSError, ValueError) as error:
        raise no_scheduler_error(address, error) from error
