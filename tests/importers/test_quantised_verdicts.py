"""The verdict on quantised ONNX models: an integer that the last bit of a float decides may differ, and no other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.importers.onnx_files.reference import DisturbedReference, Reference
from buddy.compiler.importers.sources import load_program
from buddy.compiler.protocol import OutputReport
from buddy.compiler.protocol.presets import adapt_to_phase, default_recipe
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.measure import compare_results

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
helper, numpy_helper = onnx.helper, onnx.numpy_helper
ROWS, INNER, COLUMNS, STEPS = 64, 32, 16, 255
# The rows with numbers that are halfway between two integers, up to the rounding of the input: a few, as in any model.
HALFWAY_ROWS = 8


def _model() -> Any:
    """Bytes of sigmoids times stored bytes: as floats, and rounded to bytes again."""
    torch.manual_seed(0)
    stored = {
        "w": torch.randint(-127, 128, (INNER, COLUMNS), dtype=torch.int8),
        "hs": torch.tensor(1 / STEPS), "hz": torch.tensor(0, dtype=torch.uint8),
        "ws": torch.tensor(0.01), "wz": torch.tensor(0, dtype=torch.int8),
        "ys": torch.tensor(0.08), "yz": torch.tensor(128, dtype=torch.uint8),
    }  # fmt: skip
    nodes = [
        helper.make_node(*node)
        for node in (
            ("Sigmoid", ["x"], ["h"]), ("QuantizeLinear", ["h", "hs", "hz"], ["q"]),
            ("DequantizeLinear", ["q", "hs", "hz"], ["d"]), ("DequantizeLinear", ["w", "ws", "wz"], ["v"]),
            ("MatMul", ["d", "v"], ["y"]), ("QuantizeLinear", ["y", "ys", "yz"], ["b"]),
        )
    ]  # fmt: skip
    proto = onnx.TensorProto
    inputs = [helper.make_tensor_value_info("x", proto.FLOAT, [ROWS, INNER])]
    outputs = [
        helper.make_tensor_value_info("y", proto.FLOAT, [ROWS, COLUMNS]),
        helper.make_tensor_value_info("b", proto.UINT8, [ROWS, COLUMNS]),
    ]
    constants = [numpy_helper.from_array(value.numpy(), name) for name, value in stored.items()]
    graph = helper.make_graph(nodes, "small", inputs, outputs, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _input(halfway_rows: int = HALFWAY_ROWS) -> torch.Tensor:
    """Returns numbers whose sigmoids are whole steps; in the first rows, two have one halfway between two steps."""
    steps = torch.randint(1, STEPS, (ROWS, INNER), generator=torch.Generator().manual_seed(1)).double()
    # Between 64 and 192 steps, the rounding of the input changes the sigmoid by less than its own rounding.
    steps[:halfway_rows, ::16] = (64.5 + steps[:halfway_rows, ::16] / 2).floor() + 0.5
    return torch.logit(steps / STEPS).float()


@pytest.fixture
def captured(tmp_path: Path) -> CapturedGraph:
    path = tmp_path / "model.onnx"
    path.write_bytes(_model().SerializeToString())
    (graph,) = load_program(str(path)).graphs
    graph.tensors[-1] = _input()
    return graph


def _verdicts(captured: CapturedGraph, results: list[torch.Tensor]) -> tuple[OutputReport, ...]:
    assert captured.eager is not None
    return compare_results(captured, results, captured.eager(captured.tensors), False)


def _changed(captured: CapturedGraph, change: Callable[[Any], None]) -> list[torch.Tensor]:
    """Returns the results of the captured model after `change`."""
    model = onnx.load_model_from_string(captured.onnx_model)
    change(model)
    return Reference(model.SerializeToString(), [value.name for value in model.graph.input])(captured.tensors)


def _set(name: str, value: torch.Tensor) -> Callable[[Any], None]:
    def change(model: Any) -> None:
        constant = next(tensor for tensor in model.graph.initializer if tensor.name == name)
        constant.CopyFrom(numpy_helper.from_array(value.numpy(), name))

    return change


def test_integers_that_the_last_bit_of_a_float_decides_may_differ(captured: CapturedGraph) -> None:
    recipe = adapt_to_phase(default_recipe(), captured.info.entry_phase, captured.info.dialects)
    results = list(LoadedProgram(compile_graph(captured.graph, recipe))(captured.tensors))
    assert captured.eager is not None
    expected = captured.eager(captured.tensors)
    assert not torch.allclose(results[0], expected[0], rtol=1e-5, atol=1e-5)
    floats, integers = _verdicts(captured, results)
    assert (floats.verdict, integers.verdict) == ("ok", "ok")
    assert integers.dtype == "uint8"
    assert "4 x spread" in floats.checks[0].rule


@pytest.mark.parametrize("sign", [1, -1])
def test_a_sigmoid_of_a_last_bit_more_or_less_is_correct(captured: CapturedGraph, sign: int) -> None:
    def change(model: Any) -> None:
        factor = torch.tensor(1 + sign * 2.0**-23)
        model.graph.initializer.append(numpy_helper.from_array(factor.numpy(), "factor"))
        model.graph.node[0].output[0] = "before"
        model.graph.node.insert(1, helper.make_node("Mul", ["before", "factor"], ["h"]))

    results = _changed(captured, change)
    assert captured.eager is not None
    assert not torch.allclose(results[0], captured.eager(captured.tensors)[0], rtol=1e-5, atol=1e-5)
    assert [report.verdict for report in _verdicts(captured, results)] == ["ok", "ok"]


@pytest.mark.parametrize(
    "change",
    [
        _set("hs", torch.tensor(1.02 / STEPS)),
        _set("hz", torch.tensor(1, dtype=torch.uint8)),
        _set("ws", torch.tensor(0.0101)),
        _set("wz", torch.tensor(1, dtype=torch.int8)),
    ],
    ids=["scale of activations", "zero point of activations", "scale of weights", "zero point of weights"],
)
def test_wrong_numbers_of_a_quantisation_are_found(captured: CapturedGraph, change: Callable[[Any], None]) -> None:
    # A scale is wrong by one or two percent, a zero point by one step.
    def change_one(model: Any) -> None:
        change(model)
        _keep_quantisation(model)

    assert [report.verdict for report in _verdicts(captured, _changed(captured, change_one))] == ["mismatch"] * 2


def _keep_quantisation(model: Any) -> None:
    """Lets the node that quantises activations read the right scale and zero point, whatever the others read."""
    for name, value in (("hs", torch.tensor(1 / STEPS)), ("hz", torch.tensor(0, dtype=torch.uint8))):
        model.graph.initializer.append(numpy_helper.from_array(value.numpy(), f"{name}_right"))
    quantise = next(node for node in model.graph.node if node.output[0] == "q")
    quantise.input[1], quantise.input[2] = "hs_right", "hz_right"


def test_bytes_that_are_read_with_the_wrong_signedness_are_found(captured: CapturedGraph) -> None:
    results = [value.clone() for value in _changed(captured, lambda _: None)]
    signed = results[1].view(torch.int8).short() + 128
    results[1] = signed.clamp(0, 255).to(torch.uint8)
    assert [report.verdict for report in _verdicts(captured, results)] == ["ok", "mismatch"]


def test_a_step_where_no_number_is_halfway_is_found(captured: CapturedGraph) -> None:
    captured.tensors[-1] = _input(halfway_rows=0)
    results = [value.clone() for value in _changed(captured, lambda _: None)]
    assert [report.verdict for report in _verdicts(captured, results)] == ["ok", "ok"]
    # The effect of one byte of `q` that is another step up.
    weight = next(value for value in captured.tensors if value.dtype == torch.int8)
    results[0][10] += weight[3].float() * 0.01 / STEPS
    assert [report.verdict for report in _verdicts(captured, results)] == ["mismatch", "ok"]


def test_random_errors_change_what_is_halfway_and_nothing_else(captured: CapturedGraph) -> None:
    disturbed = DisturbedReference(captured.onnx_model)
    assert captured.eager is not None
    expected, _ = captured.eager(captured.tensors)
    runs = [results[0] for results in disturbed(captured.tensors, 0)]
    assert torch.equal(runs[0], disturbed(captured.tensors, 0)[0][0])
    for values in runs:
        assert not torch.equal(values, expected)
        # At most 12 unit roundoffs of a result, and 5 of the root of its squares: 1e-6 of both; all are below 20.
        torch.testing.assert_close(values[HALFWAY_ROWS:], expected[HALFWAY_ROWS:], rtol=0, atol=2e-5)
    # In one of the two runs, a halfway number is another integer: a step is 4e-3, and weights are about 0.5.
    changes = torch.stack([(values - expected)[:HALFWAY_ROWS].abs().amax(1) for values in runs]).amax(0)
    assert bool((changes > 1e-3).all())
