"""Previews of passes: selects the passes to try on a stage, and ranks and formats the changes of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from buddy.compiler.protocol import PassInfo, Tried
from buddy.compiler.protocol.recipe import PassStep

# The prefixes of the names of passes that are not previewed: they only print, view or check, or need files or options.
_NOT_PREVIEWED = (
    *("print-", "view-", "test-", "replace-ir", "irdl"),
    *("transform-", "location-snapshot", "gpu-", "spirv", "nvvm"),
)
# At most this many ops are named in a change.
MAX_SHOWN_DELTAS = 6


@dataclass(frozen=True)
class PassPreview:
    """A pass, and the result `tried` of running it on a stage."""

    step: PassStep
    tried: Tried

    @property
    def size(self) -> int:
        """The number of ops added or removed."""
        return sum(abs(delta) for _, delta in self.tried.deltas)

    def as_json(self) -> dict[str, object]:
        return {
            "pass": self.step.spelling(),
            "anchor": self.step.anchor,
            "changed": self.tried.changed,
            "ops": dict(self.tried.deltas),
            "milliseconds": self.tried.milliseconds,
            "problem": self.tried.problem or None,
        }


def candidate_passes(steps: Sequence[PassStep], catalogue: Sequence[PassInfo]) -> tuple[PassStep, ...]:
    """Returns the passes to preview: the disabled passes of a recipe with their options, then all other MLIR passes.

    `steps` are those of the recipe, and `catalogue` lists all passes.
    """
    disabled = [step for step in steps if step.level == "mlir" and not step.enabled]
    by_spelling = {step.spelling(): PassStep(step.name, "mlir", step.anchor, step.options) for step in disabled}
    for info in catalogue:
        if info.level == "mlir" and not info.name.startswith(_NOT_PREVIEWED):
            by_spelling.setdefault(info.name, PassStep(info.name, "mlir", info.anchor))
    return tuple(by_spelling.values())


def rank_previews(previews: Sequence[PassPreview], with_failed: bool = False) -> list[PassPreview]:
    """Returns the passes that change the stage, the largest change first; `with_failed`, followed by those that failed.

    Many passes also fold constants, so passes with the same op counts as `canonicalize` come after the others.
    """
    folding_deltas = next((preview.tried.deltas for preview in previews if preview.step.name == "canonicalize"), ())

    def rank(preview: PassPreview) -> tuple[bool, int]:
        only_folds = preview.step.name != "canonicalize" and preview.tried.deltas == folding_deltas
        return (only_folds, -preview.size)

    changing = sorted((preview for preview in previews if preview.tried.changed), key=rank)
    return changing + [preview for preview in previews if with_failed and preview.tried.problem]


def deltas_text(deltas: Sequence[tuple[str, int]], minus: str = "-", max_count: int = MAX_SHOWN_DELTAS) -> str:
    """Returns the numbers of ops added and removed: `+12 linalg.generic, -4 tosa.add`; names at most `max_count`."""
    texts = [f"{'+' if delta > 0 else minus}{abs(delta)} {name}" for name, delta in deltas[:max_count]]
    more = len(deltas) - max_count
    return ", ".join([*texts, *([f"{more} more"] if more > 0 else [])])
