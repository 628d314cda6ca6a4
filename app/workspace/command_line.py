"""The headless command that prints what the screen shows, and a graph as a Python script."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from buddy.app.workspace.files import write_whole, write_whole_bytes
from buddy.compiler.protocol import Script
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, PassStep, Recipe, preset_of


class ScreenState(NamedTuple):
    """What the screen shows: the pane, the stage as for `--stage`, and the stage that it is compared with.

    For an export, the pane is "export", and `words` are the arguments of the verb `export`.
    """

    pane: str
    stage: str = ""
    other: str = ""
    structural: bool = False
    graphs: int = 1
    words: tuple[str, ...] = ()


def command(recipe: Recipe, preset: Recipe | None, kept: Path, shown: ScreenState) -> str:
    """The command line; `kept` is the file of the recipe, for recipes that options cannot express."""
    nodes = ["dump", "--nodes"]
    verbs = {"graph": nodes, "source": nodes, "passes": ["stages"], "outputs": ["run"], "ir": ["dump"]}
    verb = {**verbs, "export": ["export", *shown.words]}[shown.pane]
    if shown.pane == "ir" and shown.stage:
        verb = ["dump", "--stage", shown.stage]
        if shown.other:
            verb = ["diff", "--stage", shown.other, "--stage", shown.stage, *["--structural"] * shown.structural]
    graph = ["--graph", str(recipe.graph)] * (shown.graphs > 1)
    words = ["buddy-tui", verb[0], recipe.source, *verb[1:], *_recipe_options(recipe, preset, kept), *graph]
    return shlex.join([*words, *(["--", *recipe.arguments] if recipe.arguments else [])])


def _recipe_options(recipe: Recipe, preset: Recipe | None, kept: Path) -> list[str]:
    """The options that turn the preset into this recipe, or `--recipe` with the file if that is not possible."""
    if preset is None:
        return ["--recipe", str(kept)]
    words = _frontend_options(recipe, preset)
    for name in ("partition", "checks", "threads", "backend", "target"):
        if getattr(recipe, name) != getattr(preset, name):
            words += [f"--{name}", str(getattr(recipe, name))]
    words += [f"--backend-flag={flag}" for flag in recipe.backend_flags]
    switched = _switches(recipe.steps, preset.steps)
    eager = [choice.node for choice in recipe.choices if choice.lowering == EAGER]
    if switched is None or len(eager) < len(recipe.choices) or recipe.opt_level != preset.opt_level:
        return ["--recipe", str(kept)]
    return words + switched + [word for node in eager for word in ("--eager", node)]


def _frontend_options(recipe: Recipe, preset: Recipe) -> list[str]:
    """The options for preset, frontend and dialect. For torch-mlir, frontend and dialect determine the preset."""
    if recipe.frontend == TORCH_MLIR and recipe.preset == preset_of(recipe.frontend, recipe.dialect):
        return ["--frontend", recipe.frontend, *["--dialect", recipe.dialect] * (recipe.dialect != "linalg")]
    words = [] if recipe.preset == "default" else ["--preset", recipe.preset]
    changed = [name for name in ("frontend", "dialect") if getattr(recipe, name) != getattr(preset, name)]
    return words + [word for name in changed for word in (f"--{name}", getattr(recipe, name))]


def _switches(steps: Sequence[PassStep], before: Sequence[PassStep]) -> list[str] | None:
    """`--disable` and `--enable` for the passes that differ; `None` if there are other differences."""
    if [replace(step, enabled=True) for step in steps] != [replace(step, enabled=True) for step in before]:
        return None
    words: list[str] = []
    for place, (step, other) in enumerate(zip(steps, before, strict=True)):
        if step.enabled != other.enabled:
            number = sum(each.name == step.name for each in steps[: place + 1])
            several = sum(each.name == step.name for each in steps) > 1
            words += ["--enable" if step.enabled else "--disable", f"{step.name}#{number}" if several else step.name]
    return words


def write_script(path: Path, script: Script) -> tuple[Path, Path]:
    """Write `script` to `path`, and its tensors to a `.npz` with the same name. Returns both paths.

    Raises `OSError`.
    """
    values = path.with_suffix(".npz")
    write_whole_bytes(values, script.values)
    write_whole(path, script.text.replace(f"{script.name}.npz", values.name))
    return path, values
