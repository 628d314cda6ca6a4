"""The partition: which runs of nodes become functions, which call sites share one, and what that changes."""

from __future__ import annotations

import sys

import pytest
import torch
from torch import nn

from buddy.compiler.graph import partition
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.partition import Partition, PartitionCall, main_function, outline_layers
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import Recipe
from tests.models import Block, Stack, stack
from tests.programs import Line, assert_same, captured


@pytest.fixture(scope="module")
def graph() -> Graph:
    return captured(*stack()).graph


def calls(parts: Partition) -> list[PartitionCall]:
    return [item for item in parts.body if isinstance(item, PartitionCall)]


def test_equal_layers_share_one_function(graph: Graph) -> None:
    parts = outline_layers(graph, {})
    assert [function.name for function in parts.functions] == ["layers"]
    assert [call.function for call in calls(parts)] == ["layers"] * 3


def test_what_stands_alone_stays_in_the_main_function(graph: Graph) -> None:
    inside = outline_layers(graph, {}).function_of()
    outside = [op for op in graph.operations if op.name not in inside]
    assert {op.module.split(".")[0] for op in outside} == {"embed", "head", ""}


def test_a_function_has_a_call_site_per_layer_in_step(graph: Graph) -> None:
    (function,) = outline_layers(graph, {}).functions
    position = next(i for i, op in enumerate(function.nodes) if op.target == "gelu.default")
    assert function.origins(position) == [f"layers.{i}/gelu.0" for i in range(3)]


def test_a_function_knows_which_of_its_inputs_are_parameters(graph: Graph) -> None:
    (function,) = outline_layers(graph, {}).functions
    assert function.is_parameter.count(True) == 6
    assert function.is_parameter.count(False) == 1


def test_the_whole_partition_makes_no_functions(graph: Graph) -> None:
    assert partition.as_one_function(graph) == Partition((), tuple(graph.operations))


def test_a_choice_at_one_call_site_gives_that_site_its_own_copy(graph: Graph) -> None:
    parts = outline_layers(graph, {"layers.1/gelu.0": "eager"})
    assert [call.function for call in calls(parts)] == ["layers", "layers_v2", "layers"]


def test_the_same_choice_at_all_call_sites_keeps_one_function(graph: Graph) -> None:
    parts = outline_layers(graph, {f"layers.{i}/gelu.0": "eager" for i in range(3)})
    assert len(parts.functions) == 1


def test_layers_of_other_shapes_are_other_functions() -> None:
    model = Stack()
    model.layers.extend([nn.Linear(8, 6), Block(6), Block(6)])
    model.head = nn.Linear(6, 2)
    parts = outline_layers(captured(model, torch.randn(5, 4)).graph, {})
    assert [call.function for call in calls(parts)] == ["layers"] * 3 + ["layers_v2"] * 2


def test_functions_of_different_lists_have_different_names() -> None:
    class Lists(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([*(Block(4) for _ in range(2)), nn.Linear(4, 6), *(Block(6) for _ in range(2))])
            self.layers_v2 = nn.ModuleList([nn.Linear(6, 8), *(Block(8) for _ in range(2))])
            self.forward_ = nn.Linear(8, 2)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in (*self.layers, *self.layers_v2):
                x = layer(x)
            return self.forward_(x)

    model, x = Lists(), torch.randn(5, 4)
    names = [function.name for function in outline_layers(captured(model, x).graph, {}).functions]
    assert len(names) == len(set(names)) == 3
    with torch.no_grad():
        assert_same(Line(model, x).run(), [model(x)])


def test_a_chain_of_ops_on_a_parameter_may_be_longer_than_the_recursion_limit() -> None:
    class Decayed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = self.weight
            for _ in range(sys.getrecursionlimit()):
                weight = torch.sin(weight)
            return x * weight

    graph = captured(Decayed(), torch.randn(4)).graph
    assert [op for part in outline_layers(graph, {}).functions for op in part.nodes]


def test_items_of_a_model_that_is_a_list_are_layers() -> None:
    parts = outline_layers(captured(nn.Sequential(Block(4), Block(4)), torch.randn(3, 4)).graph, {})
    assert [call.function for call in calls(parts)] == ["layer", "layer"]


class Prepared(nn.Module):
    """Layers whose weights are all transposed before the first one, as quantised weights are converted in captures."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(4, 4)) for _ in range(layers))
        self.layers = nn.ModuleList(Multiplying() for _ in range(layers))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        prepared = [weight.t() for weight in self.weights]
        for layer, weight in zip(self.layers, prepared, strict=True):
            x = layer(x, weight)
        return x


class Multiplying(nn.Module):
    """Seven nodes around a product of a weight that it is given."""

    def forward(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.sin(torch.cos(torch.sin(x) @ weight).sin().cos().sin())


def test_what_reads_parameters_alone_belongs_to_its_reader() -> None:
    """Otherwise the weights would be inputs of the layers that are no parameters, and be packed in each call."""
    parts = outline_layers(captured(Prepared(3), torch.randn(3, 4)).graph, {})
    assert [call.function for call in calls(parts)] == ["layers"] * 3
    (function,) = parts.functions
    assert [type(op).__name__ for op in function.nodes].count("TOp") == 1
    assert sorted(function.is_parameter) == [False, True]


def test_programs_that_prepare_all_weights_first_compute_what_eager_computes() -> None:
    model, x = Prepared(3), torch.randn(3, 4)
    with torch.no_grad():
        assert_same(Line(model, x).run(), [model(x)])


def test_short_runs_stay_where_they_are() -> None:
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(4)])
    assert outline_layers(captured(model, torch.randn(3, 4)).graph, {}).functions == ()


def test_a_layer_that_stands_once_stays_where_it_is() -> None:
    assert outline_layers(captured(nn.Sequential(Block(4)), torch.randn(3, 4)).graph, {}).functions == ()


def test_the_main_function_takes_all_placeholders(graph: Graph) -> None:
    main = main_function(graph, "forward")
    assert [op for op, _ in main.inputs] == graph.placeholders
    assert [op.name for op, _ in main.outputs] == [op.name for op in graph.results]


@pytest.fixture(scope="module")
def line() -> Line:
    """The stack, compiled under the default recipe."""
    line = Line(*stack())
    line.compile()
    return line


def compiled_functions(line: Line, recipe: Recipe) -> dict[str, str]:
    return {a.node: a.function for a in line.compile(recipe).assignments}


def test_a_shared_function_is_compiled_once(line: Line) -> None:
    assert line.text("lower").count("func.func") == 2
    assert line.text("lower").count("call @layers") == 3
    assert line.text("codegen").count("\nlayers:") + line.text("codegen").startswith("layers:") == 1


def test_lines_of_a_shared_function_come_from_a_node_of_each_site(line: Line) -> None:
    text = next(text for stage, text in line.stages if stage.name == "lower")
    number = next(i for i, found in enumerate(text.content.splitlines()) if "math.erf" in found)
    assert text.sets[text.line_sets[number]] == tuple(f"layers.{i}/gelu.0" for i in range(3))


def test_a_call_comes_from_the_nodes_of_its_own_site(line: Line) -> None:
    text = next(text for stage, text in line.stages if stage.name == "lower")
    numbers = [i for i, found in enumerate(text.content.splitlines()) if "call @layers" in found]
    for site, number in enumerate(numbers):
        assert all(name.startswith(f"layers.{site}") for name in text.sets[text.line_sets[number]])


@pytest.mark.parametrize("parts", ["layers", "whole"])
def test_both_partitions_compute_what_eager_computes(parts: str) -> None:
    model, x = stack()
    recipe = Recipe(partition=parts, steps=default_recipe().steps)  # type: ignore[arg-type]
    line = Line(model, x)
    with torch.no_grad():
        assert_same(line.run(recipe), [model(x)])
    assert len(set(compiled_functions(line, recipe).values())) == (2 if parts == "layers" else 1)


def test_a_choice_at_one_site_computes_what_eager_computes() -> None:
    model, x = stack()
    line = Line(model, x)
    recipe = default_recipe().with_choice("layers.1/gelu.0", "eager")
    with torch.no_grad():
        assert_same(line.run(recipe), [model(x)])
    assert compiled_functions(line, recipe)["layers.1/gelu.0"] == "layers_v2"


class Different(nn.Module):
    """Layers of which no two are equal."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        widths = (64 + 8 * number for number in range(layers))
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(32, 2, width, batch_first=True) for width in widths)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture
def long_graph() -> Graph:
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    return captured(Different(8).eval(), torch.randn(1, 5, 32)).graph


@pytest.mark.slow
def test_a_long_main_function_is_cut_into_parts_where_one_value_lives(long_graph: Graph) -> None:
    parts = outline_layers(long_graph, {})
    assert len(long_graph.operations) > partition.MAX_MAIN_NODES
    assert all(len(f.nodes) <= 1.5 * partition.PART_NODES for f in parts.functions)
    assert sum(len(f.nodes) * len(f.sites) for f in parts.functions) > 0.9 * len(long_graph.operations)
    kinds = dict(zip([op.name for op in long_graph.placeholders], long_graph.kinds, strict=True))
    for function in parts.functions:
        assert len([op for op, _ in function.inputs if op.name not in kinds]) <= 1
        assert len(function.outputs) == 1


def test_of_equally_many_values_those_with_the_fewest_bytes_are_passed() -> None:
    def quantise_often(x: torch.Tensor) -> torch.Tensor:
        for _ in range(60):
            x = torch.clamp(torch.round(torch.relu(x) * 3), 0, 255).to(torch.uint8).float() * 0.1
        return x

    graph = captured(quantise_often, torch.randn(4, 5)).graph
    assert len(graph.operations) > partition.MAX_MAIN_NODES
    parts = outline_layers(graph, {})
    passed = [op for call in calls(parts)[:-1] for op, _ in call.outputs]
    assert len(passed) >= 2
    assert {op.tensor_meta.dtype.value for op in passed} == {"ui8"}


@pytest.mark.slow
def test_parts_give_what_the_whole_gives() -> None:
    torch.manual_seed(0)
    torch.backends.mha.set_fastpath_enabled(False)
    model, x = Different(8).eval(), torch.randn(1, 5, 32)
    with torch.no_grad():
        assert_same(Line(model, x).run(), [model(x)])


@pytest.mark.slow
def test_a_choice_changes_one_part_only(long_graph: Graph) -> None:
    before = {f.name: f for f in outline_layers(long_graph, {}).functions}
    chosen = next(op.stable for op in before["part_v2"].nodes if op.target == "relu.default")
    after = outline_layers(long_graph, {chosen: "eager"}).functions
    assert [f.nodes for f in after] == [f.nodes for f in before.values()]


@pytest.mark.slow
def test_a_recurrent_network_is_cut_where_only_its_state_lives() -> None:
    class StepByStep(nn.LSTMCell):
        def forward(self, steps: torch.Tensor) -> torch.Tensor:
            states, outputs = None, []
            for step in steps:
                states = super().forward(step, states)
                outputs.append(states[0])
            return torch.stack(outputs)

    torch.manual_seed(0)
    model, x = StepByStep(4, 8).eval(), torch.randn(40, 1, 4)
    with torch.no_grad():
        assert_same(Line(model, x).run(), [model(x)])
    assert outline_layers(captured(model, x).graph, {}).functions


@pytest.mark.slow
def test_no_cut_parts_a_node_with_several_results_from_what_picks_one() -> None:
    class Many(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for _ in range(40):
                values, indices = x.max(1, keepdim=True)
                x = torch.sin(x) / 4 + values / 4 + indices.to(x.dtype) * 0.01
                x = torch.tanh(x) / 2 - torch.cos(x) / 4  # a contraction: rounding errors do not grow with the layers
            return x

    x = torch.randn(3, 4)
    parts = outline_layers(captured(Many(), x).graph, {})
    assert parts.functions
    for function in parts.functions:
        assert not any(op.multiple for op, _ in (*function.inputs, *function.outputs))
    assert_same(Line(Many(), x).run(), [Many()(x)])
