"""`GraphDriver`: subgraphs by group, their order, and a main graph that computes what eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.graph import DeviceType, Graph, GraphDriver, GraphError
from tests.buddy_api.linked import packs, run_linked
from tests.models import stack


class Mixed(nn.Module):
    """Parameters and buffers of three element types, a tuple that is taken apart, two results of different depth."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 4)
        self.register_buffer("shift", torch.tensor([1, 2, 3, 4]))
        self.register_buffer("mask", torch.tensor([1, 0, 1, 0], dtype=torch.uint8))
        self.scale = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        early = self.linear(x) + self.shift
        left, right = early.split(2, dim=1)
        return early, torch.cat([left.tanh() * self.scale, right.relu()], 1) * self.mask


def imported(model: Callable[..., Any], *args: torch.Tensor) -> tuple[Graph, list[torch.Tensor]]:
    compiler = DynamoCompiler()
    (graph,) = compiler.importer(model, *args)
    return graph, compiler.imported_params[graph]


def thirds(graph: Graph) -> None:
    ops = graph.operations
    third = len(ops) // 3
    graph.op_groups = {"first": ops[:third], "second": ops[third : 2 * third], "third": ops[2 * third :]}


def every_op(graph: Graph) -> None:
    graph.init_op_group()


def only_the_middle(graph: Graph) -> None:
    ops = graph.operations
    graph.op_groups = {"middle": ops[2:-2]}


def every_other(graph: Graph) -> None:
    """Groups that are not runs: the order of the nodes does not give that of the groups."""
    ops = graph.operations
    graph.op_groups = {f"single{i}": [op] for i, op in reversed(list(enumerate(ops))) if i % 2}


def nothing(graph: Graph) -> None:
    graph.op_groups = {}


@pytest.mark.parametrize("pack", [False, True], ids=["unpacked", "packed"])
@pytest.mark.parametrize("group", [thirds, every_op, only_the_middle, every_other, nothing])
@pytest.mark.parametrize("program", ["stack", "mixed"])
def test_main_graph_and_subgraphs_together_agree_with_eager(program: str, group: Any, pack: bool) -> None:
    torch.manual_seed(0)
    model, x = stack(2) if program == "stack" else (Mixed(), torch.randn(3, 6))
    graph, params = imported(model, x)
    graph.fuse_ops([group])
    run = run_linked(GraphDriver(graph), graph, pack)
    with torch.no_grad():
        expected = model(x)
    results = run(*(packs(params) if pack else params), x)
    torch.testing.assert_close(results, list(expected) if isinstance(expected, tuple) else [expected])


def test_results_of_earlier_subgraphs_reach_later_ones_and_the_caller() -> None:
    graph, _ = imported(lambda x: (x.exp(), x.exp() + x.sin(), x.sin().sum()), torch.ones(3))
    exp, add, sin, total = (graph.node_table[name] for name in ("exp", "add", "sin", "sum_1"))
    graph.op_groups = {"early": [op for op in graph.operations if op not in (add, total)], "late": [add, total]}
    driver = GraphDriver(graph)
    _, inputs, outputs = driver.build_subgraph_by_group()
    assert outputs["early"][0] is exp
    assert sin in [*outputs["early"], *graph.node_table["sin_1"].parents] or "sin_1" in outputs["early"]
    assert set(inputs["late"]) <= set(outputs["early"])
    assert outputs["late"] == [add, total]


def test_subgraphs_are_sorted_by_what_they_read() -> None:
    graph, _ = imported(lambda x: x.exp().sin().cos(), torch.ones(3))
    exp, sin, cos = graph.operations
    graph.op_groups = {"c": [cos], "b": [sin], "a": [exp]}
    driver = GraphDriver(graph)
    assert driver.topological_sort_subgraph() == ["a", "b", "c"]
    assert list(driver._subgraphs) == ["c", "b", "a"]
    text = str(driver.construct_main_graph())
    assert text.index("call @a") < text.index("call @b") < text.index("call @c")
    assert text.count("func.func private") == 3


def test_groups_that_wait_for_each_other_are_refused() -> None:
    graph, _ = imported(lambda x: x.exp().sin().cos(), torch.ones(3))
    exp, sin, cos = graph.operations
    graph.op_groups = {"outer": [exp, cos], "inner": [sin]}
    with pytest.raises(GraphError, match="cyclic dependency: outer, inner"):
        GraphDriver(graph)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        (lambda ops: {"a": [ops[0]], "b": [ops[0]]}, "exp is in two groups, a and b"),
        (lambda ops: {"forward": ops}, "group forward has the name of the main function"),
    ],
)
def test_groups_that_make_no_sense_are_refused(groups: Any, message: str) -> None:
    graph, _ = imported(lambda x: x.exp().sin(), torch.ones(3))
    graph.op_groups = groups(graph.operations)
    with pytest.raises(GraphError, match=message):
        GraphDriver(graph)


def test_a_group_that_holds_a_stranger_is_refused() -> None:
    graph, _ = imported(lambda x: x.exp().sin(), torch.ones(3))
    other, _ = imported(lambda x: x.cos(), torch.ones(3))
    driver = GraphDriver(graph)
    graph.link()
    graph.op_groups = {"a": [*graph.operations, *other.operations]}
    driver.build_subgraph_by_group()
    assert [op.name for op in graph.op_groups["a"]] == ["exp", "sin"]


def test_the_device_of_a_group_stands_on_its_function() -> None:
    graph, _ = imported(lambda x: x.exp().sin(), torch.ones(3))
    exp, sin = graph.operations
    graph.op_groups = {"here": [exp], "there": [sin]}
    graph.group_map_device = {"here": DeviceType.CPU, "there": DeviceType.GPU}
    driver = GraphDriver(graph)
    assert [subgraph.device for subgraph in driver.subgraphs] == [DeviceType.CPU, DeviceType.GPU]
    for subgraph in driver.subgraphs:
        subgraph.lower_to_top_level_ir()
    marks = ['buddy.device = "gpu"' in str(subgraph._imported_module) for subgraph in driver.subgraphs]
    assert marks == [False, True]
    declared = str(driver.construct_main_graph()).splitlines()
    assert ['buddy.device = "gpu"' in line for line in declared if "private" in line] == [False, True]


def test_a_group_with_a_device_still_runs() -> None:
    graph, _ = imported(lambda x: x.exp().sin(), torch.ones(3))
    graph.op_groups = {"there": graph.operations}
    graph.group_map_device = {"there": DeviceType.GPU}
    x = torch.randn(3)
    torch.testing.assert_close(run_linked(GraphDriver(graph), graph, False)(x)[0], x.exp().sin())


def test_editing_a_subgraph_leaves_the_graph_as_it_is() -> None:
    graph, _ = imported(lambda x: x.exp().sin(), torch.ones(3))
    before = str(graph)
    (subgraph,) = GraphDriver(graph).subgraphs
    subgraph.replace_uses(subgraph.node_table["exp"], subgraph.placeholders[0])
    subgraph.drop_unused()
    assert str(graph) == before
    assert "exp" not in subgraph.node_table


def test_packed_parameters_stand_in_the_order_of_imported_params() -> None:
    graph, params = imported(Mixed(), torch.randn(3, 6))
    graph.lower_to_top_level_ir(do_params_pack=True)
    first = next(line for line in str(graph._imported_module).splitlines() if "func.func @forward" in line)
    assert [op.stable for op in graph.params] == ["linear.weight", "linear.bias", "scale", "shift", "mask"]
    assert [tuple(op.tensor_meta.shape) for op in graph.params] == [tuple(p.shape) for p in params]
    for number, kind in enumerate(("tensor<29xf32>", "tensor<4xi64>", "tensor<4xi8>", "tensor<3x6xf32>")):
        assert f"%arg{number}: {kind}" in first
    assert "%arg4" not in first


def test_a_packed_graph_compiles_and_agrees_with_eager() -> None:
    model, x = Mixed(), torch.randn(3, 6)
    graph, params = imported(model, x)
    run = graph.compile(do_params_pack=True)
    assert "llvm.func @forward" in str(graph._imported_module)
    with torch.no_grad():
        torch.testing.assert_close(run(*packs(params), x), list(model(x)))
