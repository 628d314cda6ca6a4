"""The compilation that nobody watches gives the code of the one that is shown."""

from __future__ import annotations

import gc
from typing import Any

import msgspec
import pytest
import torch

from buddy.compiler.driver.compilation import CompilationError, Compiler
from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.convert_tasks_to_llvm import ConvertTasksToLlvm
from buddy.compiler.passes.pass_runner import _Diagnostics
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.runtime import LoadedProgram
from tests.models import stack
from tests.programs import assert_same, captured


@pytest.mark.parametrize("dialect", ["linalg", "tosa"])
@pytest.mark.parametrize("preset", ["default", "upstream"])
def test_both_hand_over_the_same_program(dialect: str, preset: str) -> None:
    found, recipe = captured(*stack(2)), default_recipe(preset=preset, dialect=dialect)  # type: ignore[arg-type]
    shown, straight = Compiler(found.graph).compile(recipe).artifact, compile_graph(found.graph, recipe)
    assert straight.arguments == shown.arguments
    assert (straight.results, straight.arena, straight.threads) == (shown.results, shown.arena, shown.threads)
    assert len(straight.objects) == len(shown.objects)
    model, x = stack(2)
    with torch.no_grad():
        assert_same(LoadedProgram(straight)(found.tensors), [model(x)])


def test_a_compiler_without_stages_says_the_same_of_the_nodes() -> None:
    found, recipe = captured(*stack(2)), default_recipe()
    compiler, noted = Compiler(found.graph), list[Any]()
    straight, shown = compiler.compile_without_stages(recipe, noted.append), compiler.compile(recipe)
    assert (straight.stages, straight.reused) == ((), 0)
    assert noted == [straight.assignments] == [shown.assignments]
    assert straight.artifact.arguments == shown.artifact.arguments
    unread = msgspec.structs.replace(recipe, backend_flags=("--unread",))
    assert compiler.compile_without_stages(unread).remarks[0] == compiler.compile(unread).remarks[0]


def test_nothing_of_a_compilation_stays_behind() -> None:
    """What a pass said, and with it a context and its IR, once stayed for good: megabytes for each compilation."""

    def held() -> list[Any]:
        gc.collect()
        return [found for found in gc.get_objects() if type(found) in (_Diagnostics, LocationSets, ir.Context)]

    before, graph = held(), captured(*stack(2)).graph
    compile_graph(graph, default_recipe())
    assert {id(found) for found in held()} <= {id(found) for found in before}


def test_the_graph_is_left_as_it_was() -> None:
    graph = captured(*stack(2)).graph
    before = str(graph)
    compile_graph(graph, default_recipe())
    assert str(graph) == before


def test_a_failure_is_the_same_diagnostic() -> None:
    graph, recipe = captured(*stack(2)).graph, Recipe(steps=(PassStep("no-such-pass"),))
    with pytest.raises(CompilationError) as straight:
        compile_graph(graph, recipe)
    with pytest.raises(CompilationError) as shown:
        Compiler(graph).compile(recipe)
    # Which pass was the last to rewrite the lines is told by the stages, which only one of them has.
    first, second = straight.value.diagnostic, shown.value.diagnostic
    assert second.where.startswith(first.where)
    assert msgspec.structs.replace(second, where=first.where) == first


def test_ir_that_does_not_verify_is_blamed_on_the_pass_that_left_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """IR is verified once, at the end; the pass at fault is found all the same."""

    def define_twice(_pass: ConvertTasksToLlvm, root: Any, _context: PassContext) -> None:
        block = root.regions[0].blocks[0]
        with ir.InsertionPoint(block):
            block.operations[0].operation.clone()

    monkeypatch.setattr(ConvertTasksToLlvm, "run", define_twice)
    graph, recipe = captured(*stack(2)).graph, default_recipe()
    with pytest.raises(CompilationError, match="redefinition") as straight:
        compile_graph(graph, recipe)
    step = straight.value.diagnostic.step
    assert step is not None
    assert recipe.steps[step].name == ConvertTasksToLlvm.name
    with pytest.raises(CompilationError) as shown:
        Compiler(graph).compile(recipe)
    # Which pass was the last to rewrite the lines is told by the stages, which only one of them has.
    first, second = straight.value.diagnostic, shown.value.diagnostic
    assert second.where.startswith(first.where)
    assert msgspec.structs.replace(second, where=first.where) == first


def test_what_is_no_machine_code_yet_is_refused() -> None:
    graph = captured(*stack(2)).graph
    with pytest.raises(CompilationError, match="not lowered to the LLVM dialect"):
        compile_graph(graph, Recipe(steps=default_recipe().steps[:-8]))
