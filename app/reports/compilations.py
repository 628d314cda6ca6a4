"""Compilations as plain data: times and measurements, previews of passes, and the pipelines of two frontends."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from buddy.app.reports.profile import FlameNode, add_to_flame
from buddy.app.session.stages import StageKey, key_stages
from buddy.app.workspace.presets import dialects_of, with_frontend
from buddy.compiler.protocol import Compiled, GraphInfo, PassInfo, Preset, RunReport, Stage, Tried
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, TORCH_MLIR, Dialect, PassStep, Recipe, preset_of

# ---- times and measurements ------------------------------------------------------------------------------------------


# The entry for the time between passes, in which the module is cloned, annotated with locations and printed.
# A compilation by `torch.compile` spends no such time.
SNAPSHOTS = "(snapshots)"


def compile_flame(stages: Sequence[Stage], compiled: Compiled, info: GraphInfo) -> FlameNode:
    """Returns a tree of phases and passes. Time outside of passes is an entry next to the phases.

    A cached stage counts with the time of its original compilation. If any stage is cached, the time between passes is
    unknown and has no entry.
    """
    root = FlameNode(info.name)
    for name, stage in zip(_unique_names(stages), stages, strict=True):
        add_to_flame(root, [stage.phase, name], stage.milliseconds / 1e3)
    if not compiled.reused:
        add_to_flame(root, [SNAPSHOTS], compiled.seconds - root.seconds)
    return root


def function_times(stages: Sequence[Stage]) -> list[tuple[str, float]]:
    """Returns each function with the seconds of its code generation, the slowest first.

    Functions are compiled in parallel, so the sum may exceed the time of the stage.
    """
    times = [(name, milliseconds / 1e3) for stage in stages for name, milliseconds in stage.functions]
    return sorted(times, key=lambda name_and_seconds: -name_and_seconds[1])


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
        "functions": [{"function": name, "seconds": seconds} for name, seconds in function_times(stages)],
    }


@dataclass(frozen=True)
class PipelineFacts:
    """A recipe with the results of its compilation and its run; `problem` is the error of the one that failed."""

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
        """The stages of the compilation; empty before it."""
        return self.compiled.stages if self.compiled is not None else ()

    @property
    def n_changing_passes(self) -> int:
        """The number of passes that changed the IR. Built-in steps, whose `step` is -1, are no passes."""
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
        """Returns the slowest stage; `None` before the compilation."""
        return max(self.stages, key=lambda stage: stage.milliseconds, default=None)

    def as_json(self) -> dict[str, object]:
        """Returns the measurements as plain values. Measurements of the run are null if the recipe was not run.

        `ok` is also null if the run was not compared with eager, unless it is wrong anyway.
        """
        report = self.report
        has_verdict = report is not None and (not report.not_compared or report.wrong)
        return {
            "name": self.title,
            "passes": self.n_passes,
            "changing": self.n_changing_passes,
            "compile_seconds": self.milliseconds / 1e3,
            "ops": self.n_ops,
            "assembly_lines": self.n_assembly_lines,
            "ok": report.ok if report and has_verdict else None,
            "run_seconds": report.compiled.median if report else None,
            "eager_seconds": report.eager.median if report else None,
            "problem": self.problem or None,
        }


# ---- previews of passes ----------------------------------------------------------------------------------------------


# The prefixes of the names of passes that are not previewed: they only print, view or check, or need files or options.
_NOT_PREVIEWED = (
    "print-", "view-", "test-", "replace-ir", "irdl", "transform-", "location-snapshot", "gpu-", "spirv", "nvvm",
)  # fmt: skip
# The maximum number of op names in the text of a change.
MAX_SHOWN_DELTAS = 6


@dataclass(frozen=True)
class PassPreview:
    """A pass, and the result `tried` of running it on a stage."""

    step: PassStep
    tried: Tried

    @property
    def size(self) -> int:
        """The number of added and removed ops."""
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
    """Returns the passes that change the stage, the largest change first. `with_failed` appends the passes that failed.

    Many passes also fold constants. Passes with the same op counts as `canonicalize` come last: they may do only that.
    """
    folding_deltas = next((preview.tried.deltas for preview in previews if preview.step.name == "canonicalize"), ())

    def rank(preview: PassPreview) -> tuple[bool, int]:
        only_folds = preview.step.name != "canonicalize" and preview.tried.deltas == folding_deltas
        return (only_folds, -preview.size)

    changing = sorted((preview for preview in previews if preview.tried.changed), key=rank)
    return changing + [preview for preview in previews if with_failed and preview.tried.problem]


def deltas_text(deltas: Sequence[tuple[str, int]], minus: str = "-", max_count: int = MAX_SHOWN_DELTAS) -> str:
    """Returns the numbers of added and removed ops: `+12 linalg.generic, -4 tosa.add`; names at most `max_count`."""
    texts = [f"{'+' if delta > 0 else minus}{abs(delta)} {name}" for name, delta in deltas[:max_count]]
    n_unnamed = len(deltas) - max_count
    if n_unnamed > 0:
        texts.append(f"{n_unnamed} more")
    return ", ".join(texts)


# ---- this compiler next to torch-mlir --------------------------------------------------------------------------------


class FrontendPipeline(NamedTuple):
    """A recipe, its title, and the phases that the other pipeline of the comparison does not have."""

    title: str
    recipe: Recipe
    phases: tuple[str, ...]


def frontend_pipelines(
    recipe: Recipe, presets: Sequence[Preset], dialect: Dialect
) -> tuple[FrontendPipeline, FrontendPipeline]:
    """Returns the pipelines of this compiler and of torch-mlir to `dialect`. Other settings are those of `recipe`."""
    frontend = recipe.frontend if recipe.frontend in OWN_FRONTENDS else "dynamo"
    if recipe.frontend == frontend:
        native_dialect = recipe.dialect
    else:
        native_dialect = dialect if dialect in dialects_of(frontend) else "linalg"
    native = with_frontend(recipe, presets, frontend, native_dialect).for_native()
    torch_mlir = with_frontend(recipe.for_native(), presets, TORCH_MLIR, dialect)
    native_preset, torch_mlir_preset = "default", preset_of(TORCH_MLIR, dialect)
    return (
        FrontendPipeline("this compiler", native, _distinct_phases(presets, native_preset, torch_mlir_preset)),
        FrontendPipeline(
            f"torch-mlir to {dialect}", torch_mlir, _distinct_phases(presets, torch_mlir_preset, native_preset)
        ),
    )


def _distinct_phases(presets: Sequence[Preset], name: str, other: str) -> tuple[str, ...]:
    """Returns the MLIR phases of the preset `name` that the preset `other` does not have."""
    phases = {preset.name: [phase for phase, language in preset.phases if language == "mlir"] for preset in presets}
    return tuple(phase for phase in phases[name] if phase not in phases[other])


def phase_stages(pipeline: FrontendPipeline, stages: Sequence[Stage]) -> list[tuple[StageKey, Stage]]:
    """Returns the last stage of each phase of the pipeline, in order, without failed stages."""
    last = {stage.phase: (key, stage) for key, stage in key_stages(stages) if stage.state != "failed"}
    return [last[phase] for phase in pipeline.phases if phase in last]
