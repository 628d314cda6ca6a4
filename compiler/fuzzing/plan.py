"""What a campaign of random programs is to do, and what came of its batches. Imports neither torch nor Hypothesis."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from buddy.compiler import json_lines

# Programs of a batch: its result is what an interruption can lose.
BATCH = 50
# "compiled" and "eager" are right, the latter with some nodes in PyTorch; "refused": TorchDynamo took none of it;
# "invalid": eager refuses it; "wrong", "error", "crash" and "timeout" are faults.
Outcome = Literal["compiled", "eager", "refused", "invalid", "wrong", "error", "crash", "timeout"]
FAULTS: tuple[Outcome, ...] = ("wrong", "error", "crash", "timeout")


class Verdict(msgspec.Struct, frozen=True):
    """What became of a program, and why, where that is not the best outcome."""

    outcome: Outcome
    why: str = ""


class Plan(msgspec.Struct, frozen=True):
    """`count` programs from `seed` on, of which part `shard` (from 1, of so many) is tried here.

    `options` are those of the `torch.compile` back end. `extensions` are Python files that are run before, and may
    define op classes, lowerings and passes.
    """

    count: int
    seed: int = 0
    shard: tuple[int, int] = (1, 1)
    statements: int = 10
    timeout: float = 60.0
    options: Mapping[str, Any] = {}
    extensions: tuple[str, ...] = ()

    def seeds(self) -> list[int]:
        """Those of the batches of this shard."""
        part, parts = self.shard
        return [self.seed + number for number in range(math.ceil(self.count / BATCH)) if number % parts == part - 1]


class Batch(msgspec.Struct, frozen=True):
    """What came of one batch: how many programs ended how, and the least one that failed."""

    seed: int
    outcomes: dict[str, int]
    seconds: float
    fault: str = ""
    why: str = ""
    script: str = ""


def read(path: Path) -> dict[int, Batch]:
    """The batches in a file that `json_lines.append` has written, by seed. Raises `OSError`."""
    return {batch.seed: batch for batch in json_lines.read(path, Batch)}


def total(batches: Collection[Batch]) -> Counter[str]:
    """How many programs of all batches ended how."""
    found: Counter[str] = Counter()
    for batch in batches:
        found.update(batch.outcomes)
    return found
