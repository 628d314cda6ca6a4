"""Warms this process up with the work that every trial would do first: imports, tables of kernels and polynomials."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.frontend.capture import capture
from buddy.compiler.ops import registries
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.worker_messages import Done, Reply
from buddy.compiler.tools.bisect.trials import RecipeTrials


def warm_up(trials: RecipeTrials, dialect: Any) -> None:
    """Compiles a small program, in a child first, because a plug-in's replacement of our code may crash."""
    own_passes()
    registries(dialect)
    recipe = default_recipe(dialect=dialect)
    (captured,) = capture(_program, (torch.ones(2, 16),))

    def work(_channel: Any) -> Reply:
        compile_graph(captured.graph, recipe)
        return Done()

    if isinstance(trials.apart(work, Done, seconds=_PATIENCE), Done):
        compile_graph(captured.graph, recipe)


# Time limit in seconds, many times what it takes.
_PATIENCE = 10.0


def _program(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(functional.layer_norm(functional.gelu(functional.linear(x, x)), (2,)), -1)
