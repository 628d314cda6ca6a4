"""Defines the plan and the results of a coverage run, and checks the pairs of a plan in other processes.

The processes run on this machine or on a cluster. The plan, the results and the messages are plain data.
"""

from __future__ import annotations

import atexit
import contextlib
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support import files
from buddy.compiler.support.cluster import map_on_cluster
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit

# The outcome of compiling a program. With right results: "compiled" by this project's lowerings alone, "torch-mlir" if
# torch-mlir's passes lower some ops, "eager" if some nodes run in eager. "refused": Dynamo does not capture it.
# "wrong": the results differ from eager's. "error": the compiler, or compiled code, raises an error. "crash" and
# "timeout": the process that checks it ends, or does not answer in time.
Outcome = Literal["compiled", "torch-mlir", "eager", "refused", "wrong", "error", "crash", "timeout"]

# From best to worst. "refused", a rejection by Dynamo, is not a fault of the compiler, so every other outcome is worse.
OUTCOME_ORDER: tuple[Outcome, ...] = (
    "refused",
    "compiled",
    "torch-mlir",
    "eager",
    "wrong",
    "error",
    "timeout",
    "crash",
)
# Outcomes with right results; the others have none, or wrong ones.
RIGHT_OUTCOMES: frozenset[Outcome] = frozenset({"refused", "compiled", "torch-mlir", "eager"})
# The steps of a check, in order; `CallResult.reached` is the number of completed steps.
STEPS = ("capture", "lower", "compile", "run", "compare")
# The dtypes of a plan for which the user names none.
DEFAULT_DTYPES = ("float32", "int64", "bool")


class CoveragePlanError(BuddyError, ValueError):
    """An invalid plan; the text says what is wrong and what is valid."""


class CoveragePlan(msgspec.Struct, frozen=True):
    """What to check and how.

    `only` are shell patterns or names of operators, which include all variants; () is all operators. At most `samples`
    distinct samples are taken of each operator and dtype. The check of a program is stopped after `timeout` seconds.
    Shard `(i, n)` is every n-th pair, from pair i on, counted from 1. `extensions` are Python files that are run first,
    which may define op classes and lowerings. With `backward`, only operators with gradients are checked, and gradients
    are compared too.
    """

    only: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DEFAULT_DTYPES
    samples: int = 4
    timeout: float = 60.0
    shard: tuple[int, int] = (1, 1)
    preset: str = "default"
    dialect: str = "linalg"
    extensions: tuple[str, ...] = ()
    backward: bool = False

    def selects(self, name: str) -> bool:
        """Returns whether operator `name`, such as `linalg.norm` or `div.floor_rounding`, is selected."""
        return not self.only or any(
            fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for pattern in self.only
        )


class OpDtypePair(msgspec.Struct, frozen=True, order=True):
    """An operator by OpInfo's name, and the dtype of its inputs."""

    op: str
    dtype: str


class CallResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one call, or of several calls in one program; `call` describes it.

    `reached` is the number of completed `STEPS`. `reasons` say why it was not compiled, or how it differs; `error` is
    the largest absolute error, -1 if that is infinite or NaN. `lowerings` has, for each ATen target, the number of its
    nodes by lowering.
    """

    call: str
    outcome: Outcome
    reached: int = 0
    reasons: tuple[str, ...] = ()
    error: float = 0.0
    lowerings: dict[str, dict[str, int]] = {}


class PairResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of an operator with one dtype: the worst outcome of its calls.

    `outcomes` counts calls by outcome; `reached` has for each of `STEPS` the number of calls that completed it.
    `findings` are the calls with reasons. `tolerance` is the one for results of this dtype, as text. `skipped` says why
    there was no call. `backward` is that of the plan.
    """

    op: str
    dtype: str
    outcome: Outcome | Literal["skipped"]
    outcomes: dict[str, int] = {}
    reached: tuple[int, ...] = ()
    findings: tuple[CallResult, ...] = ()
    lowerings: dict[str, dict[str, int]] = {}
    tolerance: str = ""
    skipped: str = ""
    seconds: float = 0.0
    backward: bool = False

    @property
    def pair(self) -> OpDtypePair:
        return OpDtypePair(self.op, self.dtype)


class CoreOp(msgspec.Struct, frozen=True, omit_defaults=True):
    """An overload of Core ATen: the registries here that lower it (`lowered`).

    If no registry does, `decomposed` says whether PyTorch's decompositions replace it, and `only_eager` is the reason
    if it runs in eager by design.
    """

    target: str
    lowered: tuple[str, ...] = ()
    decomposed: bool = False
    only_eager: str = ""


class CoverageListing(msgspec.Struct, frozen=True):
    """The pairs of a plan, the overloads of Core ATen, and the versions of the packages."""

    pairs: list[OpDtypePair]
    core: list[CoreOp]
    versions: dict[str, str] = {}


def parse_shard(text: str) -> tuple[int, int]:
    """Parses `2/8` to (2, 8). Raises `CoveragePlanError`."""
    index, _, count = text.partition("/")
    if index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count):
        return int(index), int(count)
    raise CoveragePlanError(f"a shard is I/N with I from 1 to N, such as 2/8, not {text!r}")


def select_shard(pairs: Sequence[OpDtypePair], shard: tuple[int, int]) -> list[OpDtypePair]:
    """Returns the pairs of a shard: every n-th one, because neighbours have similar costs."""
    index, count = shard
    return list(pairs[index - 1 :: count])


def worst_outcome(outcomes: Iterable[Outcome]) -> Outcome:
    """Returns the last of the outcomes in the order of `OUTCOME_ORDER`."""
    return max(outcomes, key=OUTCOME_ORDER.index)


def merge_lowerings(lowerings: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """Returns the sum of several `lowerings` (see `CallResult`), sorted by target."""
    sums: dict[str, dict[str, int]] = {}
    for table in lowerings:
        for target, counts in table.items():
            target_sums = sums.setdefault(target, {})
            for lowering, count in counts.items():
                target_sums[lowering] = target_sums.get(lowering, 0) + count
    return dict(sorted(sums.items()))


def make_pair_result(
    pair: OpDtypePair, findings: Sequence[CallResult], seconds: float, tolerance: str = "", backward: bool = False
) -> PairResult:
    """Returns the result of a pair from the findings of its calls, of which there must be at least one."""
    outcomes: dict[str, int] = {}
    for finding in findings:
        outcomes[finding.outcome] = outcomes.get(finding.outcome, 0) + 1
    reported = tuple(msgspec.structs.replace(f, lowerings={}) for f in findings if f.reasons)
    return PairResult(
        pair.op,
        pair.dtype,
        worst_outcome(finding.outcome for finding in findings),
        outcomes,
        tuple(sum(f.reached > step for f in findings) for step in range(len(STEPS))),
        reported,
        merge_lowerings(finding.lowerings for finding in findings),
        tolerance,
        seconds=round(seconds, 2),
        backward=backward,
    )


class ListPairs(Message, frozen=True):
    """List the pairs of `plan`, which applies to all later requests; answered by `PairsListed`."""

    plan: CoveragePlan


class PairsListed(Message, frozen=True):
    """The answer to `ListPairs`."""

    listing: CoverageListing


class CheckPair(Message, frozen=True):
    """Check a pair under the plan; answered by `PairChecked`."""

    pair: OpDtypePair


class PairChecked(Message, frozen=True):
    """The answer to `CheckPair`."""

    result: PairResult


class CoverageJob(Message, frozen=True):
    """Check a pair in a fork, without the calls numbered `finished`; with `joint`, first all calls in one program.

    At most `samples` samples are called. `options` are those of the `torch.compile` backend. Answered by `CallStarted`
    before each program, `CallChecked` for each call, and `JobDone`.
    """

    pair: OpDtypePair
    samples: int
    options: Mapping[str, Any]
    joint: bool = True
    finished: frozenset[int] = frozenset()
    backward: bool = False


class CallStarted(Message, frozen=True):
    """The check of call number `number` starts, or that of all calls in one program (-1); `text` describes it."""

    number: int
    text: str


class CallChecked(Message, frozen=True):
    """The check of call number `number` is done."""

    number: int
    result: CallResult


class JobDone(Message, frozen=True):
    """The pair is done; `skipped` says why there was no call, "" if there was one."""

    skipped: str = ""


# ---- runs ------------------------------------------------------------------------------------------------------------


class CoverageError(BuddyError):
    """The warm process could not start, or exited; the text is its last output."""


def read_results(path: Path, backward: bool = False) -> dict[OpDtypePair, PairResult]:
    """Returns the results in a file of JSON lines: those of runs with gradients if `backward`, else those without.

    If a pair has several results, returns the last one. Raises `OSError`.
    """
    return {result.pair: result for result in files.read_json_lines(path, PairResult) if result.backward == backward}


def run(
    plan: CoveragePlan,
    earlier_results: dict[OpDtypePair, PairResult],
    repeated_outcomes: Sequence[str],
    on_result: Callable[[int, int, PairResult], None],
    cluster: str = "",
) -> CoverageListing:
    """Checks the pairs of `plan` without an earlier result, or whose earlier outcome is in `repeated_outcomes`.

    Checks them on this machine, or on the Dask cluster at the address `cluster`. Calls `on_result` for each result with
    the number of finished pairs, the number of pairs to check, and the result. Returns all pairs of the plan's shard,
    and Core ATen. Raises `CoverageError` and `ClusterError`.
    """
    with tempfile.TemporaryDirectory(prefix="buddy-coverage-") as cache, _WarmProcess(plan, cache) as process:
        listing = process.list_pairs()
        shard_pairs = select_shard(listing.pairs, plan.shard)
        pairs_to_check = [
            pair
            for pair in shard_pairs
            if pair not in earlier_results or earlier_results[pair].outcome in repeated_outcomes
        ]
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


# For each thread of a cluster's worker: the `plan` as JSON, its warm `process`, and the `stack` that ends the process.
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
    """The process that runs `worker.serve`: it has torch and MLIR loaded, and forks a worker for the checks.

    The process has a separate cache, because cached artifacts must not affect the measurement.
    """

    def __init__(self, plan: CoveragePlan, cache: str) -> None:
        self._log = Path(cache, "server.log")
        with self._log.open("w") as log:
            self._worker = BlockingWorker(
                "buddy.compiler.tools.coverage.worker:serve", PairsListed | PairChecked, log,
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
