"""Every node beside eager: what is seen, whose fault an error is, where NaN comes from, and what changes nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from buddy.compiler.driver.observation import compile_observed
from buddy.compiler.graph.node import Op
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.ops import linalg
from buddy.compiler.ops.utils import Registry, value_of
from buddy.compiler.passes import base
from buddy.compiler.protocol.numerics import NumericsReport, Reference
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import symbol_values
from buddy.compiler.runtime.node_comparison import compare_nodes
from buddy.compiler.runtime.torch_values import fingerprints
from tests.models import stack
from tests.programs import captured

WRONG_EPSILON = 0.5

faulty = Registry()
_right = linalg.ops_registry["NativeLayerNormOp"]


@faulty.lowering("NativeLayerNormOp")
def layer_norm_with_a_wrong_epsilon(node: Op, symbol_table: Any) -> Any:
    *others, _epsilon = node.args
    wrong = type(node)()
    wrong.name, wrong.target, wrong.metas, wrong.multiple = node.name, node.target, node.metas, node.multiple
    wrong._arguments = [*others, WRONG_EPSILON]
    return _right(wrong, symbol_table)


standing_still = Registry()


@standing_still.lowering("TOp")
def transpose_that_moves_nothing(node: Op, symbol_table: Any) -> Any:
    return value_of(node.args[0], symbol_table)


@dataclass(frozen=True)
class FlipSigns(base.MlirPass):
    """Differences become sums in generics that come from a node whose stable name holds `nodes`."""

    name: ClassVar[str] = "flip-signs"
    summary: ClassVar[str] = "a fault: x - y becomes x + y"

    nodes: str = ""

    def run(self, root: Any, context: base.PassContext) -> None:
        for op in find_ops(root, "arith.subf"):
            names = context.locations.sets[context.locations.number_of(op.parent.location)]
            if any(self.nodes in name for name in names):
                with ir.InsertionPoint(op), op.location:
                    flipped = arith.AddFOp(*op.operands)
                op.results[0].replace_all_uses_with(flipped.result)
                op.erase()


def compared(
    program: CapturedGraph, recipe: Recipe | None = None, first: Any = None, reference: Reference = "eager", **how: bool
) -> NumericsReport:
    symbols = symbol_values(program.graph, program.tensors, program.numbers)
    found = compile_observed(program.graph, recipe or default_recipe(), first, symbols=symbols, **how)
    return compare_nodes(program, found, reference=reference)


def flipping(nodes: str) -> Recipe:
    """The default recipe with a planted pass in front of fusion."""
    recipe = default_recipe()
    place = next(i for i, step in enumerate(recipe.steps) if step.name == "windows-to-generics")
    step = PassStep("flip-signs", options=(("nodes", nodes),))
    return Recipe(steps=(*recipe.steps[:place], step, *recipe.steps[place:]))


@pytest.fixture
def flips(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pass of `flipping` is registered, for as long as one test takes."""
    monkeypatch.setitem(base._REGISTRY, FlipSigns.name, FlipSigns)


@pytest.fixture(scope="module")
def model() -> CapturedGraph:
    return captured(*stack())


@pytest.fixture(scope="module")
def healthy(model: CapturedGraph) -> NumericsReport:
    return compared(model)


def test_a_healthy_program_is_within_its_tolerances_everywhere(healthy: NumericsReport) -> None:
    assert healthy.ok, healthy.first
    assert healthy.origins == ()
    assert not healthy.notes


def test_values_are_seen_where_they_lie_in_memory_and_fused_ones_are_not(healthy: NumericsReport) -> None:
    seen = {found.node: found.value_state for found in healthy.nodes}
    for layer in ("layers.0", "layers.1", "layers.2"):
        assert seen[f"{layer}/gelu.0"] == "observed"
        assert seen[f"{layer}/add.0"] == "observed"
        assert seen[f"{layer}.up/addmm.0"] == "fused"
    assert all(found.value_state == "observed" for found in healthy.nodes if found.error is not None)
    assert [found.node for found in healthy.nodes if found.node in healthy.results and found.error is None] == []


def test_each_node_has_an_error_of_its_own_and_equal_ones_share_a_program(model: CapturedGraph) -> None:
    found = compile_observed(model.graph, default_recipe())
    alone = [name for program in found.node_programs for _, results in program.uses for name, _ in results]
    assert {name for name in alone if "gelu" in name} == {f"layers.{i}/gelu.0" for i in range(3)}
    assert len(found.node_programs) < len(alone) / 2


def test_seeing_every_value_is_told_to_change_the_program(model: CapturedGraph) -> None:
    report = compared(model, every=True, own_errors=False)
    assert report.ok
    assert {found.value_state for found in report.nodes if found.error} == {"observed", "materialised"}
    assert "prevents their fusion" in report.notes[0]


def test_a_lowering_with_a_wrong_epsilon_is_named_by_its_own_error(model: CapturedGraph) -> None:
    report = compared(model, first=faulty)
    assert (report.first, report.first_by) == ("layers.0.norm/getitem.0", "own")
    wrong = {found.node for found in report.nodes if found.own_error is not None and not found.own_error.ok}
    assert wrong == {f"layers.{i}.norm/getitem.0" for i in range(3)}


def test_what_moves_elements_is_not_right_because_it_moved_equal_ones() -> None:
    program = captured(lambda a, b: (a.t() + 1, b.t() + 1), torch.ones(4, 4), torch.rand(4, 4))
    report = compared(program, first=standing_still)
    own = {found.node: found.own_error for found in report.nodes if found.node.startswith("t.")}
    assert [found is not None and found.ok for found in own.values()] == [True, False]
    assert (report.first, report.first_by) == (list(own)[1], "own")


def differences(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.relu((a.exp() - b) * 2).sum(-1)


@pytest.mark.usefixtures("flips")
def test_a_pass_that_flips_every_sign_is_found_at_the_node_that_it_breaks() -> None:
    program = captured(differences, torch.rand(4, 8), torch.rand(4, 8))
    report = compared(program, flipping(""))
    assert (report.first, report.first_by) == ("sub.0", "own")


@pytest.mark.usefixtures("flips")
def test_a_pass_that_flips_one_sign_is_found_where_it_shows_with_the_nodes_that_nobody_sees() -> None:
    program = captured(differences, torch.rand(4, 8), torch.rand(4, 8))
    report = compared(program, flipping("sub.0"))
    assert report.first_by == "error"
    assert "sub.0" in (report.first, *report.suspects)
    assert all(found.own_error is None or found.own_error.ok for found in report.nodes)


def test_double_precision_is_a_reference_too(model: CapturedGraph, healthy: NumericsReport) -> None:
    report = compared(model, reference="float64")
    assert report.ok
    assert report.reference == "float64"
    errors = {found.node: found.own_error.largest for found in report.nodes if found.own_error}
    # Eager itself is not exact: a product is off from the right result where both happen to agree.
    assert any(errors[found.node] > found.own_error.largest for found in healthy.nodes if found.own_error)
    assert max(errors.values()) < 1e-5


def not_finite(a: torch.Tensor) -> torch.Tensor:
    logarithms = (a - 1).log()
    return (logarithms * 0 + a).softmax(-1)


def test_nan_and_infinity_are_traced_to_where_they_begin() -> None:
    report = compared(captured(not_finite, torch.tensor([1.0, 2.0, 3.0])))
    origins = {(origin.kind, origin.side): origin for origin in report.origins}
    assert {side for kind, side in origins if kind == "inf"} == {"eager", "compiled"}
    assert {origin.node for (kind, _), origin in origins.items() if kind == "inf"} == {"log.0"}
    assert {origin.node for (kind, _), origin in origins.items() if kind == "nan"} == {"mul.0"}
    assert not any(origin.from_graph_input for origin in report.origins)
    assert report.ok


def test_a_nan_that_an_input_has_is_the_inputs() -> None:
    report = compared(captured(lambda a: a * 2 + 1, torch.tensor([1.0, torch.nan])))
    assert {(origin.node, origin.from_graph_input) for origin in report.origins if origin.kind == "nan"} == {
        ("mul.0", True)
    }


def test_a_nan_that_is_a_number_read_as_another_type_begins_there() -> None:
    report = compared(
        captured(lambda a: (a + 1).view(torch.float32) * 2, torch.tensor([0x7FBFFFFF, 5], dtype=torch.int32))
    )
    (node,) = {origin.node for origin in report.origins if origin.kind == "nan" and origin.side == "eager"}
    assert node.startswith("view")


def of_some_size(a: torch.Tensor) -> torch.Tensor:
    return (a.exp() / a.shape[0]).softmax(-1) + torch.arange(a.shape[0])[:, None]


def test_nodes_of_sizes_that_a_call_tells_are_compiled_alone_for_those_of_the_call() -> None:
    a = torch.rand(5, 8)
    torch._dynamo.mark_dynamic(a, 0)
    program = captured(of_some_size, a)
    assert program.graph.symbols
    report = compared(program)
    assert report.ok, report.first
    assert all(found.own_error is not None for found in report.nodes), [found.why for found in report.nodes]


def dropped(a: torch.Tensor) -> torch.Tensor:
    return nn.functional.dropout(a @ a, 0.5) + torch.rand_like(a)


def counting(a: torch.Tensor) -> torch.Tensor:
    a.add_(1)
    return a * 2


@pytest.mark.parametrize("function", [dropped, counting], ids=["random numbers", "an input that is written to"])
def test_both_sides_see_the_same_numbers(function: Callable[[torch.Tensor], torch.Tensor]) -> None:
    program = captured(function, torch.rand(4, 4))
    before = fingerprints(program.tensors)
    report = compared(program)
    assert report.ok, report.first
    assert fingerprints(program.tensors) == before


def test_values_are_let_go_of_when_they_have_been_compared(model: CapturedGraph) -> None:
    found = dataclasses.replace(model)
    report = compared(found, own_errors=False)
    assert all(each.own_error is None for each in report.nodes)
    assert report.ok
