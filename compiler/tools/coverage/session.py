"""Checks the pairs of a plan by a process on this machine or on a cluster, and reads files of earlier results."""

from __future__ import annotations

import atexit
import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.support import files
from buddy.compiler.support.cluster import map_on_cluster
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit
from buddy.compiler.tools.coverage.plan import (
    CheckPair,
    CoverageListing,
    CoveragePlan,
    ListPairs,
    OpDtypePair,
    PairChecked,
    PairResult,
    PairsListed,
    select_shard,
)


class CoverageError(BuddyError):
    """The warm process could not start, or exited; the text is its last output."""


def read_results(path: Path, backward: bool = False) -> dict[OpDtypePair, PairResult]:
    """Returns the results in a file of JSON lines: those of runs with gradients if `backward`, else those without.

    If a pair has several results, returns the last one. Raises `OSError`.
    """
    return {result.pair: result for result in files.read_json_lines(path, PairResult) if result.backward == backward}


def run(
    plan: CoveragePlan,
    known: dict[OpDtypePair, PairResult],
    repeated_outcomes: Sequence[str],
    on_result: Callable[[int, int, PairResult], None],
    cluster: str = "",
) -> CoverageListing:
    """Checks the pairs of `plan` that are not in `known`, or whose known outcome is in `repeated_outcomes`.

    Checks them on this machine, or on the Dask cluster at the address `cluster`. Calls `on_result` for each result with
    the number of finished pairs, the number of pairs to check, and the result. Returns all pairs of the plan's shard,
    and Core ATen. Raises `CoverageError` and `ClusterError`.
    """
    with tempfile.TemporaryDirectory(prefix="buddy-coverage-") as cache, _WarmProcess(plan, cache) as process:
        listing = process.list_pairs()
        shard_pairs = select_shard(listing.pairs, plan.shard)
        pairs_to_check = [pair for pair in shard_pairs if pair not in known or known[pair].outcome in repeated_outcomes]
        results = _check_on_cluster(plan, cluster, pairs_to_check) if cluster else map(process.check, pairs_to_check)
        for number, result in enumerate(results, 1):
            on_result(number, len(pairs_to_check), result)
    return CoverageListing(shard_pairs, listing.core, listing.versions)


def _check_on_cluster(plan: CoveragePlan, address: str, pairs: Sequence[OpDtypePair]) -> Iterator[PairResult]:
    """Yields the results in the order in which they arrive."""
    encode = msgspec.json.encode
    jobs = [(encode(plan), encode(pair)) for pair in pairs]
    for _, result in map_on_cluster(address, check_pair, jobs):
        yield msgspec.json.decode(result, type=PairResult)


# For each thread of a cluster's worker: `plan`, as JSON, the warm `process` for it, and the `stack` that ends this.
_thread_data = threading.local()


def check_pair(job: tuple[bytes, bytes]) -> bytes:
    """Checks a pair on a worker of a cluster; each thread of the worker keeps a warm process.

    `job` are the plan and the pair as JSON; returns the `PairResult` as JSON.
    """
    plan, pair = job
    if getattr(_thread_data, "plan", None) != plan:
        if getattr(_thread_data, "stack", None) is not None:
            _thread_data.stack.close()
        _thread_data.stack, _thread_data.plan = contextlib.ExitStack(), plan
        atexit.register(_thread_data.stack.close)
        cache = _thread_data.stack.enter_context(tempfile.TemporaryDirectory(prefix="buddy-coverage-"))
        _thread_data.process = _thread_data.stack.enter_context(
            _WarmProcess(msgspec.json.decode(plan, type=CoveragePlan), cache)
        )
        _thread_data.process.list_pairs()
    try:
        return msgspec.json.encode(_thread_data.process.check(msgspec.json.decode(pair, type=OpDtypePair)))
    except CoverageError:
        _thread_data.plan = None  # the next pair gets a new process
        raise


class _WarmProcess:
    """The process that runs `server.serve`: it has torch and MLIR loaded, and forks a worker for the checks.

    It has a separate cache, because cached artifacts must not affect the measurement.
    """

    def __init__(self, plan: CoveragePlan, cache: str) -> None:
        self._log = Path(cache, "server.log")
        with self._log.open("w") as log:
            self._worker = BlockingWorker(
                "buddy.compiler.tools.coverage.server:serve", PairsListed | PairChecked, log,
                {"BUDDY_CACHE": cache, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self._plan = plan

    def __enter__(self) -> _WarmProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.end(timeout=10)

    def list_pairs(self) -> CoverageListing:
        """Sends the plan and returns its pairs before sharding; this must be the first request."""
        return cast(CoverageListing, self._ask(ListPairs(self._plan)).listing)

    def check(self, pair: OpDtypePair) -> PairResult:
        return cast(PairResult, self._ask(CheckPair(pair)).result)

    def _ask(self, request: ListPairs | CheckPair) -> Any:
        answer = None
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(request)
            answer = self._worker.receive()
        if answer is None:
            raise self._exit_error()
        return answer

    def _exit_error(self) -> CoverageError:
        """Waits until the process exits, and returns the error for it."""
        code = self._worker.wait()
        lines = [line for line in self._log.read_text().splitlines() if line.strip()]
        return CoverageError(lines[-1] if lines else f"its process ended with {describe_exit(code)}")
