"""Measurements of a preset, for a comparison of presets. No Textual."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from buddy.compiler.protocol import Compiled, RunReport, Stage
from buddy.compiler.protocol.recipe import Recipe


@dataclass(frozen=True)
class PipelineFacts:
    """A recipe with the results of its compilation and run. `problem` is the error if there are none."""

    title: str
    recipe: Recipe
    compiled: Compiled | None = None
    report: RunReport | None = None
    problem: str = ""

    @property
    def passes(self) -> int:
        """The number of enabled passes."""
        return sum(step.enabled for step in self.recipe.steps)

    @property
    def stages(self) -> tuple[Stage, ...]:
        return self.compiled.stages if self.compiled is not None else ()

    @property
    def changing(self) -> int:
        """The number of passes that changed the IR."""
        return sum(stage.changed and stage.step >= 0 for stage in self.stages)

    @property
    def milliseconds(self) -> float:
        """The total time of all stages. Cached stages count with the time of their original compilation."""
        return sum(stage.milliseconds for stage in self.stages)

    @property
    def operations(self) -> int:
        """The number of ops after the last MLIR pass."""
        return next((stage.ops for stage in reversed(self.stages) if stage.language == "mlir"), 0)

    @property
    def assembly_lines(self) -> int:
        return next((stage.lines for stage in reversed(self.stages) if stage.language == "asm"), 0)

    def slowest(self) -> Stage | None:
        """The slowest stage."""
        return max(self.stages, key=lambda stage: stage.milliseconds, default=None)

    def as_json(self) -> dict[str, Any]:
        """The measurements as plain values; `null` without a run."""
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
