"""The client of a coverage run: appends results to a file, and skips known ones."""

from __future__ import annotations

import atexit
import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import msgspec

from buddy.compiler.support import files
from buddy.compiler.support.cluster import map_on_cluster
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit
from buddy.compiler.tools.coverage.plan import (
    CheckPair,
    CoveragePlan,
    Listing,
    ListPairs,
    OpDtypePair,
    PairChecked,
    PairResult,
    PairsListed,
    sharded,
)


class CoverageError(Exception):
    """The warm process could not start, or exited; the text is its last output."""


def read(path: Path, backward: bool = False) -> dict[OpDtypePair, PairResult]:
    """The results in a file written by `json_lines.append`, of runs with gradients if `backward`, else of the others.

    The last result of a pair counts. Raises `OSError`.
    """
    return {result.pair: result for result in files.read_json_lines(path, PairResult) if result.backward == backward}


def run(
    plan: CoveragePlan,
    known: dict[OpDtypePair, PairResult],
    again: Sequence[str],
    on_result: Callable[[int, int, PairResult], None],
    cluster: str = "",
) -> Listing:
    """Checks the pairs of `plan` that are not in `known`, or whose known outcome is in `again`.

    Pairs are checked on this machine, or on the Dask cluster at the address `cluster`. `on_result` is called with the
    numbers of finished and of all pairs, and each result as it arrives. Returns all pairs of the plan's shard, and Core
    ATen. Raises `CoverageError` and `ClusterError`.
    """
    with tempfile.TemporaryDirectory(prefix="buddy-coverage-") as cache, _Server(plan, cache) as server:
        listing = server.listing()
        wanted = sharded(listing.pairs, plan.shard)
        todo = [pair for pair in wanted if pair not in known or known[pair].outcome in again]
        results = _on_cluster(plan, cluster, todo) if cluster else map(server.check, todo)
        for number, result in enumerate(results, 1):
            on_result(number, len(todo), result)
    return Listing(wanted, listing.core, listing.versions)


def _on_cluster(plan: CoveragePlan, address: str, pairs: Sequence[OpDtypePair]) -> Iterator[PairResult]:
    """Yields results as they arrive."""
    encode = msgspec.json.encode
    jobs = [(encode(plan), encode(pair)) for pair in pairs]
    for _, found in map_on_cluster(address, check_pair, jobs):
        yield msgspec.json.decode(found, type=PairResult)


_here = threading.local()


def check_pair(job: tuple[bytes, bytes]) -> bytes:
    """Checks a pair on a worker of a cluster; each thread of the worker keeps a warm process."""
    plan, pair = job
    if getattr(_here, "plan", None) != plan:
        if getattr(_here, "stack", None) is not None:
            _here.stack.close()
        _here.stack, _here.plan = contextlib.ExitStack(), plan
        atexit.register(_here.stack.close)
        cache = _here.stack.enter_context(tempfile.TemporaryDirectory(prefix="buddy-coverage-"))
        _here.server = _here.stack.enter_context(_Server(msgspec.json.decode(plan, type=CoveragePlan), cache))
        _here.server.listing()
    try:
        return msgspec.json.encode(_here.server.check(msgspec.json.decode(pair, type=OpDtypePair)))
    except CoverageError:
        _here.plan = None  # the next pair gets a new process
        raise


class _Server:
    """The warm process. It has a separate cache, because cached artifacts must not affect the measurement."""

    def __init__(self, plan: CoveragePlan, cache: str) -> None:
        self._log = Path(cache, "server.log")
        with self._log.open("w") as log:
            self._worker = BlockingWorker(
                "buddy.compiler.tools.coverage.server:serve", PairsListed | PairChecked, log,
                {"BUDDY_CACHE": cache, "OMP_NUM_THREADS": "1"},
            )  # fmt: skip
        self._plan = plan

    def __enter__(self) -> _Server:
        return self

    def __exit__(self, *_: object) -> None:
        self._worker.end(patience=10)

    def listing(self) -> Listing:
        """Requests the list of pairs to check; this is the first request."""
        return cast(Listing, self._ask(ListPairs(self._plan)).listing)

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
        code = self._worker.wait()
        said = [text for text in self._log.read_text().splitlines() if text.strip()]
        return CoverageError(said[-1] if said else f"it ended with {describe_exit(code)}")
