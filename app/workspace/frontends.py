"""Changes the frontend and the target dialect of recipes. No Textual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from buddy.compiler.protocol import Preset
from buddy.compiler.protocol.recipe import NATIVE, TORCH_MLIR, Flavour, Frontend, Recipe, preset_of
from buddy.compiler.protocol.recipe import flavours_of as flavours_of

# A description of each frontend.
SUMMARIES: Mapping[Frontend, str] = {
    "dynamo": "captured by TorchDynamo, lowered node by node",
    "export": "captured by torch.export, lowered node by node",
    "torch-mlir": "captured by TorchDynamo, imported and lowered by torch-mlir",
}


def from_preset(recipe: Recipe, preset: Recipe) -> Recipe:
    """The recipe with the steps of a preset, and with its frontend and flavour if it defines them."""
    if TORCH_MLIR in (preset.frontend, recipe.frontend):
        recipe = replace(recipe, frontend=preset.frontend, flavour=preset.flavour)
    return replace(recipe, preset=preset.preset, steps=preset.steps)


def on_road(recipe: Recipe, presets: Sequence[Preset], frontend: Frontend, flavour: Flavour) -> Recipe:
    """The recipe with that frontend and flavour. torch-mlir has a separate pipeline for each flavour.

    Raises `ValueError` for a flavour that the frontend does not support.
    """
    if flavour not in flavours_of(frontend):
        raise ValueError(f"{flavour} needs the frontend {TORCH_MLIR}: choose that frontend too")
    changed = (frontend, flavour) != (recipe.frontend, recipe.flavour)
    if changed and TORCH_MLIR in (frontend, recipe.frontend):
        name = preset_of(frontend, flavour)
        recipe = from_preset(recipe, next(preset.recipe for preset in presets if preset.name == name))
    return replace(recipe, frontend=frontend, flavour=flavour)


def as_wanted(recipe: Recipe, presets: Sequence[Preset], wanted: Mapping[str, Any]) -> Recipe:
    """The recipe with the fields in `wanted`, which come from a command line.

    Raises `ValueError` like `on_road`, and for flags of a backend without that backend.
    """
    others = dict(wanted)
    if others.get("backend_flags") and others.get("backend", recipe.backend) == NATIVE:
        raise ValueError("--backend-flag needs another backend: give --backend too")
    frontend, flavour = others.pop("frontend", recipe.frontend), others.pop("flavour", recipe.flavour)
    return replace(on_road(recipe, presets, frontend, flavour), **others)
