"""ONNX nodes that torch-mlir would lower to wrong numbers are replaced, or refused with the node's name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.importers.sources import SourceError, load_program
from buddy.compiler.protocol.presets import adapt_to_phase, default_recipe
from buddy.compiler.runtime import LoadedProgram

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper


def saved(folder: Path, node: Any, opset: int, inputs: dict[str, np.ndarray], stored: dict[str, np.ndarray]) -> Path:
    """A file with a model of one node, whose inputs have the shapes and dtypes of `inputs`."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in inputs.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output]
    constants = [numpy_helper.from_array(value, name) for name, value in stored.items()]
    graph = helper.make_graph([node], "one", infos, outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    path = folder / "one.onnx"
    onnx.save(onnx.shape_inference.infer_shapes(model, strict_mode=True), str(path))
    return path


def check(
    folder: Path, node: Any, opset: int, inputs: dict[str, np.ndarray], stored: dict[str, np.ndarray] | None = None
) -> None:
    """The compiled model gives ONNX Runtime's results."""
    path = saved(folder, node, opset, inputs, stored or {})
    expected = runtime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"]).run(None, inputs)
    (captured,) = load_program(str(path)).graphs
    recipe = adapt_to_phase(default_recipe(), captured.info.entry_phase, captured.info.dialects)
    tensors = list(captured.tensors)
    for number, placeholder in enumerate(captured.graph.placeholders):
        if placeholder.name in inputs:
            tensors[number] = torch.from_numpy(inputs[placeholder.name])
    results = LoadedProgram(compile_graph(captured.graph, recipe))(tensors)
    for ours, theirs in zip(results, expected, strict=True):
        # A few roundings of numbers about 1.
        np.testing.assert_allclose(ours.numpy(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("aligned", [0, 1])
@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("mode", ["linear", "nearest"])
def test_samples_at_and_beyond_the_edges_of_images(tmp_path: Path, mode: str, padding: str, aligned: int) -> None:
    numbers = np.random.default_rng(0)
    image = numbers.standard_normal((2, 3, 4, 5)).astype(np.float32)
    # The first points lie between two pixels and far outside.
    grid = (numbers.random((2, 6, 7, 2)) * 3 - 1.5).astype(np.float32)
    grid[0, 0, :5] = [[0, 0], [-0.5, 0.25], [-10, 10], [1, 1], [-1, -1]]
    node = helper.make_node("GridSample", ["x", "grid"], ["y"], mode=mode, padding_mode=padding, align_corners=aligned)
    check(tmp_path, node, 20, {"x": image, "grid": grid})


@pytest.mark.parametrize(("op", "opset", "attributes"), [
    ("Softmax", 11, {}), ("Softmax", 9, {"axis": 2}), ("LpNormalization", 11, {"axis": 1, "p": 1}),
    ("LpNormalization", 22, {"axis": 0}),
])  # fmt: skip
def test_ops_of_old_operator_sets_have_their_old_meaning(
    tmp_path: Path, op: str, opset: int, attributes: dict[str, int]
) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 4)).astype(np.float32)
    x[:, 0, 0] = 0
    check(tmp_path, helper.make_node(op, ["x"], ["y"], **attributes), opset, {"x": x})


def test_old_ops_that_would_be_read_as_newer_ones_are_refused(tmp_path: Path) -> None:
    x = np.zeros((1, 2, 3, 4), np.float32)
    upsample = helper.make_node("Upsample", ["x", "scales"], ["y"], name="up", mode="linear")
    stored = {"scales": np.array([1, 1, 2, 3], np.float32)}
    with pytest.raises(SourceError, match=r"its node up .* has linear interpolation of an operator set before 10"):
        load_program(str(saved(tmp_path, upsample, 9, {"x": x}, stored)))
    hardmax = helper.make_node("Hardmax", ["x"], ["y"], name="largest")
    with pytest.raises(SourceError, match=r"its node largest .* has the meaning of an operator set before 13"):
        load_program(str(saved(tmp_path, hardmax, 12, {"x": x}, {})))


def test_zero_points_by_channel_are_unsigned(tmp_path: Path) -> None:
    x = np.random.default_rng(0).integers(0, 256, (2, 3, 4)).astype(np.uint8)
    node = helper.make_node("DequantizeLinear", ["x", "scale", "zero"], ["y"], axis=1)
    stored = {"scale": np.array([0.1, 0.2, 0.05], np.float32), "zero": np.array([3, 200, 128], np.uint8)}
    check(tmp_path, node, 13, {"x": x}, stored)


FLOATS = np.zeros((4, 2, 3), np.float32)
WEIGHTS = {"w": np.ones((1, 16, 3), np.float32), "r": np.ones((1, 16, 4), np.float32)}


@pytest.mark.parametrize(("inputs", "stored", "attributes", "what"), [
    (["x", "w", "r", "", "lengths"], {"lengths": np.array([4, 2], np.int32)}, {}, "sequences of different lengths"),
    (["x", "w", "r", "", "", "", "", "p"], {"p": np.ones((1, 12), np.float32)}, {}, "peephole weights"),
    (["x", "w", "r"], {}, {"activations": ["HardSigmoid", "Tanh", "Tanh"]}, "the activation HardSigmoid"),
    (["x", "w", "r"], {}, {"clip": 0.5}, "the attribute clip"),
])  # fmt: skip
def test_parts_of_recurrent_layers_that_would_be_ignored_are_refused(
    tmp_path: Path, inputs: list[str], stored: dict[str, np.ndarray], attributes: dict[str, Any], what: str
) -> None:
    node = helper.make_node("LSTM", inputs, ["y"], name="layer", hidden_size=4, **attributes)
    with pytest.raises(SourceError, match=rf"its node layer \(LSTM\) has {what}"):
        load_program(str(saved(tmp_path, node, 22, {"x": FLOATS}, WEIGHTS | stored)))


def test_sequences_of_full_length_are_compiled(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((4, 2, 3)).astype(np.float32)
    node = helper.make_node("LSTM", ["x", "w", "r", "", "lengths"], ["y"], hidden_size=4)
    check(tmp_path, node, 22, {"x": x}, WEIGHTS | {"lengths": np.array([4, 4], np.int32)})


def test_the_weighted_mean_of_losses_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("SoftmaxCrossEntropyLoss", ["x", "labels", "weights"], ["y"], name="loss")
    stored = {"labels": np.array([0, 2], np.int64), "weights": np.array([1, 2, 3], np.float32)}
    with pytest.raises(SourceError, match=r"loss .* has class weights with the reduction `mean`"):
        load_program(str(saved(tmp_path, node, 13, {"x": np.ones((2, 3), np.float32)}, stored)))


def test_circular_padding_is_refused(tmp_path: Path) -> None:
    node = helper.make_node("Pad", ["x", "pads"], ["y"], mode="wrap")
    path = saved(tmp_path, node, 19, {"x": np.ones((3, 4), np.float32)}, {"pads": np.array([1, 0, 0, 2])})
    with pytest.raises(SourceError, match=r"\(Pad\) has the mode `wrap`"):
        load_program(str(path))


@pytest.mark.parametrize("pads", [[0, 0, 0, 0], [1, 1, 1, 1]])
@pytest.mark.parametrize("strides", [[2, 2], [3, 2]])
def test_windows_beyond_the_padding_are_averaged_over_their_elements(
    tmp_path: Path, pads: list[int], strides: list[int]
) -> None:
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 7)).astype(np.float32)
    node = helper.make_node(
        "AveragePool", ["x"], ["y"], kernel_shape=[3, 2], strides=strides, pads=pads, ceil_mode=1, count_include_pad=1
    )
    check(tmp_path, node, 22, {"x": x})


def test_places_of_maxima_are_those_in_the_whole_tensor(tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 8, 7)).astype(np.float32)
    node = helper.make_node("MaxPool", ["x"], ["y", "places"], kernel_shape=[3, 2], strides=[2, 2], pads=[1, 1, 1, 1])
    check(tmp_path, node, 22, {"x": x})


BYTES = np.array([[200, 7, 130, 255], [128, 127, 0, 3]], np.uint8)


@pytest.mark.parametrize(("op", "inputs", "stored"), [
    ("Div", ["x", "b"], {"b": np.array([3, 2, 200, 128], np.uint8)}),
    ("Mod", ["x", "b"], {"b": np.array([3, 2, 200, 128], np.uint8)}),
    ("Abs", ["x"], {}),
    ("Clip", ["x", "low", "high"], {"low": np.array(50, np.uint8), "high": np.array(150, np.uint8)}),
    ("Clip", ["x", "", "high"], {"high": np.array(150, np.uint8)}),
    ("MatMulInteger", ["x", "b"], {"b": BYTES.T.copy()}),
    ("MatMulInteger", ["x", "b", "", "zero"], {"b": BYTES.T.copy(), "zero": np.array(130, np.uint8)}),
])  # fmt: skip
def test_unsigned_bytes_are_not_signed(
    tmp_path: Path, op: str, inputs: list[str], stored: dict[str, np.ndarray]
) -> None:
    check(tmp_path, helper.make_node(op, inputs, ["y"]), 22, {"x": BYTES}, stored)


def test_powers_of_integers_are_rounded_towards_zero(tmp_path: Path) -> None:
    stored = {"exponents": np.array([2.5, 2, 0.5], np.float32)}
    node = helper.make_node("Pow", ["x", "exponents"], ["y"])
    check(tmp_path, node, 22, {"x": np.array([2, -3, 7], np.int32)}, stored)
