"""Recipes and stages for a comparison of this compiler's IR with torch-mlir's IR. No Textual."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.session.stages import Key, keyed
from buddy.app.workspace.frontends import flavours_of, on_road
from buddy.compiler.protocol import Preset, Stage
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, TORCH_MLIR, Flavour, Recipe, preset_of


class Road(NamedTuple):
    """A recipe, its title, and the phases that only this pipeline has."""

    title: str
    recipe: Recipe
    phases: tuple[str, ...]


def roads(recipe: Recipe, presets: Sequence[Preset], flavour: Flavour) -> tuple[Road, Road]:
    """The pipelines of this compiler and of torch-mlir (to `flavour`) for `recipe`, which may be one of them."""
    own = recipe.frontend if recipe.frontend in OWN_FRONTENDS else "dynamo"
    first = flavour if flavour in flavours_of(own) else "linalg"
    ours = on_road(recipe, presets, own, recipe.flavour if recipe.frontend == own else first)
    theirs = on_road(recipe.natively(), presets, TORCH_MLIR, flavour)
    default, imported = "default", preset_of(TORCH_MLIR, flavour)
    return (
        Road("this compiler", ours.natively(), _own_phases(presets, default, imported)),
        Road(f"torch-mlir to {flavour}", theirs, _own_phases(presets, imported, default)),
    )


def _own_phases(presets: Sequence[Preset], name: str, other: str) -> tuple[str, ...]:
    """The phases that a preset has and `other` does not have."""
    of = {preset.name: [phase for phase, language in preset.phases if language == "mlir"] for preset in presets}
    return tuple(phase for phase in of[name] if phase not in of[other])


def levels(road: Road, stages: Sequence[Stage]) -> list[tuple[Key, Stage]]:
    """The last stage of each phase of the pipeline, in order, without failed stages."""
    last = {stage.phase: (key, stage) for key, stage in keyed(stages) if stage.state != "failed"}
    return [last[phase] for phase in road.phases if phase in last]
