"""What a campaign of random programs is to do, and what came of its batches. Imports neither torch nor Hypothesis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from buddy.compiler.protocol.recipe import digest
from buddy.compiler.support import json_lines

# Programs of a batch: its result is what an interruption can lose.
BATCH = 50
# "compiled" and "eager" are right, the latter with some nodes in PyTorch; "refused": TorchDynamo took none of it;
# "invalid": eager refuses it; "wrong", "error", "crash" and "timeout" are faults.
Outcome = Literal["compiled", "eager", "refused", "invalid", "wrong", "error", "crash", "timeout"]
FAULTS: tuple[Outcome, ...] = ("wrong", "error", "crash", "timeout")


# How often something occurs, by the table that tells of it and its name there.
Histogram = dict[str, dict[str, int]]
# What decides which programs a seed stands for.
_DRAWING = ("operands.py", "statements.py", "values.py", "writing.py")


class Verdict(msgspec.Struct, frozen=True):
    """What became of a program, and why, where that is not the best outcome.

    `at` is what the first statement calls whose value is wrong, where all values of a program are asked for. `compiled`
    counts the operators, element types and ranks of what reached the compiler.
    """

    outcome: Outcome
    why: str = ""
    at: str = ""
    compiled: Histogram = {}


class Plan(msgspec.Struct, frozen=True):
    """`count` programs from `seed` on, of which part `shard` (from 1, of so many) is tried here.

    `options` are those of the `torch.compile` back end; `dynamic` has sizes be symbols in what it is given, and with
    `gradients` it is given backward graphs, too.
    `extensions` are Python files that are run before, and may define op classes, lowerings and passes.
    """

    count: int
    seed: int = 0
    shard: tuple[int, int] = (1, 1)
    statements: int = 10
    timeout: float = 60.0
    options: Mapping[str, Any] = {}
    extensions: tuple[str, ...] = ()
    dynamic: bool = False
    gradients: bool = False

    def seeds(self) -> list[int]:
        """Those of the batches of this shard."""
        part, parts = self.shard
        return [self.seed + number for number in range(math.ceil(self.count / BATCH)) if number % parts == part - 1]

    def size(self, seed: int) -> int:
        """How many programs the batch of a seed has: the last one may have fewer than the others."""
        return min(BATCH, self.count - BATCH * (seed - self.seed))

    def conditions(self, seed: int) -> str:
        """What else than its seed decides what a batch holds and how it is compiled, as a short hash.

        The compiler is no part of it: that is what is tried. Raises `OSError`.
        """
        drawing = [(Path(__file__).parent / name).read_bytes() for name in _DRAWING]
        extensions = [Path(path).read_bytes() for path in self.extensions]
        return digest(
            self.size(seed),
            self.statements,
            self.dynamic,
            self.gradients,
            sorted(self.options.items()),
            extensions,
            *drawing,
        )


class Fault(msgspec.Struct, frozen=True):
    """The least program that failed in one way, as a script; `at` is as a verdict has it."""

    outcome: Outcome
    why: str
    script: str
    at: str = ""


class Batch(msgspec.Struct, frozen=True):
    """What came of one batch: how many programs ended how, and a program for each way in which some failed.

    `conditions` are those of the plan it was tried by. `deadly` are the statements that eager itself died of, which
    its programs do not have. `drawn` counts the kinds of statement, what reached the compiler, and why programs came to
    no better end.
    """

    seed: int
    conditions: str
    outcomes: dict[str, int]
    seconds: float
    faults: tuple[Fault, ...] = ()
    deadly: tuple[str, ...] = ()
    drawn: Histogram = {}


def read(path: Path, plan: Plan) -> dict[int, Batch]:
    """By seed, the batches of `plan`'s conditions in a file that `json_lines.append` has written. Raises `OSError`."""
    found = json_lines.read(path, Batch)
    return {b.seed: b for b in found if b.seed in plan.seeds() and b.conditions == plan.conditions(b.seed)}


def total(batches: Collection[Batch]) -> Counter[str]:
    """How many programs of all batches ended how."""
    found: Counter[str] = Counter()
    for batch in batches:
        found.update(batch.outcomes)
    return found


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """All counts of all tables together, the most frequent first."""
    found: dict[str, Counter[str]] = {}
    for histogram in histograms:
        for table, counts in histogram.items():
            found.setdefault(table, Counter()).update(counts)
    return {table: dict(counts.most_common()) for table, counts in found.items()}
