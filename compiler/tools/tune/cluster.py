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

from buddy.compiler.protocol.worker_messages import FailureReply, LoadProgram, LogText
from buddy.compiler.support.cluster import (
    CONNECT_TIMEOUT,
    RETRIES,
    ClusterError,
    import_distributed,
    no_scheduler_error,
    no_workers_error,
)
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune.messages import (
    ANSWERS,
    LoadForTuning,
    LoadMessage,
    TuningMessage,
    TuningRequest,
)

# For each thread of a cluster's worker: the `process` that answers its requests, a `RecipeTrier`.
_thread_data = threading.local()


def answer_tune_request(load_message: bytes, request: bytes) -> bytes:
    """Answers `request`, a `TuningRequest`, on the program of `load_message`, a `LoadMessage`.

    Both messages and the answer are MessagePack. Runs in a thread of a cluster's worker, which keeps the process.
    """
    decoded = msgspec.msgpack.decode(request, type=TuningRequest)
    process = getattr(_thread_data, "process", None)
    if process is None or process.load_message != load_message or not process.alive:
        if process is not None:
            _thread_data.process = None
            process.close()
        process = _thread_data.process = RecipeTrier(load_message)
    return msgspec.msgpack.encode(process.ask(decoded))


class RecipeTrier:
    """A process that tries recipes on the program of `load_message`, a `LoadMessage` as MessagePack.

    The constructor and `ask` raise `RuntimeError` if the process exits without an answer.
    """

    def __init__(self, load_message: bytes) -> None:
        self.load_message = load_message
        # Its stderr is the log of the cluster's worker.
        self._worker = BlockingWorker("buddy.compiler.tools.tune.worker:serve", TuningMessage, log=2)
        atexit.register(self.close)
        try:
            self._load_reply = self._send_and_receive(msgspec.msgpack.decode(load_message, type=LoadMessage))
        except BaseException:
            self.close()
            raise

    @property
    def alive(self) -> bool:
        return self._worker.alive

    @property
    def load_problem(self) -> str:
        """The reason why the process could not load the program, "" if it has loaded it."""
        return str(self._load_reply.diagnostic) if isinstance(self._load_reply, FailureReply) else ""

    def ask(self, request: TuningRequest) -> Any:
        """Returns the answer to a request, of the type in `ANSWERS`."""
        reply = self._load_reply if isinstance(self._load_reply, FailureReply) else self._send_and_receive(request)
        if isinstance(reply, FailureReply):
            return ANSWERS[type(request)](problem=str(reply.diagnostic))
        return reply

    def _send_and_receive(self, message: Any) -> Any:
        """Sends a message and returns the reply. Raises `RuntimeError` if the process exits."""
        reply = None
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(message)
            while isinstance(reply := self._worker.receive(), LogText):
                continue
        if reply is None:
            raise RuntimeError(f"the process that tries recipes exited with {self._worker.wait()}")
        return reply

    def close(self) -> None:
        """Ends the process."""
        atexit.unregister(self.close)
        self._worker.end()


class ClusterTuneWorker:
    """A `TuneWorker` for one thread of the cluster's workers."""

    def __init__(self, client: Any, load_message: bytes) -> None:
        self._client, self._load_message = client, load_message

    async def ask(self, request: TuningRequest) -> Any:
        """Returns the answer. Raises `ConnectionError` if the cluster has no worker left."""
        data = msgspec.msgpack.encode(request)
        future = self._client.submit(answer_tune_request, self._load_message, data, pure=False, retries=RETRIES)
        try:
            answer = await future.result()
        except asyncio.CancelledError:
            await future.cancel()
            raise
        except Exception as error:
            raise ConnectionError(f"{type(error).__name__}: {error}") from error
        return msgspec.msgpack.decode(answer, type=ANSWERS[type(request)])


@asynccontextmanager
async def cluster_tune_workers(address: str, load: LoadProgram, graph: int) -> AsyncIterator[list[ClusterTuneWorker]]:
    """Yields a `TuneWorker` for each thread of the cluster, for graph number `graph` of the program of `load`.

    Raises `JobFailed` if the cluster at `address` cannot be reached or has no workers.
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
        load_message = msgspec.msgpack.encode(LoadForTuning(load, graph))
        yield [ClusterTuneWorker(client, load_message) for _ in range(sum(threads.values()))]


async def _connect(address: str) -> Any:
    package = import_distributed()
    try:
        return await package.Client(address, asynchronous=True, timeout=CONNECT_TIMEOUT)
    except (OSError, ValueError) as error:
        raise no_scheduler_error(address, error) from error
