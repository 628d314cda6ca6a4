"""What `DynamoCompiler` is given means something, and all its names are there."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.decomposition import decompositions as inductor_decomp

from buddy.compiler import graph as graph_package
from buddy.compiler.frontend import DynamoCompiler
from buddy.compiler.graph import Graph, GraphDriver, GraphError, Op, TensorMeta
from buddy.compiler.graph import operation as operations
from buddy.compiler.ops import func, linalg, math, tosa
from buddy.compiler.ops.utils import mlir_element_type_get


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_the_signature_is_that_of_scripts() -> None:
    names = list(inspect.signature(DynamoCompiler).parameters)
    assert names[:8] == [
        "func_name",
        "primary_registry",
        "aot_autograd_decomposition",
        "verbose",
        "verbose_path",
        "enable_external_calls",
        "capture_scalar_outputs",
        "trace",
    ]


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (
            DynamoCompiler(),
            "imported_graphs imported_params importer importer_by_export dynamo_run __call__ _compile_fx "
            "_imported_graphs _imported_params _ops_map _ops_registry",
        ),
        (
            Graph(),
            "body inputs params inputs_shapes params_shapes node_table op_groups group_map_device device add_node "
            "delete_node displace_node displace_node_with_chain replace_as_child replace_as_parent check_delete_node "
            "init_op_group fuse_ops perform lower_to_top_level_ir lower_to_llvm_ir compile _imported_module _body "
            "_inputs _fake_params _func_name _ctx",
        ),
        (GraphDriver, "subgraphs build_subgraph_by_group topological_sort_subgraph construct_main_graph"),
        (
            Op(),
            "name args kwargs parents tensor_meta add_argument add_parent add_children _op_type _children _parents "
            "_arguments",
        ),
        (graph_package, "Graph GraphDriver NodeType DeviceType TensorDType TensorMeta AddOp AddMMOp MatmulOp"),
    ],
)
def test_every_name_that_scripts_rely_on_is_there(owner: Any, names: str) -> None:
    assert [name for name in names.split() if not hasattr(owner, name)] == []


@pytest.mark.parametrize("name", sorted(operations._BUDDY_MLIR_NAMES))
def test_other_names_of_op_classes_mean_classes(name: str) -> None:
    assert issubclass(getattr(operations, name), Op)


@pytest.mark.parametrize("module", ["graph", "graph.operation"])
def test_every_op_class_can_be_imported_at_once(module: str) -> None:
    names: dict[str, Any] = {}
    exec(f"from buddy.compiler.{module} import *", names)
    assert {"AddOp", "MatmulOp", "PlaceholderOp", "ToCopyOp", "OpType"} <= set(names)


def test_func_name_names_the_function() -> None:
    (graph,) = DynamoCompiler(func_name="entry").importer(torch.sin, torch.ones(2))
    graph.lower_to_top_level_ir()
    assert "func.func @entry(" in str(graph._imported_module)
    assert graph.compile()(torch.ones(2))[0].tolist() == torch.ones(2).sin().tolist()


@pytest.mark.parametrize(("registry", "op"), [(tosa, "tosa.add"), (linalg, "linalg.generic")])
def test_the_primary_registry_is_searched_first(registry: Any, op: str) -> None:
    (graph,) = DynamoCompiler(primary_registry=registry.ops_registry).importer(torch.add, torch.ones(2), torch.ones(2))
    graph.lower_to_top_level_ir()
    assert op in str(graph._imported_module)


def test_a_primary_registry_of_a_scripts_own_is_searched_before_ours() -> None:
    asked = []

    def lower(node: Op, symbol_table: Any) -> Any:
        asked.append(node.name)
        return symbol_table[(str(node.args[0]), 0)]

    compiler = DynamoCompiler(primary_registry={"SinOp": lower})
    compiler.importer(lambda x: x.sin().cos(), torch.ones(2))
    result = compiler.dynamo_run()(torch.ones(2))[0]
    torch.testing.assert_close(result, torch.ones(2).cos())
    assert asked == ["sin"]


def test_the_registry_of_a_compiler_holds_every_lowering() -> None:
    registry = DynamoCompiler()._ops_registry
    for found in (tosa, linalg, math, func):
        assert set(found.ops_registry) <= set(registry)
    assert registry["AddOp"] is tosa.ops_registry["AddOp"]


def test_decompositions_replace_those_of_capture() -> None:
    def halves(x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 + x * 0.5

    table = {torch.ops.aten.sin.default: halves}
    (graph,) = DynamoCompiler(aot_autograd_decomposition=table).importer(torch.sin, torch.ones(2))
    assert [op.target for op in graph.operations] == ["mul.Tensor", "mul.Tensor", "add.Tensor"]


def test_inductors_table_leads_to_ops_that_are_compiled() -> None:
    """Its own rule for max pooling would need Inductor's lowerings, and would leave the pool to eager."""
    compiler = DynamoCompiler(aot_autograd_decomposition=inductor_decomp)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(18, 3)).eval()
    x = torch.randn(1, 1, 8, 8)
    (graph,) = compiler.importer(model, x)
    graph.lower_to_top_level_ir()
    assert "eager_" not in str(graph._imported_module)
    with torch.no_grad():
        torch.testing.assert_close(compiler.dynamo_run()(x)[0], model(x), atol=1e-5, rtol=1e-4)


def test_verbose_prints_into_a_file_in_a_new_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "new" / "graph.txt"
    (graph,) = DynamoCompiler(verbose=True, verbose_path=path).importer(torch.sin, torch.ones(2))
    graph.lower_to_top_level_ir()
    assert "aten.sin.default" in path.read_text()
    assert "sin = SinOp(arg0_1)" in path.read_text()
    assert "tosa.sin" in path.read_text()
    assert capsys.readouterr().out == ""


def test_scalar_outputs_are_captured_when_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return y * x.sum().item()

    x, y = torch.randn(3), torch.randn(4)
    monkeypatch.setattr(torch._dynamo.config, "capture_scalar_outputs", False)
    assert len(DynamoCompiler().importer(f, x, y)) == 2
    compiler = DynamoCompiler(capture_scalar_outputs=True)
    assert len(compiler.importer(f, x, y)) == 1
    torch.testing.assert_close(compiler.dynamo_run()(x, y)[0], f(x, y))


def test_external_calls_are_told_to_the_graph() -> None:
    for allowed in (False, True):
        (graph,) = DynamoCompiler(enable_external_calls=allowed).importer(torch.sin, torch.ones(2))
        assert graph.settings.external_calls is allowed


@pytest.mark.parametrize("form", ["mapping", "ids", "object", "file"])
def test_trace_keeps_the_values_of_nodes(form: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.toml"
    path.write_text('[[trace]]\nnode = "sin"\nid = 1\ntag = "inner"\n')
    config = type("TraceConfig", (), {"trace_config": {"sin": {"id": 1, "tag": "inner"}}})()
    traces: dict[str, Any] = {"mapping": {"sin": "inner"}, "ids": {"sin": 1}, "object": config, "file": path}
    compiler, x = DynamoCompiler(trace=traces[form]), torch.randn(3)
    compiler.importer(lambda x: x.sin().cos(), x)
    results = compiler.dynamo_run()(x)
    torch.testing.assert_close(results, [x.sin().cos()])
    torch.testing.assert_close(compiler.traced["1" if form == "ids" else "inner"], x.sin())


def test_a_trace_of_a_node_that_is_not_there_names_near_ones() -> None:
    compiler = DynamoCompiler(trace={"sine": "inner"})
    compiler.importer(lambda x: x.sin().cos(), torch.ones(3))
    with pytest.raises(GraphError, match=r"unknown node sine in trace · .* · sin"):
        compiler.dynamo_run()


@pytest.mark.parametrize(
    ("trace", "message"),
    [
        (3, "give a mapping from node names to tags"),
        ({"sin": [1]}, "give a tag, an id, or both"),
        ({"sin": "a", "cos": "a"}, "two nodes under the tag 'a'"),
        ("missing.toml", "missing.toml: "),
    ],
)
def test_a_trace_that_makes_no_sense_is_refused(trace: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DynamoCompiler(trace=trace)


def test_compile_fx_computes_in_eager_or_compiled() -> None:
    compiler, x = DynamoCompiler(), torch.randn(3)
    for kind in ("eager", "buddy"):
        torch._dynamo.reset()
        run = torch.compile(
            torch.sin, backend=lambda module, inputs, kind=kind: compiler._compile_fx(module, inputs, return_type=kind)
        )
        with torch.no_grad():
            torch.testing.assert_close(run(x), x.sin())
    assert len(compiler.imported_graphs) == 2
    with pytest.raises(ValueError, match="return_type is 'c'"):
        compiler._compile_fx(torch.fx.symbolic_trace(lambda x: x.sin()), [x], return_type="c")  # type: ignore[arg-type]


def test_a_parameter_that_a_script_invents_has_no_value() -> None:
    compiler, x = DynamoCompiler(), torch.ones(2)
    (graph,) = compiler.importer(nn.Linear(2, 2), x)
    new = operations.PlaceholderOp("new")
    new.tensor_meta = TensorMeta((2,), graph.inputs[0].tensor_meta.dtype)
    graph.add_node(new, graph_package.NodeType.FakeNode)
    graph.link()
    with pytest.raises(GraphError, match="unknown value of new"):
        _ = compiler.imported_params[graph]


def test_deleting_a_parameter_takes_its_tensor_along() -> None:
    compiler, model, x = DynamoCompiler(), nn.Linear(2, 2), torch.randn(1, 2)
    (graph,) = compiler.importer(lambda x: nn.functional.linear(x, model.weight) + 0 * model.bias, x)
    add = graph.output.args[0][0]
    graph.replace_argument(graph.output, add, add.args[0])
    graph.drop_unused()
    (bias,) = [op for op in graph.params if not graph.readers(op)]
    graph.delete_node(bias)
    assert [tuple(p.shape) for p in compiler.imported_params[graph]] == [(2, 2)]
    with torch.no_grad():
        torch.testing.assert_close(compiler.dynamo_run()(x)[0], x @ model.weight.T)


def test_element_types_for_lowerings_of_a_scripts_own() -> None:
    (graph,) = DynamoCompiler().importer(torch.neg, torch.ones(2, dtype=torch.int16))
    with graph._ctx:
        assert str(mlir_element_type_get(graph.inputs[0].tensor_meta.dtype)) == "i16"
