"""Recipes and their options: changes a recipe to a preset or a frontend, and applies the options of a command line.

In the other direction, `headless_command` expresses a recipe as options of a command that prints what the screen shows.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from buddy.compiler.protocol import Preset
from buddy.compiler.protocol.recipe import (
    EAGER,
    NATIVE,
    TORCH_MLIR,
    Dialect,
    Frontend,
    PassStep,
    Recipe,
    dialects_of,
    preset_of,
)

# ---- presets and frontends -------------------------------------------------------------------------------------------


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

    By default, `name` is the recipe's preset, or if that is "default", the preset for the recipe's frontend and
    dialect. Raises `ValueError` if the preset is unknown.
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


# ---- the command line ------------------------------------------------------------------------------------------------


class ScreenState(NamedTuple):
    """What the screen shows: the pane, the stage as for `--stage`, and the stage that it is compared with.

    `structural` says whether the comparison is structural. `n_graphs` is the number of graphs of the program. For an
    export, the pane is "export", and `export_words` are the arguments of the verb `export`.
    """

    pane: str
    stage: str = ""
    compared_stage: str = ""
    structural: bool = False
    n_graphs: int = 1
    export_words: tuple[str, ...] = ()


def headless_command(recipe: Recipe, preset: Recipe | None, recipe_file: Path, screen: ScreenState) -> str:
    """Returns the command line that prints what `screen` describes under `recipe`.

    The command refers to `recipe_file` if options cannot express how the recipe differs from `preset`, or if `preset`
    is `None`.
    """
    verb, *verb_options = _verb_words(screen)
    words = ["buddy-tui", verb, recipe.source, *verb_options, *_recipe_options(recipe, preset, recipe_file)]
    if screen.n_graphs > 1:
        words += ["--graph", str(recipe.graph)]
    if recipe.arguments:
        words += ["--", *recipe.arguments]
    return shlex.join(words)


def _verb_words(screen: ScreenState) -> list[str]:
    """Returns the verb that prints what `screen` describes, then the verb's options."""
    if screen.pane == "export":
        return ["export", *screen.export_words]
    if screen.pane == "ir" and screen.stage:
        if not screen.compared_stage:
            return ["dump", "--stage", screen.stage]
        stages = ["--stage", screen.compared_stage, "--stage", screen.stage]
        return ["diff", *stages, *(["--structural"] if screen.structural else [])]
    nodes = ["dump", "--nodes"]
    # No verb prints the pane of a plug-in, so print the graph that the plug-in's pane is about.
    verbs = {"graph": nodes, "source": nodes, "plugin": nodes, "passes": ["stages"], "outputs": ["run"], "ir": ["dump"]}
    return verbs[screen.pane]


def _recipe_options(recipe: Recipe, preset: Recipe | None, recipe_file: Path) -> list[str]:
    """Returns the options that turn the preset into this recipe; if that is not possible, `--recipe` with the file."""
    if preset is None:
        return ["--recipe", str(recipe_file)]
    words = _frontend_options(recipe, preset)
    for name in ("partition", "checks", "threads", "precision", "backend", "target"):
        if getattr(recipe, name) != getattr(preset, name):
            words += [f"--{name}", str(getattr(recipe, name))]
    words += [f"--backend-flag={flag}" for flag in recipe.backend_flags]
    if recipe.llvm_stages:
        words.append("--llvm-passes")
    words += [word for name in recipe.llvm_disabled for word in ("--disable-llvm-pass", name)]
    switches = _pass_switches(recipe.steps, preset.steps)
    eager_nodes = [choice.node for choice in recipe.choices if choice.lowering == EAGER]
    has_choices = len(eager_nodes) < len(recipe.choices) or bool(recipe.precisions)
    if switches is None or has_choices or recipe.opt_level != preset.opt_level:
        return ["--recipe", str(recipe_file)]
    return words + switches + [word for node in eager_nodes for word in ("--eager", node)]


def _frontend_options(recipe: Recipe, preset: Recipe) -> list[str]:
    """Returns the options for preset, frontend and dialect. For torch-mlir, the last two determine the preset."""
    if recipe.frontend == TORCH_MLIR and recipe.preset == preset_of(recipe.frontend, recipe.dialect):
        dialect = ["--dialect", recipe.dialect] if recipe.dialect != "linalg" else []
        return ["--frontend", recipe.frontend, *dialect]
    words = [] if recipe.preset == "default" else ["--preset", recipe.preset]
    changed = [name for name in ("frontend", "dialect") if getattr(recipe, name) != getattr(preset, name)]
    return words + [word for name in changed for word in (f"--{name}", getattr(recipe, name))]


def _pass_switches(steps: Sequence[PassStep], preset_steps: Sequence[PassStep]) -> list[str] | None:
    """Returns `--enable` and `--disable` for passes that are enabled in one list only; `None` for other differences."""
    if [replace(step, enabled=True) for step in steps] != [replace(step, enabled=True) for step in preset_steps]:
        return None
    names = [step.name for step in steps]
    words: list[str] = []
    for index, (step, preset_step) in enumerate(zip(steps, preset_steps, strict=True)):
        if step.enabled != preset_step.enabled:
            number = names[: index + 1].count(step.name)
            name = f"{step.name}#{number}" if names.count(step.name) > 1 else step.name
            words += ["--enable" if step.enabled else "--disable", name]
    return words
