"""The two pipelines that are compared to show a node in this compiler's IR next to torch-mlir's IR."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.session.stages import StageKey, key_stages
from buddy.app.workspace.frontends import dialects_of, with_frontend
from buddy.compiler.protocol import Preset, Stage
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, TORCH_MLIR, Dialect, Recipe, preset_of


class FrontendPipeline(NamedTuple):
    """A recipe, its title, and the phases that the other pipeline of the comparison does not have."""

    title: str
    recipe: Recipe
    phases: tuple[str, ...]


def frontend_pipelines(
    recipe: Recipe, presets: Sequence[Preset], dialect: Dialect
) -> tuple[FrontendPipeline, FrontendPipeline]:
    """Returns the pipelines of this compiler and of torch-mlir (to `dialect`) with the other settings of `recipe`."""
    frontend = recipe.frontend if recipe.frontend in OWN_FRONTENDS else "dynamo"
    default_dialect = dialect if dialect in dialects_of(frontend) else "linalg"
    native_dialect = recipe.dialect if recipe.frontend == frontend else default_dialect
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
