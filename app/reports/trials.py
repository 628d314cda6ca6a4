"""Which passes are worth trying on a stage, and what came of trying them. No Textual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.protocol import PassInfo, Tried
from buddy.compiler.protocol.recipe import PassStep

# They print, view or only check, or wait for files and options that nobody gives here.
_IDLE = ("print-", "view-", "test-", "replace-ir", "irdl", "transform-", "location-snapshot", "gpu-", "spirv", "nvvm")
SHOWN_DELTAS = 6


@dataclass(frozen=True)
class Attempt:
    """A candidate and what it did."""

    step: PassStep
    tried: Tried

    @property
    def size(self) -> int:
        """How many ops came or went."""
        return sum(abs(delta) for _, delta in self.tried.deltas)

    def as_json(self) -> dict[str, Any]:
        return {
            "pass": self.step.spelling(),
            "anchor": self.step.anchor,
            "changed": self.tried.changed,
            "ops": dict(self.tried.deltas),
            "milliseconds": self.tried.milliseconds,
            "problem": self.tried.problem or None,
        }


def candidates(steps: Sequence[PassStep], catalogue: Sequence[PassInfo]) -> tuple[PassStep, ...]:
    """The recipe's own passes that are off, with their options; then every pass over MLIR with its defaults."""
    off = [step for step in steps if step.level == "mlir" and not step.enabled]
    found = {step.spelling(): PassStep(step.name, "mlir", step.anchor, step.options) for step in off}
    for info in catalogue:
        if info.level == "mlir" and not info.name.startswith(_IDLE):
            found.setdefault(info.name, PassStep(info.name, "mlir", info.anchor))
    return tuple(found.values())


def ranked(attempts: Sequence[Attempt], failed: bool = False) -> list[Attempt]:
    """Those that changed something, the greatest change first; if asked for, those that failed behind them.

    Many passes fold constants by the way: those that did just what `canonicalize` does stand behind the others.
    """
    folding = next((each.tried.deltas for each in attempts if each.step.name == "canonicalize"), ())

    def place(each: Attempt) -> tuple[bool, int]:
        return (each.step.name != "canonicalize" and each.tried.deltas == folding, -each.size)

    changed = sorted((each for each in attempts if each.tried.changed), key=place)
    return changed + [each for each in attempts if failed and each.tried.problem]


def deltas_text(deltas: Sequence[tuple[str, int]], minus: str = "-", most: int = SHOWN_DELTAS) -> str:
    """Ops that came and went by name: `+12 linalg.generic, -4 tosa.add`."""
    told = [f"{'+' if delta > 0 else minus}{abs(delta)} {name}" for name, delta in deltas[:most]]
    more = len(deltas) - most
    return ", ".join([*told, *([f"{more} more"] if more > 0 else [])])
