"""Capture, compile and run in this process: what the tests of the compiler's rooms start from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from buddy.compiler.driver.compilation import Compilation, CompilationError, Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.text.lines import StageText
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph
from tests.guarded_memory import run_guarded


def captured(function: Callable[..., Any], *args: torch.Tensor) -> CapturedGraph:
    """The one graph of `function(*args)`, without gradients."""
    with torch.no_grad():
        (graph,) = capture(function, args)
    return graph


class Line:
    """A captured program on its way through one compiler. `texts` are those of the last compilation, by stage name."""

    def __init__(self, function: Callable[..., Any], *args: torch.Tensor) -> None:
        self.program = captured(function, *args)
        self.compiler = Compiler(self.program.graph)
        self.stages: list[tuple[Stage, StageText]] = []

    def compile(self, recipe: Recipe | None = None) -> Compilation:
        self.stages = []
        return self.compiler.compile(recipe or default_recipe(), lambda *stage: self.stages.append(stage))

    def fail(self, recipe: Recipe) -> CompilationError:
        """The error that compiling `recipe` ends in."""
        try:
            self.compile(recipe)
        except CompilationError as error:
            return error
        raise AssertionError("the compilation did not fail")

    def text(self, name: str) -> str:
        """The text of the first stage called `name`."""
        return next(text.content for stage, text in self.stages if stage.name == name)

    def run(self, recipe: Recipe | None = None) -> list[torch.Tensor]:
        """The results, computed where nothing behind inputs and results may be read or written."""
        return run_guarded(LoadedProgram(self.compile(recipe).artifact), self.program.tensors, "last")


def step_number(recipe: Recipe, name: str) -> int:
    """The position of the first step called `name`."""
    return next(i for i, step in enumerate(recipe.steps) if step.name == name)


def without(recipe: Recipe, *names: str) -> Recipe:
    """The recipe with every step of these names switched off."""
    for i, step in enumerate(recipe.steps):
        if step.name in names:
            recipe = recipe.with_step(i, enabled=False)
    return recipe


def with_options(recipe: Recipe, name: str, *options: tuple[str, Any]) -> Recipe:
    return recipe.with_step(step_number(recipe, name), options=tuple(options))


def assert_same(ours: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor], labels: Sequence[str] = ()) -> None:
    """Within `torch.testing`'s tolerance for each dtype; NaN equals NaN; shapes and dtypes are equal."""
    names = list(labels) or [f"result {i}" for i in range(len(theirs))]
    for name, a, b in zip(names, ours, theirs, strict=True):
        torch.testing.assert_close(a, b, equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")
