"""The times of a compilation by phase, pass and function, and the measurements of a recipe in a table of recipes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from buddy.app.reports.profile import FlameNode, add_to_flame
from buddy.compiler.protocol import Compiled, GraphInfo, RunReport, Stage
from buddy.compiler.protocol.recipe import Recipe

# The entry for the time between passes, in which the module is cloned, annotated with locations and printed.
# A compilation by `torch.compile` spends no such time.
SNAPSHOTS = "(snapshots)"


def compile_flame(stages: Sequence[Stage], compiled: Compiled, info: GraphInfo) -> FlameNode:
    """Returns a tree of phases and passes. Time outside of passes is an entry next to the phases.

    A cached stage counts with the time of its original compilation; then the time between passes is unknown.
    """
    root = FlameNode(info.name)
    for name, stage in zip(_unique_names(stages), stages, strict=True):
        add_to_flame(root, [stage.phase, name], stage.milliseconds / 1e3)
    if not compiled.reused:
        add_to_flame(root, [SNAPSHOTS], compiled.seconds - root.seconds)
    return root


def object_times(stages: Sequence[Stage]) -> list[tuple[str, float]]:
    """Returns the functions and the times of their code generation in seconds, the slowest first.

    Functions are compiled in parallel, so the sum may exceed the time of the stage.
    """
    times = [(name, milliseconds / 1e3) for stage in stages for name, milliseconds in stage.functions]
    return sorted(times, key=lambda function: -function[1])


def _unique_names(stages: Sequence[Stage]) -> list[str]:
    """Returns the names of stages; from its second occurrence on, a name has a number: `canonicalize#2`."""
    counts: Counter[str] = Counter()
    names = []
    for stage in stages:
        counts[stage.name] += 1
        names.append(stage.name if counts[stage.name] == 1 else f"{stage.name}#{counts[stage.name]}")
    return names


def compile_json(stages: Sequence[Stage], compiled: Compiled, info: GraphInfo) -> dict[str, object]:
    """Returns the times of a compilation as plain values, in seconds."""
    phases: dict[str, float] = {}
    for stage in stages:
        phases[stage.phase] = phases.get(stage.phase, 0.0) + stage.milliseconds / 1e3
    return {
        "graph": compiled.graph,
        "name": info.name,
        "seconds": compiled.seconds,
        "reused": compiled.reused,
        "phases": [{"phase": phase, "seconds": seconds} for phase, seconds in phases.items()],
        "passes": [
            {"pass": name, "phase": stage.phase, "seconds": stage.milliseconds / 1e3, "ops": stage.ops}
            for name, stage in zip(_unique_names(stages), stages, strict=True)
        ],
        "functions": [{"function": name, "seconds": seconds} for name, seconds in object_times(stages)],
    }


@dataclass(frozen=True)
class PipelineFacts:
    """A recipe with the results of its compilation and of its run. `problem` is the error if one of them has failed."""

    title: str
    recipe: Recipe
    compiled: Compiled | None = None
    report: RunReport | None = None
    problem: str = ""

    @property
    def n_passes(self) -> int:
        """The number of enabled passes."""
        return sum(step.enabled for step in self.recipe.steps)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """The stages of the compilation; empty without one."""
        return self.compiled.stages if self.compiled is not None else ()

    @property
    def n_changing_passes(self) -> int:
        """The number of passes that changed the IR."""
        return sum(stage.changed and stage.step >= 0 for stage in self.stages)

    @property
    def milliseconds(self) -> float:
        """The total time of all stages. Cached stages count with the time of their original compilation."""
        return sum(stage.milliseconds for stage in self.stages)

    @property
    def n_ops(self) -> int:
        """The number of ops after the last MLIR pass."""
        return next((stage.ops for stage in reversed(self.stages) if stage.language == "mlir"), 0)

    @property
    def n_assembly_lines(self) -> int:
        """The number of lines of assembly; 0 if there is no assembly."""
        return next((stage.lines for stage in reversed(self.stages) if stage.language == "asm"), 0)

    def slowest(self) -> Stage | None:
        """Returns the slowest stage, `None` before the compilation."""
        return max(self.stages, key=lambda stage: stage.milliseconds, default=None)

    def as_json(self) -> dict[str, object]:
        """Returns the measurements as plain values. Those of the run are null if the recipe was not run."""
        report = self.report
        return {
            "name": self.title,
            "passes": self.n_passes,
            "changing": self.n_changing_passes,
            "compile_seconds": self.milliseconds / 1e3,
            "ops": self.n_ops,
            "assembly_lines": self.n_assembly_lines,
            "ok": report.ok if report and (not report.not_compared or report.wrong) else None,
            "run_seconds": report.compiled.median if report else None,
            "eager_seconds": report.eager.median if report else None,
            "problem": self.problem or None,
        }
