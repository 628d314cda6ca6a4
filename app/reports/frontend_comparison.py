"""Recipes and stages for a comparison of this compiler's IR with torch-mlir's IR. No Textual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.session.stages import Key, key_stages
from buddy.app.workspace.frontends import dialects_of, with_frontend
from buddy.compiler.protocol import Preset, Stage
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, TORCH_MLIR, Dialect, Recipe, preset_of


class FrontendPipeline(NamedTuple):
    """A recipe, its title, and the phases that only this pipeline has."""

    title: str
    recipe: Recipe
    phases: tuple[str, ...]


def frontend_pipelines(
    recipe: Recipe, presets: Sequence[Preset], dialect: Dialect
) -> tuple[FrontendPipeline, FrontendPipeline]:
    """The pipelines of this compiler and of torch-mlir (to `dialect`) for `recipe`, which may be one of them."""
    own = recipe.frontend if recipe.frontend in OWN_FRONTENDS else "dynamo"
    first = dialect if dialect in dialects_of(own) else "linalg"
    ours = with_frontend(recipe, presets, own, recipe.dialect if recipe.frontend == own else first)
    theirs = with_frontend(recipe.natively(), presets, TORCH_MLIR, dialect)
    default, imported = "default", preset_of(TORCH_MLIR, dialect)
    return (
        FrontendPipeline("this compiler", ours.natively(), _own_phases(presets, default, imported)),
        FrontendPipeline(f"torch-mlir to {dialect}", theirs, _own_phases(presets, imported, default)),
    )


def _own_phases(presets: Sequence[Preset], name: str, other: str) -> tuple[str, ...]:
    """The phases that a preset has and `other` does not have."""
    of = {preset.name: [phase for phase, language in preset.phases if language == "mlir"] for preset in presets}
    return tuple(phase for phase in of[name] if phase not in of[other])


def phase_stages(pipeline: FrontendPipeline, stages: Sequence[Stage]) -> list[tuple[Key, Stage]]:
    """The last stage of each phase of the pipeline, in order, without failed stages."""
    last = {stage.phase: (key, stage) for key, stage in key_stages(stages) if stage.state != "failed"}
    return [last[phase] for phase in pipeline.phases if phase in last]
