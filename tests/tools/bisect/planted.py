"""The faults that are planted: a plug-in each, where its pass stands in a recipe, and the name to be found."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from buddy.compiler.protocol import BisectionResult
from buddy.compiler.protocol.recipe import Level, PassStep, PluginFile, Recipe

FOLDER = Path(__file__).parent / "plants"


@dataclass(frozen=True)
class Plant:
    """A plug-in, and what it is called: a pass that stands behind the first step `after`, else what it replaces."""

    file: str
    name: str
    after: str = ""
    kind: Literal["differs", "fails", "slower"] = "differs"
    level: Level = "mlir"

    @property
    def path(self) -> Path:
        return FOLDER / f"{self.file}.py"

    def planted(self, recipe: Recipe) -> Recipe:
        """The recipe with the plant in it."""
        steps = list(recipe.steps)
        if self.after:
            place = next(number for number, step in enumerate(steps) if step.name == self.after)
            phase, anchor = steps[place].phase, "builtin.module" if self.level == "mlir" else ""
            steps.insert(place + 1, PassStep(self.name, self.level, anchor, phase=phase))
        return msgspec.structs.replace(recipe, steps=tuple(steps), plugins=(PluginFile(str(self.path)),))

    def is_found_by(self, finding: BisectionResult) -> bool:
        """Whether `finding` blames the plant, it alone, and says whose it is."""
        blamed = {(culprit.step.name, culprit.origin) for culprit in finding.steps}
        blamed |= {(wrong.op, wrong.origin) for wrong in finding.lowerings}
        return blamed == {(self.name, self.path.name)}


PLANTS = (
    Plant("flip_one_sign", "flip-one-sign", "fuse-elementwise"),
    Plant("wrong_epsilon", "NativeLayerNormOp"),
    Plant("crash_on_sqrt", "crash-on-sqrt", "fold-transposes", "fails"),
    Plant("scalar_loops", "scalar-loops", "fill-borders", "slower"),
    Plant("wrong_constant", "wrong-constant", "expand-math-to-polynomials"),
    Plant("drop_addend", "drop-addend", "choose-layouts"),
    Plant("break_types", "break-types", "fill-borders", "fails"),
    Plant("never_end", "never-end", "windows-to-generics", "fails"),
    Plant("trap_at_run", "trap-at-run", "convert-math-to-llvm", "fails"),
    Plant("approximate_gelu", "approximate-gelu", "slice-parts", level="graph"),
    Plant("wrong_cse", "cse"),
)
