"""Backends: what each takes, and that its phases are the stages it adds."""

from __future__ import annotations

import pytest

from buddy.compiler.driver.backends import (
    BACKENDS,
    GPU_BACKEND,
    NATIVE_BACKEND,
    plugin_backends,
    register_backend,
    select_backend,
)
from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.lowering import new_context
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import BACKENDS as NAMES
from buddy.compiler.protocol.recipe import Recipe
from tests.models import stack
from tests.programs import captured


def test_each_name_in_a_recipe_is_a_backend() -> None:
    assert tuple(BACKENDS) == NAMES
    assert all(found.name == name for name, found in BACKENDS.items())


def test_the_passes_of_a_recipe_run_for_backends_that_take_llvm() -> None:
    assert all((found.takes == "llvm") == Recipe(backend=name).runs_passes for name, found in BACKENDS.items())


def test_a_module_with_kernels_is_for_the_gpu() -> None:
    with new_context():
        kernels = ir.Module.parse("module { gpu.module @k { } }").operation
        plain = ir.Module.parse("module { }").operation
    assert select_backend(Recipe(), kernels) is GPU_BACKEND
    assert select_backend(Recipe(), plain) is NATIVE_BACKEND


def test_the_last_stages_are_the_phases_of_the_backend() -> None:
    graph = captured(*stack(1)).graph
    for preset, backend in (("default", NATIVE_BACKEND), ("gpu", GPU_BACKEND)):
        stages = Compiler(graph).compile(default_recipe(preset=preset)).stages
        assert tuple(stage.phase for stage in stages[-2:]) == backend.phases


@pytest.mark.parametrize(
    ("name", "takes", "why"),
    [("native", "llvm", "choose a new name"), ("My One", "llvm", "choose a new name"), ("mine", "toplevel", "takes")],
)
def test_a_backend_with_a_wrong_name_or_level_is_not_registered(name: str, takes: str, why: str) -> None:
    before = plugin_backends()
    found = type("Mine", (), {"name": name, "takes": takes})
    with pytest.raises(ValueError, match=why):
        register_backend(found)
    assert plugin_backends() == before
