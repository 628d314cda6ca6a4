"""The processes that try recipes for a search: their messages, and their clients on this machine and on a Dask cluster.

Workers of a cluster need this package and the same torch. A worker imports neither torch nor MLIR and runs no compiled
code, so a recipe cannot crash it. Each thread of a worker has a separate process, which it keeps for later requests.
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

from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Done, FailureReply, LoadProgram, LogText, Message, Reply
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

# ---- messages --------------------------------------------------------------------------------------------------------


class LoadForTuning(Message, frozen=True):
    """Load a program to try recipes on its graph number `graph`; answered by `Done` or `FailureReply`."""

    load: LoadProgram
    graph: int


class LoadBundle(Message, frozen=True):
    """Read a graph and its tensors from `folder`, which `write_bundle` wrote; answered by `Done` or `FailureReply`."""

    folder: str


class TryRecipe(Message, frozen=True):
    """Compile a recipe, run it and compare it with eager; answered by `RecipeTried`.

    The time limit is `timeout` seconds. `bound` is the best ratio to eager so far, infinity for the first recipe. Eager
    always uses `eager_threads` threads, so that the ratios of all recipes are comparable. A recipe whose results differ
    from eager's by more than `max_error` is not timed.
    """

    recipe: Recipe
    timeout: float
    bound: float
    eager_threads: int = 1
    max_error: float | None = None


class RecipeTried(Reply, frozen=True):
    """The median ratio of compiled to eager time in paired runs, and the median times of both in seconds.

    If the recipe failed, `problem` is the reason. `compile_seconds` is the time of its compilation. `error` is the
    greatest error of an output, relative to eager in float32; -1 unless the recipe has reduced precisions.
    """

    ratio: float = 0.0
    median: float = 0.0
    eager: float = 0.0
    compile_seconds: float = 0.0
    problem: str = ""
    error: float = -1.0


class CompareRecipes(Message, frozen=True):
    """Run two recipes interleaved; answered by `RecipesCompared`."""

    first: Recipe
    second: Recipe
    timeout: float


class RecipesCompared(Reply, frozen=True):
    """The ratio of the time of the first recipe to that of the second, with its 95 % confidence interval.

    If a recipe failed, `problem` is the reason.
    """

    ratio: float = 0.0
    low: float = 0.0
    high: float = 0.0
    problem: str = ""


class TimeNodes(Message, frozen=True):
    """Compile a recipe with counters and run it for about `seconds`; answered by `NodesTimed`."""

    recipe: Recipe
    timeout: float
    seconds: float = 1.0


class TimedProduct(msgspec.Struct, frozen=True):
    """The time of a node that multiplies, in seconds.

    `kind` is its op and shapes; `precision` is the precision that it computes in, such as "bf16".
    """

    node: str
    kind: str
    precision: str
    seconds: float


class NodesTimed(Reply, frozen=True):
    """The nodes that multiply float32, without those whose code is timed for another node.

    If the recipe failed, `problem` is the reason.
    """

    products: tuple[TimedProduct, ...] = ()
    problem: str = ""


class MeasuredError(msgspec.Struct, frozen=True, order=True):
    """The error of the outputs if `node` alone is computed in `precision`; -1 if it is not known."""

    node: str
    precision: str
    error: float = -1.0


class MeasureErrors(Message, frozen=True):
    """Compute the program in eager with one node at a time in a precision; answered by `ErrorsMeasured`.

    Measures for about `seconds`, in the order of `pairs`. Errors that were measured before, for the same program,
    weights and inputs, are read from the disk.
    """

    pairs: tuple[MeasuredError, ...]
    seconds: float


class ErrorsMeasured(Reply, frozen=True):
    """The errors that are known, among them `reused` from the disk; or the `problem`, if the program fails in eager."""

    errors: tuple[MeasuredError, ...] = ()
    reused: int = 0
    problem: str = ""


# The first message to a process that tries recipes, the later ones, and its answers.
LoadMessage = LoadForTuning | LoadBundle
TuningRequest = TryRecipe | CompareRecipes | TimeNodes | MeasureErrors
TuningMessage = Done | RecipeTried | RecipesCompared | NodesTimed | ErrorsMeasured | LogText | FailureReply
ANSWER_TYPES: dict[type[Message], Any] = {
    TryRecipe: RecipeTried, CompareRecipes: RecipesCompared, TimeNodes: NodesTimed, MeasureErrors: ErrorsMeasured,
}  # fmt: skip


# ---- clients ---------------------------------------------------------------------------------------------------------


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
        """Returns the answer to a request, of the type in `ANSWER_TYPES`."""
        reply = self._load_reply if isinstance(self._load_reply, FailureReply) else self._send_and_receive(request)
        if isinstance(reply, FailureReply):
            return ANSWER_TYPES[type(request)](problem=str(reply.diagnostic))
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
        return msgspec.msgpack.decode(answer, type=ANSWER_TYPES[type(request)])


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
