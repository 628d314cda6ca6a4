"""`DynamoCompiler` as scripts written for Buddy-MLIR use it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.decomposition import decompositions as inductor_decomp

from buddy.compiler.frontend import DynamoCompiler, TorchCompileBackend, dynamo_compiler, make_default_torch_backend
from buddy.compiler.graph.node import ElementwiseOp
from buddy.compiler.ops import tosa


def foo(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x * y + x


def test_a_function_to_top_level_tosa() -> None:
    compiler = DynamoCompiler(primary_registry=tosa.ops_registry, aot_autograd_decomposition=inductor_decomp)
    graphs = compiler.importer(foo, torch.randn(10), torch.randn(10))
    assert len(graphs) == 1
    graphs[0].lower_to_top_level_ir()
    text = str(graphs[0]._imported_module)
    assert "func.func @forward(%arg0: tensor<10xf32>" in text
    assert "tosa.mul" in text
    assert "-> tensor<10xf32>" in text


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.tensor([2.0]))
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x * self.scale)


def test_parameters_come_before_buffers() -> None:
    compiler, model = DynamoCompiler(), Scaled()
    (graph,) = compiler.importer(model, torch.ones(1, 3))
    params = compiler.imported_params[graph]
    assert [tuple(p.shape) for p in params] == [(2, 3), (2,), (1,)]
    assert params[0].data_ptr() == model.linear.weight.data_ptr()
    assert compiler.imported_graphs == [graph]
    assert compiler._imported_graphs == [graph]


def test_running_with_inputs_alone_or_with_all_state() -> None:
    compiler, model, x = DynamoCompiler(), Scaled().eval(), torch.randn(4, 3)
    (graph,) = compiler.importer(model, x)
    run = compiler.dynamo_run()
    with torch.no_grad():
        expected = model(x)
    torch.testing.assert_close(run(x)[0], expected)
    torch.testing.assert_close(run(*compiler.imported_params[graph], x)[0], expected)
    with pytest.raises(ValueError, match="2 tensors were given; the graph takes 1 inputs, or 4 with its state"):
        run(x, x)


class Reversed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.register_buffer("shift", torch.ones(3), persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor, times: int = 1) -> torch.Tensor:
        return (self.linear(y) + self.shift - x) * times


def test_export_keeps_the_order_of_arguments() -> None:
    compiler, model = DynamoCompiler(), Reversed().eval()
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    (graph,) = compiler.importer_by_export(model, x, y, times=2)
    assert [op.stable for op in graph.placeholders] == ["linear.weight", "linear.bias", "shift", "x", "y"]
    assert [tuple(p.shape) for p in compiler.imported_params[graph]] == [(3, 3), (3,), (3,)]
    with torch.no_grad():
        torch.testing.assert_close(compiler.dynamo_run()(x, y)[0], model(x, y, times=2))


def test_export_of_a_function() -> None:
    compiler = DynamoCompiler()
    (graph,) = compiler.importer_by_export(foo, torch.ones(2), torch.ones(2))
    assert [op.target for op in graph.operations] == ["mul.Tensor", "add.Tensor"]


def test_running_before_importing_says_what_to_do() -> None:
    with pytest.raises(ValueError, match="call importer"):
        DynamoCompiler().dynamo_run()


def test_as_a_back_end_of_torch_compile() -> None:
    torch._dynamo.reset()
    compiler, x, y = DynamoCompiler(), torch.randn(5), torch.randn(5)
    torch.testing.assert_close(torch.compile(foo, backend=compiler)(x, y), foo(x, y))
    assert len(compiler.imported_graphs) == 1


@pytest.mark.parametrize(
    "backend", [TorchCompileBackend(DynamoCompiler()), dynamo_compiler, make_default_torch_backend()]
)
def test_a_ready_back_end_holds_the_last_graph_alone(backend: TorchCompileBackend) -> None:
    torch._dynamo.reset()
    x, y = torch.randn(5), torch.randn(5)
    torch.testing.assert_close(torch.compile(foo, backend=backend)(x, y), foo(x, y))
    torch.testing.assert_close(torch.compile(torch.sin, backend=backend)(x), torch.sin(x))
    assert [[op.target for op in graph.operations] for graph in backend._compiler.imported_graphs] == [["sin.default"]]


def test_gradients_flow_through_it() -> None:
    torch._dynamo.reset()
    x = torch.randn(5, requires_grad=True)
    torch.compile(foo, backend=DynamoCompiler())(x, torch.ones(5)).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((5,), 2.0))


def test_compile_fx_imports_and_computes() -> None:
    torch._dynamo.reset()
    compiler = DynamoCompiler(func_name="entry")
    with torch.no_grad():
        result = torch.compile(foo, backend=compiler._compile_fx)(torch.ones(2), torch.ones(2))
    assert result.tolist() == [2.0, 2.0]
    assert compiler.imported_graphs[0]._func_name == "entry"


class ShinyOp(ElementwiseOp):
    """An op class of a script's own."""


def test_a_user_adds_an_op_in_three_steps() -> None:
    def lower(node: Any, symbol_table: Any) -> Any:
        return symbol_table[(str(node.args[0]), 0)]

    compiler = DynamoCompiler()
    compiler._ops_map["special_bessel_j0.default"] = ShinyOp
    compiler._ops_registry["ShinyOp"] = lower
    (graph,) = compiler.importer(torch.special.bessel_j0, torch.ones(2))
    assert [type(op) for op in graph.operations] == [ShinyOp]
    graph.lower_to_top_level_ir()
    assert "return %arg0" in str(graph._imported_module)
    assert compiler.dynamo_run()(torch.tensor([3.0, 4.0]))[0].tolist() == [3.0, 4.0]


def test_verbose_prints_tables_and_the_mlir_of_each_node(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (graph,) = DynamoCompiler(verbose=True).importer(foo, torch.ones(2), torch.ones(2))
    assert "aten.mul.Tensor" in capsys.readouterr().out
    graph.lower_to_top_level_ir()
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "mul = MulOp(arg0_1, arg1_1)"
    assert "tosa.const" in lines[1]
    assert "tosa.mul %arg0, %arg1" in lines[2]
    path = tmp_path / "table.txt"
    DynamoCompiler(verbose=True, verbose_path=str(path)).importer(foo, torch.ones(2), torch.ones(2))
    assert "aten.mul.Tensor" in path.read_text()
