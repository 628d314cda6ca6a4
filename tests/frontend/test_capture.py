"""Capture: what the Buddy graph of a program holds, what its nodes are called, and what eager makes of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from buddy.compiler.frontend.aten import target_key
from buddy.compiler.frontend.capture import capture
from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.names import is_library, source_name
from buddy.compiler.graph import plugins, serialization
from buddy.compiler.graph.node import EagerOp, GetItemOp
from buddy.compiler.graph.types import NodeType, TensorDType


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(4, 4), nn.Linear(4, 4)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.query(x) + self.key(x) * self.scale


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList([Layer(), Layer()])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layer:
            x = layer(x)
        return x


def test_stable_names_are_module_path_target_and_index() -> None:
    graph = capture(Model(), (torch.ones(2, 4),))[0].graph
    stable = [op.stable for op in graph.operations]
    assert "layer.1.key/addmm.0" in stable
    assert "layer.0/mul.0" in stable
    assert len(set(stable)) == len(stable)
    assert {op.module for op in graph.operations if op.target == "mul.Tensor"} == {"layer.0", "layer.1"}


def test_equal_ops_in_one_module_are_counted() -> None:
    graph = capture(lambda x: x.sin().sin(), (torch.ones(2),))[0].graph
    assert [op.stable for op in graph.operations] == ["sin.0", "sin.1"]


def test_parameters_and_buffers_are_told_from_inputs_and_named() -> None:
    graph = capture(Model(), (torch.ones(2, 4),))[0].graph
    kinds = {op.stable: kind for op, kind in zip(graph.placeholders, graph.kinds, strict=True)}
    assert kinds.pop("x") is NodeType.InputNode
    assert set(kinds.values()) == {NodeType.FakeNode}
    assert {"layer.0.query.weight", "layer.1.key.bias", "layer.1.scale"} <= set(kinds)


def test_eager_converts_as_autocast_around_the_call_did() -> None:
    layer, x = nn.Linear(3, 3), torch.ones(1, 3)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        (captured,) = capture(layer, (x,))
        expected = layer(x)
    assert captured.eager is not None
    (found,) = captured.eager(captured.tensors)
    assert found.dtype is torch.bfloat16
    assert torch.equal(found, expected)


def test_a_bare_sequential_has_its_parameters() -> None:
    captured = capture(nn.Sequential(nn.Linear(3, 3)), (torch.ones(1, 3),))[0]
    assert captured.info.parameters == 2
    assert [captured.graph.kinds.index(NodeType.InputNode)] == [2]


def test_locations_are_the_users_lines() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return nn.functional.gelu(x)

    location = capture(f, (torch.ones(2),))[0].graph.operations[0].location
    assert location == f"{__file__}:{inspect.getsourcelines(f)[1] + 1}"


def test_ops_without_a_class_or_a_decomposition_are_eager_ops() -> None:
    graph = capture(lambda x: torch.histogram(x, 3)[0], (torch.ones(3, 3),))[0].graph
    assert [type(op) for op in graph.operations] == [EagerOp, GetItemOp]


def test_ops_without_a_class_are_decomposed_where_torch_can() -> None:
    graph = capture(lambda x: nn.functional.logsigmoid(x), (torch.ones(3),))[0].graph
    assert "log_sigmoid_forward.default" not in [op.target for op in graph.operations]
    assert not any(isinstance(op, EagerOp) for op in graph.operations)


class Broken:
    """A rule that is not a function, and fails."""

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no rule")

    def __repr__(self) -> str:
        return "a broken rule"


@pytest.mark.parametrize("rule", [partial(Broken()), Broken()], ids=["partial", "object"])
def test_a_rule_of_others_that_fails_costs_its_op_alone_whatever_it_is(
    rule: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(plugins._RULES, "sinc.default", rule)
    with pytest.warns(UserWarning, match="the decomposition of aten.sinc.default .*a broken rule.* raised ValueError"):
        graph = capture(lambda x: torch.sinc(x), (torch.ones(3),))[0].graph
    assert "sinc.default" in [op.target for op in graph.operations]


def test_several_results_have_a_meta_each() -> None:
    graph = capture(lambda x: torch.topk(x, 2), (torch.ones(5),))[0].graph
    (topk,) = (op for op in graph.operations if op.target == "topk.default")
    assert topk.multiple
    assert [meta.dtype for meta in topk.metas if meta] == [TensorDType.Float32, TensorDType.Int64]


def test_constants_become_the_last_placeholders() -> None:
    captured = capture(lambda x: x + torch.tensor([1.0, 2.0]), (torch.zeros(2),))[0]
    assert captured.graph.kinds == [NodeType.InputNode, NodeType.FakeNode]
    assert captured.tensors[1].tolist() == [1.0, 2.0]
    assert captured.eager(captured.tensors)[0].tolist() == [1.0, 2.0]


def test_dtypes_devices_and_layouts_survive_as_plain_data() -> None:
    captured = capture(lambda x: x.to(torch.float16) + torch.ones(3, dtype=torch.float16), (torch.ones(3),))[0]
    data = serialization.to_bytes(captured.graph)
    assert serialization.to_bytes(serialization.from_bytes(data)) == data


def test_mutated_inputs_are_results_and_eager_leaves_its_arguments_alone() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        return x + y

    captured = capture(f, (torch.ones(3), torch.ones(3)))[0]
    assert captured.graph.mutated == ()
    before = [tensor.clone() for tensor in captured.tensors]
    first, second = captured.eager(captured.tensors), captured.eager(captured.tensors)
    assert [t.tolist() for t in first] == [[2.0] * 3, [3.0] * 3] == [t.tolist() for t in second]
    assert all(torch.equal(one, other) for one, other in zip(before, captured.tensors, strict=True))


@pytest.mark.parametrize("grad", [False, True])
def test_eager_gives_what_the_aten_graph_gives(grad: bool) -> None:
    torch.manual_seed(0)
    for captured in capture(Model(), (torch.randn(2, 4),), grad=grad):
        results = captured.eager(captured.tensors)
        metas = [getattr(result, "metas", (None,))[0] for result in captured.graph.results]
        assert [meta and meta.shape for meta in metas] == [None if r is None else tuple(r.shape) for r in results]


def test_training_gives_a_forward_and_a_backward_graph() -> None:
    model = Model()
    graphs = capture(model, (torch.randn(2, 4),), grad=True)
    assert [graph.info.name for graph in graphs] == ["Model", "Model (backward)"]
    assert all(parameter.grad is None for parameter in model.parameters())


def test_none_and_numbers_among_results() -> None:
    def f(x: torch.Tensor) -> tuple[Any, ...]:
        return x + 1, None, 3

    assert len(capture(f, (torch.ones(2),))[0].graph.results) == 1


def test_the_table_is_the_one_print_tabular_prints(capsys: pytest.CaptureFixture[str]) -> None:
    captured = capture(lambda x, y: x + y, (torch.ones(10), torch.ones(10)))[0]
    lines = captured.table.splitlines()
    assert lines[0].split() == ["opcode", "name", "target", "args", "kwargs"]
    assert set(lines[1]) == {"-", " "}
    assert len(lines) == 2 + len(captured.info.rows)
    assert lines[4].split() == ["call_function", "add", "aten.add.Tensor", "(arg0_1,", "arg1_1)", "{}"]


def test_rows_hold_shapes_types_and_lines() -> None:
    rows = capture(Model(), (torch.ones(2, 4),))[0].info.rows
    row = next(row for row in rows if row.stable == "layer.0.query/addmm.0")
    assert (row.shape, row.dtype, row.module, row.target) == ("2x4", "f32", "layer.0.query", "aten.addmm.default")
    assert row.location.startswith(f"{__file__}:")


def test_what_the_graph_has_no_word_for_is_said() -> None:
    with pytest.raises(Exception, match="float8_e8m0fnu") as caught:
        capture(lambda x: x.to(torch.float8_e8m0fnu).float(), (torch.ones(2),))
    inner = getattr(caught.value, "inner_exception", caught.value)
    assert isinstance(inner, UnsupportedGraphError)
    assert inner.diagnostic.todo


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("L['self']._modules['encoder']._modules['0']._parameters['weight']", "encoder.0.weight"),
        ("L['x']", "x"),
        ("L['kwargs']['input_ids']", "input_ids"),
        ("G['model']._buffers['mean']", "model.mean"),
        ("L['args'][0]", "args.0"),
        ("L['batch'][\"it's\"]", "batch.it's"),
        ("L['batch']['']", "batch"),
    ],
)
def test_inputs_are_named_as_a_user_would(spelling: str, name: str) -> None:
    assert source_name(spelling) == name


def test_lines_of_packages_whose_names_begin_with_torch_are_the_users() -> None:
    folder = Path(torch.__file__).parent
    assert is_library(str(folder / "nn" / "functional.py"))
    assert not is_library(str(folder.with_name("torchvision") / "models" / "resnet.py"))


def test_keys_of_the_ops_map() -> None:
    aten, prims = torch.ops.aten, torch.ops.prims
    assert target_key(aten.add.Tensor) == "add.Tensor"
    assert target_key(prims.convert_element_type.default) == "convert_element_type.default"
    assert target_key(prims.sum.default) == "prims.sum.default"
