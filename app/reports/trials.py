"""The passes to try on a stage, and the results of the trials. No Textual."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.protocol import PassInfo, Tried
from buddy.compiler.protocol.recipe import PassStep

# Passes that only print, view or check, or that need files or options.
_IDLE = ("print-", "view-", "test-", "replace-ir", "irdl", "transform-", "location-snapshot", "gpu-", "spirv", "nvvm")
SHOWN_DELTAS = 6


@dataclass(frozen=True)
class PassPreview:
    """A candidate and its result."""

    step: PassStep
    tried: Tried

    @property
    def size(self) -> int:
        """The number of ops added or removed."""
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
    """The disabled passes of the recipe with their options, then every MLIR pass with its defaults."""
    off = [step for step in steps if step.level == "mlir" and not step.enabled]
    found = {step.spelling(): PassStep(step.name, "mlir", step.anchor, step.options) for step in off}
    for info in catalogue:
        if info.level == "mlir" and not info.name.startswith(_IDLE):
            found.setdefault(info.name, PassStep(info.name, "mlir", info.anchor))
    return tuple(found.values())


def rank_previews(attempts: Sequence[PassPreview], failed: bool = False) -> list[PassPreview]:
    """The attempts that changed the stage, the largest change first; with `failed`, also those that failed, at the end.

    Many passes also fold constants, so attempts with the same result as `canonicalize` come after the others.
    """
    folding = next((each.tried.deltas for each in attempts if each.step.name == "canonicalize"), ())

    def place(each: PassPreview) -> tuple[bool, int]:
        return (each.step.name != "canonicalize" and each.tried.deltas == folding, -each.size)

    changed = sorted((each for each in attempts if each.tried.changed), key=place)
    return changed + [each for each in attempts if failed and each.tried.problem]


def deltas_text(deltas: Sequence[tuple[str, int]], minus: str = "-", most: int = SHOWN_DELTAS) -> str:
    """The ops added and removed, by name: `+12 linalg.generic, -4 tosa.add`."""
    texts = [f"{'+' if delta > 0 else minus}{abs(delta)} {name}" for name, delta in deltas[:most]]
    more = len(deltas) - most
    return ", ".join([*texts, *([f"{more} more"] if more > 0 else [])])
