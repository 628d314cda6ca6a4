"""What Buddy-MLIR's users report of its frontend, each done right here. A test is named after the fault."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from buddy.compiler.driver.compilation import CompilationError
from buddy.compiler.frontend import DynamoCompiler, FallbackError
from buddy.compiler.graph import Graph, GraphDriver, Op, OutputOp, PlaceholderOp, TanhOp, TensorDType
from buddy.compiler.mlir.bindings import ir
from tests.buddy_api.linked import run_linked


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def imported(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[DynamoCompiler, Graph]:
    compiler = DynamoCompiler()
    (graph,) = compiler.importer(function, *args, **kwargs)
    return compiler, graph


def runs_as_eager(function: Callable[..., Any], *args: torch.Tensor) -> torch.Tensor:
    """What `dynamo_run` computes, after comparing it with eager: values, shape and element type."""
    compiler, _ = imported(function, *args)
    with torch.no_grad():
        expected = function(*args)
    (result,) = compiler.dynamo_run()(*args)
    torch.testing.assert_close(result, expected)
    return result


# ---- parameters and import -------------------------------------------------------------------------------------------


def test_parameters_recognised_by_a_name_prefix() -> None:
    """A bare `nn.Sequential` has parameters without such names; they are told by what they are."""
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2)).eval()
    compiler, graph = imported(model, torch.ones(5, 3))
    wanted = [*model.parameters(), model[1].running_mean, model[1].running_var]
    found = compiler.imported_params[graph]
    assert {p.data_ptr() for p in found} == {p.data_ptr() for p in wanted}
    assert len(found) == len(wanted)
    assert len(graph.inputs) == 1


def test_an_input_that_is_called_like_a_parameter_stays_an_input() -> None:
    def f(l_self_weight: torch.Tensor, primals_1: torch.Tensor) -> torch.Tensor:
        return l_self_weight * primals_1

    compiler, graph = imported(f, torch.ones(2), torch.ones(2))
    assert compiler.imported_params[graph] == []
    assert len(graph.inputs) == 2


def test_export_import_broken_for_modules_with_parameters() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(3, 3)
            self.register_buffer("shift", torch.randn(3), persistent=False)

        def forward(self, x: torch.Tensor, y: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
            return (self.linear(y) + self.shift - x) * scale

    compiler, model = DynamoCompiler(), Model().eval()
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    (graph,) = compiler.importer_by_export(model, x, y, scale=2.0)
    assert [op.stable for op in graph.inputs] == ["x", "y"]
    assert len(compiler.imported_params[graph]) == 3
    with torch.no_grad():
        torch.testing.assert_close(compiler.dynamo_run()(x, y)[0], model(x, y, scale=2.0))


def test_inputs_in_an_order_of_their_own() -> None:
    """TorchDynamo orders inputs by first use; a script that hands them over as it called the model is right."""

    def f(a: torch.Tensor, b: torch.Tensor, *rest: torch.Tensor, last: torch.Tensor) -> torch.Tensor:
        return last + rest[1] * 2 + rest[0] * 3 + b * 5 + a * 7

    args = [torch.randn(3) for _ in range(5)]
    compiler, _ = imported(f, *args[:4], last=args[4])
    torch.testing.assert_close(compiler.dynamo_run()(*args)[0], f(*args[:4], last=args[4]))


# ---- results ---------------------------------------------------------------------------------------------------------


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_results_copied_through_numpy_and_leaked(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a result went through NumPy")

    compiler, _ = imported(lambda x: x + 1, torch.zeros(1 << 20))
    run, x = compiler.dynamo_run(), torch.zeros(1 << 20)
    monkeypatch.setattr(torch, "from_numpy", never)
    monkeypatch.setattr(torch.Tensor, "numpy", never)
    first = run(x)[0]
    for _ in range(3):
        run(x)
    gc.collect()
    before = _resident()
    for _ in range(100):
        second = run(x + 1)[0]
    gc.collect()
    # Each result has 4 MiB: a leak of one in ten would show.
    assert _resident() - before < 40 << 20
    assert first.eq(1).all()
    assert second.eq(2).all()


def test_bf16_results_returned_as_f32() -> None:
    assert runs_as_eager(lambda x: x * 2 + 1, torch.randn(8).bfloat16()).dtype is torch.bfloat16


# ---- graphs ----------------------------------------------------------------------------------------------------------


def test_only_the_first_use_of_a_node_replaced() -> None:
    compiler, graph = imported(lambda x: torch.cat([x.relu() * x.relu(), x.relu()]), torch.ones(4))
    while relus := [op for op in graph.operations if op.target == "relu.default"]:
        tanh = TanhOp(f"tanh_of_{relus[0]}")
        graph.displace_node(relus[0], tanh)
    x = torch.randn(4)
    torch.testing.assert_close(compiler.dynamo_run()(x)[0], torch.cat([x.tanh() * x.tanh(), x.tanh()]))


def test_outputs_of_earlier_subgraphs_dropped() -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        a = x.exp()
        b = a.sin()
        return a, b, (a + b).cos()

    _, graph = imported(f, torch.ones(3))
    graph.op_groups = {op.name: [op] for op in graph.operations}
    x = torch.randn(3)
    torch.testing.assert_close(run_linked(GraphDriver(graph), graph, pack=False)(x), list(f(x)))


# ---- ops -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("slices", [(slice(None), slice(None, None, 2)), (slice(1, None, 3), slice(0, 5, 2))])
def test_the_step_of_a_slice_ignored(slices: tuple[slice, slice]) -> None:
    runs_as_eager(lambda x: x[slices] * 1.5, torch.randn(7, 6))


@pytest.mark.parametrize("is_causal", [False, True])
def test_is_causal_ignored(is_causal: bool) -> None:
    q, k, v = (torch.randn(1, 2, 5, 8) for _ in range(3))
    with torch.no_grad():
        masked, open_ = (functional.scaled_dot_product_attention(q, k, v, is_causal=flag) for flag in (True, False))
    assert not torch.allclose(masked, open_)
    runs_as_eager(lambda q, k, v: functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal), q, k, v)


def test_constants_guessed_from_source_text() -> None:
    """The text says 7; the values are others, and not all the same."""
    seven = 2.5

    def f(x: torch.Tensor) -> torch.Tensor:
        return x * torch.tensor(seven, dtype=torch.float32) + torch.tensor([seven, 7, -seven])  # torch.tensor(7)

    runs_as_eager(f, torch.randn(3))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16])
def test_no_uint8_and_int16(dtype: torch.dtype) -> None:
    x = torch.tensor([1, 100, 200 if dtype is torch.uint8 else -200, 7], dtype=dtype)
    assert runs_as_eager(lambda x, y: x + y * 2, x, x.flip(0)).dtype is dtype
    runs_as_eager(lambda x: x.float() / 3, x)


# ---- what it cannot compile ------------------------------------------------------------------------------------------


def test_a_bare_key_error_for_an_unknown_op() -> None:
    """Without a class the op runs in eager; who forbids that is told its name, its line and what to do."""
    x = torch.rand(4)
    runs_as_eager(lambda x: torch.histogram(x, 3)[0] + 1, x)
    refused = torch.compile(lambda x: torch.histogram(x, 3)[0], backend="buddy", options={"fallback": "error"})
    with pytest.raises(Exception, match=r"histogram\.bin_ct would run in eager") as caught:
        refused(x)
    assert isinstance(caught.value.__cause__ or caught.value, (FallbackError, torch._dynamo.exc.BackendCompilerFailed))
    assert "register a lowering for it" in str(caught.value)


class NowhereOp(Op):
    """A class that no registry lowers and no torch op stands behind."""


def test_an_unknown_op_of_a_script_is_named() -> None:
    graph = Graph()
    x, node, output = PlaceholderOp("x"), NowhereOp("lost"), OutputOp("output")
    x.tensor_meta = {"shape": [3], "dtype": TensorDType.Float32}
    node.tensor_meta = x.tensor_meta
    node.add_argument("x")
    output.add_argument("lost")
    for op in (x, node, output):
        graph.add_node(op)
    with pytest.raises(CompilationError, match=r"no registry lowers NowhereOp.*NowhereOp has no torch op.*lost"):
        graph.lower_to_top_level_ir()


# ---- shapes, gradients, locations ------------------------------------------------------------------------------------


def test_no_dynamic_shapes() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.linear(x).relu().reshape(-1) * x.shape[0]

    model = Model().eval()
    run = torch.compile(model, backend=DynamoCompiler(), dynamic=True)
    with torch.no_grad():
        for rows in (2, 5, 3, 17, 2):
            x = torch.randn(rows, 4)
            torch.testing.assert_close(run(x), model(x))


def test_no_training() -> None:
    """One step: the gradients of every parameter and of the input are eager's, and both graphs are compiled."""
    ours = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    theirs = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    theirs.load_state_dict(ours.state_dict())
    x = torch.randn(5, 6)
    mine, his = x.clone().requires_grad_(), x.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*runs in eager")
        torch.compile(ours, backend=DynamoCompiler())(mine).pow(2).sum().backward()
    theirs(his).pow(2).sum().backward()
    pairs = zip([mine, *ours.parameters()], [his, *theirs.parameters()], strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a.grad, b.grad)


def test_every_mlir_location_unknown() -> None:
    """Each op knows the nodes it comes from, those that were moved out of a pack of parameters too."""
    _, graph = imported(nn.Sequential(nn.Linear(4, 3), nn.GELU()), torch.ones(2, 4))
    for pack in (False, True):
        graph.lower_to_top_level_ir(do_params_pack=pack)
        nodes = {op.stable for op in graph.body}
        for op in _ops(graph._imported_module):
            number = graph._locations.number_of(op.location)
            assert "unknown" not in str(op.location), op
            assert number or op.name in ("func.func", "func.return"), op
            assert set(graph._locations.sets[number]) <= nodes


def _ops(module: Any) -> list[Any]:
    found: list[Any] = []

    def visit(op: Any) -> Any:
        if op.name != "builtin.module":
            found.append(op)
        return ir.WalkResult.ADVANCE

    module.operation.walk(visit)
    return found
