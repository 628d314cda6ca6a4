"""Changes the frontend and the dialect of recipes. Does not import Textual."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from buddy.compiler.protocol import Preset
from buddy.compiler.protocol.recipe import NATIVE, TORCH_MLIR, Dialect, Frontend, Recipe, preset_of
from buddy.compiler.protocol.recipe import dialects_of as dialects_of

# A description of each frontend.
FRONTEND_SUMMARIES: Mapping[Frontend, str] = {
    "dynamo": "captured by TorchDynamo, lowered node by node",
    "export": "captured by torch.export, lowered node by node",
    "torch-mlir": "captured by TorchDynamo, imported and lowered by torch-mlir",
}


def with_steps_of(recipe: Recipe, preset: Recipe) -> Recipe:
    """Returns the recipe with the steps of a preset.

    If either uses torch-mlir, also with the preset's frontend and dialect.
    """
    if TORCH_MLIR in (preset.frontend, recipe.frontend):
        recipe = replace(recipe, frontend=preset.frontend, dialect=preset.dialect)
    return replace(recipe, preset=preset.preset, steps=preset.steps)


def with_preset(recipe: Recipe, presets: Sequence[Preset], name: str = "") -> Recipe:
    """Returns the recipe with the steps of the preset `name`.

    By default, it is the preset that the recipe names, or if that is "default", the preset for its frontend. Raises
    `ValueError` if the preset is unknown.
    """
    named = recipe.preset if recipe.preset != "default" else ""
    name = name or named or preset_of(recipe.frontend, recipe.dialect)
    for preset in presets:
        if preset.name == name:
            return with_steps_of(recipe, preset.recipe)
    raise ValueError(f"unknown preset {name!r}; known: {', '.join(preset.name for preset in presets)}")


def with_frontend(recipe: Recipe, presets: Sequence[Preset], frontend: Frontend, dialect: Dialect) -> Recipe:
    """Returns the recipe with that frontend and dialect.

    A change from or to torch-mlir also replaces the steps by a preset's. Raises `ValueError` for a dialect that the
    frontend does not support.
    """
    if dialect not in dialects_of(frontend):
        raise ValueError(f"{dialect} needs the frontend {TORCH_MLIR}: choose that frontend too")
    is_change = (frontend, dialect) != (recipe.frontend, recipe.dialect)
    if is_change and TORCH_MLIR in (frontend, recipe.frontend):
        # torch-mlir has a separate pipeline for each dialect.
        recipe = with_preset(recipe, presets, preset_of(frontend, dialect))
    return replace(recipe, frontend=frontend, dialect=dialect)


def apply_overrides(recipe: Recipe, presets: Sequence[Preset], overrides: Mapping[str, Any]) -> Recipe:
    """Returns the recipe with the fields in `overrides`, which come from a command line.

    Raises `ValueError` like `with_frontend`, and for backend flags if the backend is the native one.
    """
    fields = dict(overrides)
    if fields.get("backend_flags") and fields.get("backend", recipe.backend) == NATIVE:
        raise ValueError("--backend-flag does not apply to the native backend: select another one with --backend")
    frontend, dialect = fields.pop("frontend", recipe.frontend), fields.pop("dialect", recipe.dialect)
    return replace(with_frontend(recipe, presets, frontend, dialect), **fields)
