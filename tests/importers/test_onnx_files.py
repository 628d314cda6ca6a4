"""ONNX models open, run and agree with ONNX's own evaluator; what is wrong with a file is said with a way out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from buddy.compiler.driver.compilation import CompilationError, Compiler
from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.importers.sources import SourceError, load_program
from buddy.compiler.protocol.presets import adapt_to_phase, default_recipe
from buddy.compiler.protocol.source_files import kind_of
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph

onnx = pytest.importorskip("onnx")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
FLOAT = onnx.TensorProto.FLOAT


def _model(*nodes: Any, size: int | str = 3, results: tuple[str, ...] = ("y",), **stored: torch.Tensor) -> Any:
    inputs = [helper.make_tensor_value_info("x", FLOAT, [size, 8])]
    outputs = [helper.make_tensor_value_info(name, FLOAT, ["rows", "columns"]) for name in results]
    weights = [numpy_helper.from_array(value.numpy(), name) for name, value in stored.items()]
    graph = helper.make_graph(list(nodes), "small", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _saved(folder: Path, model: Any) -> str:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return str(path)


def _layer(**options: Any) -> Any:
    """A product with a stored weight, an addition of one of two elements, and a split in two."""
    torch.manual_seed(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"], name="/layer/MatMul"),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Split", ["r"], ["y", "z"], axis=1),
        helper.make_node("Mul", ["r", "r"], ["squares"]),
    ]
    return _model(*nodes, results=("y", "squares", "z"), w=torch.randn(8, 6), **options)


def _compiled(captured: CapturedGraph) -> list[torch.Tensor]:
    recipe = adapt_to_phase(default_recipe(), captured.info.entry_phase, captured.info.dialects)
    return list(LoadedProgram(compile_graph(captured.graph, recipe))(captured.tensors))


def test_a_model_is_a_graph_of_its_nodes_that_gives_what_onnx_says(tmp_path: Path) -> None:
    program = load_program(_saved(tmp_path, _layer()))
    (captured,) = program.graphs
    targets = [row.target for row in captured.info.rows if row.target.startswith("onnx.")]
    assert targets == ["onnx.MatMul", "onnx.Relu", "onnx.Split", "onnx.Mul"]
    assert [captured.graph.placeholders[n].name for n in captured.parameters] == ["w"]
    assert captured.eager is not None
    ours, theirs = _compiled(captured), captured.eager(captured.tensors)
    assert [tuple(value.shape) for value in ours] == [(3, 3), (3, 6), (3, 3)]
    for mine, other in zip(ours, theirs, strict=True):
        # Sums of eight products of numbers about 1, in f32.
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("op", "gates"), [("RNN", 1), ("GRU", 3), ("LSTM", 4)])
def test_a_recurrent_layer_of_several_steps_gives_what_onnx_says(tmp_path: Path, op: str, gates: int) -> None:
    torch.manual_seed(0)
    steps, batch, width, hidden = 5, 2, 4, 3
    stored = {
        "w": torch.randn(1, gates * hidden, width),
        "r": torch.randn(1, gates * hidden, hidden),
        "b": torch.randn(1, 2 * gates * hidden),
    }
    node = helper.make_node(op, ["x", *stored], ["y", "last"], hidden_size=hidden)
    model = _model(node, results=("y", "last"), **stored)
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, [steps, batch, width]))
    for value, shape in zip(model.graph.output, ([steps, 1, batch, hidden], [1, batch, hidden]), strict=True):
        value.CopyFrom(helper.make_tensor_value_info(value.name, FLOAT, shape))
    (captured,) = load_program(_saved(tmp_path, model)).graphs
    assert captured.eager is not None
    for mine, other in zip(_compiled(captured), captured.eager(captured.tensors), strict=True):
        # Five steps of sums of seven products of numbers about 1, in f32.
        torch.testing.assert_close(mine, other, rtol=1e-5, atol=1e-5)


_NUMBERS = {
    "xs": torch.tensor(0.02), "xz": torch.tensor(113, dtype=torch.uint8), "ws": torch.tensor(0.01),
    "wz": torch.tensor(0, dtype=torch.int8), "ys": torch.tensor(0.05), "yz": torch.tensor(100, dtype=torch.uint8),
}  # fmt: skip
_QUANTISED = {
    "QDQ": [
        ("QuantizeLinear", ["x", "xs", "xz"], ["q"]), ("DequantizeLinear", ["q", "xs", "xz"], ["d"]),
        ("DequantizeLinear", ["w", "ws", "wz"], ["v"]), ("MatMul", ["d", "v"], ["m"]),
        ("QuantizeLinear", ["m", "ys", "yz"], ["p"]), ("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ],
    "QOperator": [
        ("QuantizeLinear", ["x", "xs", "xz"], ["q"]),
        ("QLinearMatMul", ["q", "xs", "xz", "w", "ws", "wz", "ys", "yz"], ["p"]),
        ("DequantizeLinear", ["p", "ys", "yz"], ["y"]),
    ],
    "dynamic": [
        ("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]), ("MatMulInteger", ["q", "w", "z", "wz"], ["m"]),
        ("Cast", ["m"], ["f"]), ("Mul", ["f", "s"], ["y"]),
    ],
}  # fmt: skip


@pytest.mark.parametrize("form", _QUANTISED)
def test_a_quantised_model_gives_what_onnx_says(tmp_path: Path, form: str) -> None:
    pytest.importorskip("onnxruntime")
    torch.manual_seed(0)
    weight = torch.randint(-128, 128, (8, 6), dtype=torch.int8)
    nodes = [
        helper.make_node(op, inputs, outputs, **({"to": FLOAT} if op == "Cast" else {}))
        for op, inputs, outputs in _QUANTISED[form]
    ]
    used = {name for _, inputs, _ in _QUANTISED[form] for name in inputs}
    stored = {name: value for name, value in _NUMBERS.items() if name in used}
    (captured,) = load_program(_saved(tmp_path, _model(*nodes, w=weight, **stored))).graphs
    assert captured.eager is not None
    (ours,), (theirs,) = _compiled(captured), captured.eager(captured.tensors)
    torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["static", "static by channel", "operators", "dynamic"])
def test_a_quantised_network_multiplies_integers(tmp_path: Path, form: str) -> None:
    """A convolution, a residual, a product: what ONNX Runtime's quantiser makes, without a product of floats."""
    runtime = pytest.importorskip("onnxruntime")
    from onnxruntime import quantization

    nodes = [
        helper.make_node("Conv", ["x", "w", "c"], ["h"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["l"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Add", ["l", "x"], ["s"]),
        helper.make_node("ReduceMean", ["s"], ["p"], axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["p", "v"], ["y"]),
    ]  # fmt: skip
    torch.manual_seed(0)
    model = _model(*nodes, w=torch.randn(16, 16, 3, 3), c=torch.randn(16), v=torch.randn(16, 6))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", FLOAT, [2, 16, 9, 9]))
    plain, path = tmp_path / "plain.onnx", tmp_path / "model.onnx"
    plain.write_bytes(model.SerializeToString())
    if form == "dynamic":
        quantization.quantize_dynamic(plain, path, per_channel=False)
    else:

        class Reader(quantization.CalibrationDataReader):
            def __init__(self) -> None:
                self._calls = iter([{"x": torch.randn(2, 16, 9, 9).numpy()}])

            def get_next(self) -> Any:
                return next(self._calls, None)

        kind = quantization.QuantFormat.QOperator if form == "operators" else quantization.QuantFormat.QDQ
        quantization.quantize_static(plain, path, Reader(), kind, per_channel=form.endswith("channel"))
    (captured,) = load_program(str(path)).graphs
    recipe = adapt_to_phase(default_recipe(), captured.info.entry_phase, captured.info.dialects)
    compilation = Compiler(captured.graph).compile(recipe)
    remarks = [(node, text) for name, node, text in compilation.remarks if name == "narrow-products"]
    assert sum("multiplies bytes" in text for _, text in remarks) == 2, remarks
    (ours,) = LoadedProgram(compilation.artifact)(captured.tensors)
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(str(path), options)
    (theirs,) = session.run(None, {"x": captured.tensors[-1].numpy()})
    # Sums of integers are exact, and those of floats round: numbers halfway between two integers are rare.
    torch.testing.assert_close(ours, torch.from_numpy(theirs), rtol=1e-5, atol=1e-5)


def _quantised_convolution() -> Any:
    inputs = ["x", "xs", "xz", "w", "ws", "wz", "ys", "yz"]
    model = _model(helper.make_node("QLinearConv", inputs, ["y"], name="/layer/Conv"), **_NUMBERS)
    weight = torch.randint(-128, 128, (2, 8, 1), dtype=torch.int8, generator=torch.Generator().manual_seed(0))
    model.graph.initializer.append(numpy_helper.from_array(weight.numpy(), "w"))
    model.graph.input[0].CopyFrom(helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, [1, 8, 4]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, [1, 2, 4]))
    return model


def test_a_convolution_of_integers_gives_what_its_own_node_gives(tmp_path: Path) -> None:
    """torch-mlir's lowering of QLinearConv is wrong; the node is replaced by one between dequantised tensors."""
    runtime = pytest.importorskip("onnxruntime")
    model = _quantised_convolution()
    (captured,) = load_program(_saved(tmp_path, model)).graphs
    (ours,) = _compiled(captured)
    feeds = {"x": captured.tensors[-1].numpy()}
    (theirs,) = runtime.InferenceSession(model.SerializeToString()).run(None, feeds)
    assert len(set(theirs.flatten().tolist())) > 3
    assert ours.dtype == torch.uint8
    # Halfway between two integers, the last bit of a float decides.
    assert (ours.int() - torch.from_numpy(theirs).int()).abs().max() <= 1


def test_a_convolution_of_integers_of_an_old_operator_set_is_refused_with_its_node(tmp_path: Path) -> None:
    model = _quantised_convolution()
    model.opset_import[0].version = 12
    with pytest.raises(SourceError, match="/layer/Conv is a QLinearConv of operator set 12; 13 is the first"):
        load_program(_saved(tmp_path, model))


def test_a_scale_that_the_model_computes_is_refused_with_its_node(tmp_path: Path) -> None:
    model = _quantised_convolution()
    model.graph.node.insert(0, helper.make_node("Abs", ["ws"], ["computed"]))
    model.graph.node[1].input[4] = "computed"
    with pytest.raises(SourceError, match="computed of its node /layer/Conv is not a constant"):
        load_program(_saved(tmp_path, model))


def test_the_largest_unsigned_bytes_are_those_of_unsigned_numbers(tmp_path: Path) -> None:
    model = _model(helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2]))
    for value, size in ((model.graph.input[0], 8), (model.graph.output[0], 7)):
        value.CopyFrom(helper.make_tensor_value_info(value.name, onnx.TensorProto.UINT8, [1, 1, size]))
    (captured,) = load_program(_saved(tmp_path, model)).graphs
    captured.tensors[0].copy_(torch.tensor([[[0, 1, 127, 128, 255, 3, 200, 0]]], dtype=torch.uint8))
    (ours,) = _compiled(captured)
    assert ours.flatten().tolist() == [1, 127, 128, 255, 255, 200, 200]


def test_a_model_without_a_zero_byte_is_one_all_the_same(tmp_path: Path) -> None:
    model = _model(helper.make_node("Relu", ["x"], ["y"]))
    model.opset_import[0].ClearField("domain")
    path = Path(_saved(tmp_path, model))
    assert b"\0" not in path.read_bytes()
    assert kind_of(path).kind == "onnx"


def test_a_shape_of_no_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="unknown input rows; the inputs are x"):
        load_program(_saved(tmp_path, _layer(size="batch")), shapes=("rows=5x8",))


def test_sizes_that_a_model_leaves_open_are_one_or_what_is_said(tmp_path: Path) -> None:
    path = _saved(tmp_path, _layer(size="batch"))
    program = load_program(path)
    assert any("x: its size `batch` is set to 1" in note for note in program.notes)
    assert tuple(program.graphs[0].tensors[1].shape) == (1, 8)
    assert tuple(load_program(path, shapes=("x=5x8",)).graphs[0].tensors[1].shape) == (5, 8)


def _newer_format() -> Any:
    model = _layer()
    model.ir_version = onnx.IR_VERSION + 1
    return model


def _newer_operators() -> Any:
    model = _layer()
    model.opset_import[0].version = onnx.defs.onnx_opset_version() + 1
    return model


@pytest.mark.parametrize(
    ("make", "what", "todo"),
    [
        (_newer_format, "ONNX format", "install a newer onnx"),
        (_newer_operators, "ONNX operator set", "install a newer onnx"),
        (lambda: _model(helper.make_node("Relu", ["nothing"], ["y"])), "not valid", "export the model again"),
    ],
)
def test_models_that_cannot_be_used_are_refused_with_the_reason(
    tmp_path: Path, make: Any, what: str, todo: str
) -> None:
    with pytest.raises(SourceError) as caught:
        load_program(_saved(tmp_path, make()))
    assert what in caught.value.diagnostic.what
    assert todo in caught.value.diagnostic.todo


def test_shapes_that_conflict_are_refused_with_the_node(tmp_path: Path) -> None:
    path = _saved(tmp_path, _model(helper.make_node("MatMul", ["x", "w"], ["y"], name="product"), w=torch.ones(6, 8)))
    with pytest.raises(SourceError, match=r"shape inference failed: \(op_type:MatMul, node name: product\): Incomp"):
        load_program(path)


def test_a_size_replaced_by_another_does_not_conflict_with_the_declared_outputs(tmp_path: Path) -> None:
    model = _model(helper.make_node("Relu", ["x"], ["y"]))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, [3, 8]))
    (captured,) = load_program(_saved(tmp_path, model), shapes=("x=5x8",)).graphs
    assert [tuple(value.shape) for value in _compiled(captured)] == [(5, 8)]
    with pytest.raises(SourceError, match=r"shape inference failed.*choose other sizes with --shape"):
        load_program(_saved(tmp_path, _layer()), shapes=("x=5x9",))


def test_outputs_may_have_no_declared_shape(tmp_path: Path) -> None:
    model = _model(helper.make_node("Relu", ["x"], ["y"]))
    model.graph.output[0].type.tensor_type.ClearField("shape")
    (captured,) = load_program(_saved(tmp_path, model), shapes=("x=5x8",)).graphs
    assert [tuple(value.shape) for value in _compiled(captured)] == [(5, 8)]


def test_a_model_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = Path(_saved(tmp_path, _layer()))
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(SourceError, match="truncated, or not an ONNX model"):
        load_program(str(path))


def test_without_the_package_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _saved(tmp_path, _layer())
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(SourceError, match=r"extra `onnx`.*pip install 'buddy-tui\[onnx\]'"):
        load_program(path)


def test_an_input_without_elements_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="x has no elements"):
        load_program(_saved(tmp_path, _layer(size=0)))


def test_an_op_outside_of_the_importer_is_named_with_its_node(tmp_path: Path) -> None:
    odd = helper.make_node("Mystery", ["x"], ["m"], name="riddle", domain="elsewhere")
    model = _model(odd, helper.make_node("Relu", ["m"], ["y"]))
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    with pytest.raises(SourceError, match=r"the result of riddle \(elsewhere\.Mystery\) is unknown"):
        load_program(_saved(tmp_path, model))


def test_an_op_that_torch_mlir_does_not_lower_is_named_with_its_node(tmp_path: Path) -> None:
    odd = helper.make_node("Mystery", ["x"], ["m"], name="riddle", domain="elsewhere")
    model = _model(odd, helper.make_node("Relu", ["m"], ["y"]))
    model.opset_import.append(helper.make_opsetid("elsewhere", 1))
    model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", FLOAT, [3, 8]))
    model.graph.value_info.append(helper.make_tensor_value_info("m", FLOAT, [3, 8]))
    with pytest.raises((SourceError, CompilationError), match="riddle"):
        _compiled(load_program(_saved(tmp_path, model)).graphs[0])
