"""Recipes tried by the workers of a Dask cluster, which need this package and the program's files at the same paths."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from buddy.compiler.engine.jobs import JobFailed
from buddy.compiler.engine.messages import Load
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.tuning.messages import Attempt, AttemptDone, Begin, Duel, DuelDone
from buddy.compiler.tuning.on_worker import answer

_START = 10.0
# A question whose worker is lost goes to another one; so many are lost before the question itself is to blame.
_RETRIES = 3


class ClusterHand:
    """One of the cluster's places."""

    def __init__(self, client: Any, begin: bytes) -> None:
        self._client, self._begin = client, begin

    async def ask(self, question: Attempt | Duel) -> Any:
        """Raises `ConnectionError` when the cluster has no worker left that could answer."""
        kind: Any = AttemptDone if isinstance(question, Attempt) else DuelDone
        data = msgspec.msgpack.encode(question)
        future = self._client.submit(answer, self._begin, data, pure=False, retries=_RETRIES)
        try:
            found = await future.result()
        except asyncio.CancelledError:
            await future.cancel()
            raise
        except Exception as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        return msgspec.msgpack.decode(found, type=kind)


@asynccontextmanager
async def cluster_hands(address: str, load: Load, graph: int) -> AsyncIterator[list[ClusterHand]]:
    """A hand for each thread of the workers, which try recipes on graph number `graph` of what `load` loads.

    Raises `JobFailed` where there is no such cluster.
    """
    try:
        from distributed import Client
    except ImportError as error:
        what = "a Dask cluster needs the package distributed"
        raise JobFailed(Diagnostic(what, todo='pip install "buddy-tui[cluster]"')) from error
    try:
        client = await Client(address, asynchronous=True, timeout=_START)
    except (OSError, ValueError) as error:
        todo = "start one with `dask scheduler` and `dask worker ADDRESS`"
        raise JobFailed(Diagnostic(f"no Dask scheduler answers at {address}", str(error), todo)) from error
    async with client:
        threads = await client.nthreads()
        if not threads:
            todo = f"start one with `dask worker {address}`"
            raise JobFailed(Diagnostic(f"the cluster at {address} has no workers", todo=todo))
        begin = msgspec.msgpack.encode(Begin(load, graph))
        yield [ClusterHand(client, begin) for _ in range(sum(threads.values()))]
