"""What a pipeline comes to, in figures that can stand beside another's. No Textual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.protocol import Compiled, RunReport, Stage
from buddy.compiler.protocol.recipe import Recipe


@dataclass(frozen=True)
class PipelineFacts:
    """A recipe, what compiling it gave, and what running it gave; `problem` says why there is nothing."""

    title: str
    recipe: Recipe
    compiled: Compiled | None = None
    report: RunReport | None = None
    problem: str = ""

    @property
    def passes(self) -> int:
        """How many passes are on."""
        return sum(step.enabled for step in self.recipe.steps)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.compiled.stages if self.compiled is not None else ()

    @property
    def changing(self) -> int:
        """How many of the recipe's passes changed something."""
        return sum(stage.changed and stage.step >= 0 for stage in self.stages)

    @property
    def milliseconds(self) -> float:
        """What all stages took when they were made, whether or not they were at hand now."""
        return sum(stage.milliseconds for stage in self.stages)

    @property
    def operations(self) -> int:
        """Ops at the end of the MLIR passes."""
        return next((stage.ops for stage in reversed(self.stages) if stage.language == "mlir"), 0)

    @property
    def assembly_lines(self) -> int:
        return next((stage.lines for stage in reversed(self.stages) if stage.language == "asm"), 0)

    def slowest(self) -> Stage | None:
        """The stage that took longest."""
        return max(self.stages, key=lambda stage: stage.milliseconds, default=None)

    def as_json(self) -> dict[str, Any]:
        """The figures as plain values; `null` for what has not been run."""
        report = self.report
        return {
            "name": self.title,
            "passes": self.passes,
            "changing": self.changing,
            "compile_seconds": self.milliseconds / 1e3,
            "ops": self.operations,
            "assembly_lines": self.assembly_lines,
            "ok": report.ok if report and (not report.not_compared or report.wrong) else None,
            "run_seconds": report.compiled.median if report else None,
            "eager_seconds": report.eager.median if report else None,
            "problem": self.problem or None,
        }
