"""The plan of a coverage run and its results, as plain data, and the messages between its processes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Literal

import msgspec

from buddy.compiler.protocol.worker_messages import Message

Outcome = Literal["compiled", "torch-mlir", "eager", "refused", "wrong", "error", "crash", "timeout"]

# From best to worst. A rejection by Dynamo does not concern the compiler, so it ranks below everything that ran.
ORDER: tuple[Outcome, ...] = ("refused", "compiled", "torch-mlir", "eager", "wrong", "error", "timeout", "crash")
# Outcomes with right results; the others have none, or wrong ones.
RIGHT: frozenset[Outcome] = frozenset({"refused", "compiled", "torch-mlir", "eager"})
# The steps of a check, in order; `CallResult.reached` is the number of completed steps.
STEPS = ("capture", "lower", "compile", "run", "compare")
DTYPES = ("float32", "int64", "bool")


class CoveragePlanError(ValueError):
    """An invalid plan; the text says what is wrong and what is valid."""


class CoveragePlan(msgspec.Struct, frozen=True):
    """What to check and how.

    `only` are names of operators or shell patterns, none for all. At most `samples` distinct samples are taken of each
    operator and dtype. A program may be silent for `timeout` seconds. Shard `(i, n)` is every n-th pair, from i, of 1
    to n. `extensions` are Python files that are run first, which may define op classes and lowerings. With `backward`,
    gradients are compared too, of the operators that have them.
    """

    only: tuple[str, ...] = ()
    dtypes: tuple[str, ...] = DTYPES
    samples: int = 4
    timeout: float = 60.0
    shard: tuple[int, int] = (1, 1)
    preset: str = "default"
    dialect: str = "linalg"
    extensions: tuple[str, ...] = ()
    backward: bool = False

    def wants(self, name: str) -> bool:
        """Whether operator `name` (`linalg.norm`, `sum`, `where`), with or without its variant, is selected."""
        return not self.only or any(fnmatchcase(name, p) or name.startswith(f"{p}.") for p in self.only)


class OpDtypePair(msgspec.Struct, frozen=True, order=True):
    """An operator by OpInfo's name, and the dtype of its inputs."""

    op: str
    dtype: str


class CallResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of one call, or of several in one program.

    `reasons` say why it was not compiled, or how it differs; `error` is the largest absolute error. `lowerings` maps
    ATen targets to the lowerings of their nodes, with counts.
    """

    call: str
    outcome: Outcome
    reached: int = 0
    reasons: tuple[str, ...] = ()
    error: float = 0.0
    lowerings: dict[str, dict[str, int]] = {}


class PairResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The result of an operator with one dtype: the worst outcome of its calls, and those that were not compiled.

    `outcomes` counts calls, `reached` those that got through each of `STEPS`. `skipped` says why there was no call.
    `backward` is the plan's.
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
    """An overload of Core ATen: the registries here that lower it, else whether PyTorch's decompositions replace it.

    `only_eager` is the reason if it runs in eager by design.
    """

    target: str
    lowered: tuple[str, ...] = ()
    decomposed: bool = False
    only_eager: str = ""


class Listing(msgspec.Struct, frozen=True):
    """What to check: the pairs of a plan, and Core ATen; and the versions of the packages."""

    pairs: list[OpDtypePair]
    core: list[CoreOp]
    versions: dict[str, str] = {}


def parse_shard(text: str) -> tuple[int, int]:
    """Parses `2/8` to (2, 8). Raises `CoveragePlanError`."""
    index, _, count = text.partition("/")
    if index.isdigit() and count.isdigit() and 1 <= int(index) <= int(count):
        return int(index), int(count)
    raise CoveragePlanError(f"a shard is I/N with I from 1 to N, such as 2/8, not {text!r}")


def sharded(pairs: Sequence[OpDtypePair], shard: tuple[int, int]) -> list[OpDtypePair]:
    """Every n-th pair: neighbours, which have similar costs, go to different shards."""
    index, count = shard
    return list(pairs[index - 1 :: count])


def worst(outcomes: Iterable[Outcome]) -> Outcome:
    return max(outcomes, key=ORDER.index)


def merged(lowerings: Iterable[dict[str, dict[str, int]]]) -> dict[str, dict[str, int]]:
    """The sum of several `lowerings`, in the order of their targets."""
    total: dict[str, dict[str, int]] = {}
    for found in lowerings:
        for target, counts in found.items():
            into = total.setdefault(target, {})
            for lowering, count in counts.items():
                into[lowering] = into.get(lowering, 0) + count
    return dict(sorted(total.items()))


def pair_result(
    pair: OpDtypePair, findings: Sequence[CallResult], seconds: float, tolerance: str = "", backward: bool = False
) -> PairResult:
    """The result of a pair from the findings of its calls; there is at least one."""
    outcomes: dict[str, int] = {}
    for finding in findings:
        outcomes[finding.outcome] = outcomes.get(finding.outcome, 0) + 1
    told = tuple(msgspec.structs.replace(f, lowerings={}) for f in findings if f.reasons)
    return PairResult(
        pair.op,
        pair.dtype,
        worst(finding.outcome for finding in findings),
        outcomes,
        tuple(sum(f.reached > step for f in findings) for step in range(len(STEPS))),
        told,
        merged(finding.lowerings for finding in findings),
        tolerance,
        seconds=round(seconds, 2),
        backward=backward,
    )


class ListPairs(Message, frozen=True):
    """Start under `plan`; answered by `PairsListed`."""

    plan: CoveragePlan


class PairsListed(Message, frozen=True):
    listing: Listing


class CheckPair(Message, frozen=True):
    """Check a pair under the plan; answered by `PairChecked`."""

    pair: OpDtypePair


class PairChecked(Message, frozen=True):
    result: PairResult


class CoverageJob(Message, frozen=True):
    """Check a pair in a fork. Calls in `known` are left out; with `joint`, all calls are tried in one program first.

    Answered by `CallStarted` before each program, `CallChecked` after it, and `JobDone`.
    """

    pair: OpDtypePair
    samples: int
    options: Mapping[str, Any]
    joint: bool = True
    known: frozenset[int] = frozenset()
    backward: bool = False


class CallStarted(Message, frozen=True):
    """The program of call `number` starts."""

    number: int
    text: str


class CallChecked(Message, frozen=True):
    number: int
    result: CallResult


class JobDone(Message, frozen=True):
    """The pair is done; `skipped` says why there was no call, "" if there was one."""

    skipped: str = ""
