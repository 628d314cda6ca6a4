"""One recipe tried: what its time is held against."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import msgspec
import torch

from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.tools.tune.processes import TryRecipe
from buddy.compiler.tools.tune.worker import try_recipe
from tests.programs import captured


def test_eager_is_timed_on_the_same_threads_whatever_the_recipe_has() -> None:
    program = captured(lambda x: (x @ x).relu(), torch.rand(8, 8))
    threads: list[int] = []

    def eager(tensors: Any) -> Any:
        threads.append(torch.get_num_threads())
        return program.eager(tensors)

    recipe = msgspec.structs.replace(default_recipe(), threads=2)
    found = try_recipe(dataclasses.replace(program, eager=eager), TryRecipe(recipe, 30.0, math.inf, eager_threads=1))
    assert not found.problem
    assert found.ratio > 0
    timed = threads[1:]  # the first one gives the values to compare with
    assert timed
    assert set(timed) == {1}


def test_a_program_that_nothing_can_be_held_beside_is_not_tuned() -> None:
    program = dataclasses.replace(captured(lambda x: x.relu(), torch.rand(8)), eager=None)
    found = try_recipe(program, TryRecipe(default_recipe(), 30.0, math.inf))
    assert found.problem == "there is no eager program to compare with"


def test_a_precision_is_timed_only_within_the_maximum_error() -> None:
    """The results are right if they are those of the arithmetic; the error is that of the arithmetic from eager."""
    weights = torch.nn.Parameter(torch.randn(64, 64))
    program = captured(lambda x: x @ weights, torch.randn(32, 64))
    errors = {}
    for precision in ("f32", "bf16", "int8-dynamic"):
        recipe = msgspec.structs.replace(default_recipe(), precision=precision)
        found = try_recipe(program, TryRecipe(recipe, 30.0, math.inf, max_error=4e-3))
        errors[precision] = found.error
        assert bool(found.problem) == (precision == "int8-dynamic"), found
        assert (found.ratio > 0) == (precision != "int8-dynamic")
    assert found.problem == f"error {found.error:.1e} of eager's rms, more than 0.004"
    assert errors["f32"] == -1 < 1e-3 < errors["bf16"] < 4e-3 < errors["int8-dynamic"]
