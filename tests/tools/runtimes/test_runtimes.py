"""Other runtimes beside compiled code: results and timings as for ours, and the first node that differs by its name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from buddy.compiler.driver.compilation import Compiler
from buddy.compiler.frontend.capture import capture
from buddy.compiler.importers.sources import load_program
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.presets import adapt_to_phase, default_recipe
from buddy.compiler.protocol.run_report import ONNX_RUNTIME, OPENVINO, RUNTIMES, Divergence, NodeCounts, SideReport
from buddy.compiler.runtime import run_and_compare
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import compute_values
from buddy.compiler.runtime.measure import compare_results, run_eager
from buddy.compiler.tools.runtimes import sessions
from buddy.compiler.tools.runtimes.onnx_model import NoModelError, RuntimeModel, as_array, as_tensor, make_model
from buddy.compiler.tools.runtimes.sides import (
    MARKS_PER_CALL,
    DivergenceSearch,
    runtime_sides,
    with_independent_reference,
)

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxscript")
INSTALLED = [name for name in RUNTIMES if not sessions.missing_packages(name)]
runtime = pytest.mark.parametrize(
    "runtime", [pytest.param(n, marks=pytest.mark.skipif(n not in INSTALLED, reason=f"no {n}")) for n in RUNTIMES]
)


class Branches(torch.nn.Module):
    """Blocks with two branches each, of which the second one is deep, and a result that is not wrong."""

    def __init__(self, blocks: int = 3) -> None:
        super().__init__()
        self.left = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(blocks))
        self.right = torch.nn.ModuleList(torch.nn.Linear(16, 16) for _ in range(blocks))
        self.norm = torch.nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        other = torch.sin(x)
        for left, right in zip(self.left, self.right, strict=True):
            x = self.norm(torch.tanh(left(x)) + torch.sigmoid(torch.relu(right(x)) * 2 + 1))
        return other, torch.softmax(x, -1)


def captured_program(model: Any, *inputs: torch.Tensor) -> CapturedGraph:
    with torch.no_grad():
        (captured,) = capture(model, inputs)
    return captured


@pytest.fixture(scope="module")
def branches() -> CapturedGraph:
    torch.manual_seed(0)
    return captured_program(Branches().eval(), torch.randn(8, 16))


@pytest.fixture(scope="module")
def exported(branches: CapturedGraph, tmp_path_factory: pytest.TempPathFactory) -> RuntimeModel:
    return make_model(branches, tmp_path_factory.mktemp("exported"))


@pytest.fixture(scope="module")
def artifact(branches: CapturedGraph) -> Artifact:
    return Compiler(branches.graph).compile(default_recipe()).artifact


def node_of(captured: CapturedGraph, name: str) -> Any:
    return next(op for op in captured.graph.operations if name in (op.name, op.stable))


def copied(model: RuntimeModel) -> RuntimeModel:
    """The model with a graph that can be changed."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    return replace(model, proto=proto)


def scale(model: RuntimeModel, node: str, factor: float = 1.01) -> RuntimeModel:
    """Multiplies the value of a node by a number, inside of a copy of the model."""
    model = copied(model)
    graph, value = model.proto.graph, model.values[node]
    at, maker = next((i, n) for i, n in enumerate(graph.node) if value in n.output)
    maker.output[list(maker.output).index(value)] = f"{value}_unscaled"
    graph.initializer.append(onnx.numpy_helper.from_array(as_array(torch.tensor(factor)), f"{value}_factor"))
    multiply = onnx.helper.make_node("Mul", [f"{value}_unscaled", f"{value}_factor"], [value])
    later = [*graph.node[at + 1 :]]
    del graph.node[at + 1 :]
    graph.node.extend([multiply, *later])
    return model


def beside(
    captured: CapturedGraph, artifact: Artifact, names: Sequence[str], mark: Any = "auto",
    make: Callable[[CapturedGraph, Path], RuntimeModel] = make_model,
    progress: Callable[[str, float], None] = lambda _what, _done: None,
) -> tuple[SideReport, ...]:  # fmt: skip
    with runtime_sides(captured, names, 1, mark, progress, make) as sides:
        report = run_and_compare(
            captured, artifact, repeats=3, threads=1, nodes=NodeCounts(1, 0), compile_seconds=0.0, sides=sides
        )
    assert report.ok
    return report.sides


@pytest.mark.slow
@pytest.mark.process
@runtime
def test_a_runtime_gives_eagers_results_and_is_timed(branches: CapturedGraph, artifact: Artifact, runtime: str) -> None:
    texts: list[str] = []
    (side,) = beside(branches, artifact, [runtime], progress=lambda what, _done: texts.append(what))
    assert (side.problem, side.verdict, side.divergence, side.note) == ("", "ok", None, "")
    assert [output.name for output in side.outputs] == list(branches.names_of_results())
    assert side.timing.runs == 3
    assert min(side.timing.median, side.load_seconds, side.compile_seconds) > 0
    assert texts[:2] == ["exporting the program to ONNX", f"loading the model in {RUNTIMES[runtime]}"]


@pytest.mark.slow
@pytest.mark.process
@runtime
@pytest.mark.parametrize("node", ["right.1/addmm.0", "tanh.2"])
def test_a_scale_that_was_changed_is_found_by_its_node(
    branches: CapturedGraph, artifact: Artifact, exported: RuntimeModel, runtime: str, node: str
) -> None:
    damaged = scale(exported, node_of(branches, node).name)
    (side,) = beside(branches, artifact, [runtime], make=lambda _captured, _folder: damaged)
    assert [output.verdict for output in side.outputs] == ["ok", "mismatch"]
    found = side.divergence
    assert found is not None
    assert (found.node, found.kind, side.note) == (node, "node", "")
    assert found.output is not None
    assert found.output.verdict == "mismatch"
    assert found.output.max_abs > 1e-3
    assert found.runs <= 6


@pytest.mark.slow
@pytest.mark.process
def test_all_nodes_can_be_compared_at_once(branches: CapturedGraph, artifact: Artifact, exported: RuntimeModel) -> None:
    node = node_of(branches, "left.1/addmm.0")
    damaged = scale(exported, node.name)
    for side in beside(branches, artifact, INSTALLED, "all", lambda _captured, _folder: damaged):
        found = side.divergence
        assert found is not None
        assert (found.node, found.runs) == (node.stable, 1)
        verdicts = {output.name: output.verdict for output in found.marked}
        assert len(verdicts) > 20
        assert verdicts["left.0/addmm.0"] == "ok"
        assert verdicts[node.stable] == "mismatch"


@pytest.mark.process
def test_without_marks_nothing_is_searched(branches: CapturedGraph, artifact: Artifact, exported: RuntimeModel) -> None:
    damaged = scale(exported, node_of(branches, "left.1/addmm.0").name)
    (side,) = beside(branches, artifact, INSTALLED[:1], "none", lambda _captured, _folder: damaged)
    assert side.verdict == "mismatch"
    assert side.divergence is None


# ---- the search ------------------------------------------------------------------------------------------------------


def evaluated(model: RuntimeModel, nodes: Sequence[str]) -> list[Any]:
    """The outputs of a model with marked nodes, by ONNX's evaluator."""
    from onnx.reference import ReferenceEvaluator

    file = model.write(nodes, "evaluated")
    evaluator = ReferenceEvaluator(onnx.load(str(file.model)))
    feeds = dict(zip(evaluator.input_names, map(as_array, model.inputs), strict=True))
    return list(evaluator.run(None, feeds))


def search(
    captured: CapturedGraph, model: RuntimeModel, call: Callable[[Sequence[str]], list[Any]]
) -> tuple[Divergence, list[int]]:
    """The result of a search from the last output, and the numbers of nodes that were marked in each call."""
    counts: list[int] = []

    def counted(nodes: Sequence[str]) -> list[Any]:
        counts.append(len(nodes))
        return call(nodes)

    def is_right(results: Sequence[torch.Tensor]) -> bool:
        return verdict(captured, results) == "ok"

    return DivergenceSearch(captured, model, counted, is_right).find(len(captured.graph.results) - 1), counts


def verdict(captured: CapturedGraph, results: Sequence[torch.Tensor]) -> str:
    """The verdict on the last result."""
    return compare_results(captured, results, run_eager(captured), False)[-1].verdict


def verdict_of(captured: CapturedGraph, model: RuntimeModel) -> str:
    return verdict(captured, model.split(evaluated(model, []))[0])


def test_every_node_that_is_damaged_is_found_with_few_marks(branches: CapturedGraph, exported: RuntimeModel) -> None:
    assert len(exported.values) > 20
    n_found = 0
    for node in exported.values:
        damaged = scale(exported, node, 1.5)
        if verdict_of(branches, damaged) == "ok":  # such as a factor before a normalisation
            continue
        found, counts = search(branches, damaged, lambda nodes, damaged=damaged: evaluated(damaged, nodes))
        assert (found.node, found.kind) == (node_of(branches, node).stable, "node")
        assert max(counts) <= MARKS_PER_CALL
        assert len(counts) == found.runs <= 6
        n_found += 1
    assert n_found > 15


def test_a_damaged_result_is_found_itself(branches: CapturedGraph, exported: RuntimeModel) -> None:
    def call(nodes: Sequence[str]) -> list[Any]:
        outputs = evaluated(exported, nodes)
        return [outputs[0], outputs[1] * 2, *outputs[2:]]

    found, _ = search(branches, exported, call)
    assert found.node == branches.graph.results[-1].stable
    assert found.output is None
    assert found.operands, "the node before it matches"


def test_a_fault_that_a_mark_removes_is_one_of_a_fusion(branches: CapturedGraph, exported: RuntimeModel) -> None:
    """A runtime whose fusion across one node is wrong: it is right as soon as it has to return that value."""
    fused = "norm/getitem.2"
    damaged = scale(exported, node_of(branches, fused).name)

    def call(nodes: Sequence[str]) -> list[Any]:
        return evaluated(exported if node_of(branches, fused).name in nodes else damaged, nodes)

    found, counts = search(branches, damaged, call)
    assert (found.node, found.kind, found.output) == (fused, "fusion", None)
    assert len(counts) == found.runs


# ---- models ----------------------------------------------------------------------------------------------------------


def test_values_have_the_names_of_nodes_and_eagers_numbers(branches: CapturedGraph, exported: RuntimeModel) -> None:
    nodes = list(exported.values)
    results, values = exported.split(evaluated(exported, nodes))
    expected = compute_values(branches.graph, branches.tensors, nodes)
    assert branches.eager is not None
    torch.testing.assert_close(results, branches.eager(branches.tensors))
    for node, value in zip(nodes, values, strict=True):
        torch.testing.assert_close(value, expected[node], msg=lambda text, node=node: f"{node}: {text}")


def test_results_that_are_inputs_or_equal_are_returned(tmp_path: Path) -> None:
    def model(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x.sin()
        return y, x, y, (y > 0)

    captured = captured_program(model, torch.randn(3))
    made = make_model(captured, tmp_path)
    results, _ = made.split(evaluated(made, []))
    assert captured.eager is not None
    torch.testing.assert_close(results, captured.eager(captured.tensors))


def test_programs_without_an_onnx_form_are_named(tmp_path: Path, artifact: Artifact) -> None:
    random = captured_program(lambda x: torch.dropout(x, 0.5, True), torch.ones(64))
    with pytest.raises(NoModelError, match="draws random numbers"):
        make_model(random, tmp_path / "a")
    unsupported = captured_program(lambda x: torch.fft.fft(x).real.sum() + torch.special.zeta(x, x), torch.ones(4) + 1)
    with pytest.raises(NoModelError, match="rejects the program"):
        make_model(unsupported, tmp_path / "b")


@pytest.mark.process
def test_a_runtime_that_rejects_a_model_is_reported_and_the_run_goes_on(
    branches: CapturedGraph, artifact: Artifact, exported: RuntimeModel
) -> None:
    damaged = copied(exported)
    damaged.proto.graph.node[0].op_type = "NoSuchOp"
    reports = beside(branches, artifact, INSTALLED, make=lambda _captured, _folder: damaged)
    assert len(reports) == len(INSTALLED)
    for side in reports:
        assert "NoSuchOp" in side.problem, side.problem


def test_a_missing_package_is_named_with_the_command_to_install_it(
    branches: CapturedGraph, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "find_spec", lambda name: None if name == "openvino" else object())
    with runtime_sides(branches, [OPENVINO], 1, "auto", lambda _what, _done: None) as (side,):
        assert side.problem == "OpenVINO needs openvino, not installed: pip install 'buddy-tui[runtimes]'"


def test_arrays_of_all_types_survive_their_file(tmp_path: Path) -> None:
    tensors = [torch.randn(2, 3), torch.arange(4), torch.tensor(True), torch.empty(0, 2), torch.randn(3).bfloat16()]
    path = tmp_path / "arrays"
    places = sessions.write_arrays(path, [as_array(tensor) for tensor in tensors])
    for tensor, array in zip(tensors, sessions.read_arrays(path, places), strict=True):
        torch.testing.assert_close(as_tensor(array), tensor, rtol=0, atol=0)


# ---- ONNX files ------------------------------------------------------------------------------------------------------


@pytest.fixture
def onnx_program(branches: CapturedGraph, tmp_path: Path) -> CapturedGraph:
    """The same network, opened from an ONNX file."""
    torch.manual_seed(0)
    path = tmp_path / "branches.onnx"
    program = torch.onnx.export(Branches().eval(), (torch.randn(8, 16),), dynamo=True, verbose=False)
    assert program is not None
    program.save(str(path))
    (graph,) = load_program(str(path)).graphs
    return graph


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(ONNX_RUNTIME not in INSTALLED, reason="no onnxruntime")
def test_a_file_is_compared_with_onnxs_evaluator_and_searched(onnx_program: CapturedGraph) -> None:
    program = with_independent_reference(onnx_program)
    assert program.eager is not onnx_program.eager
    recipe = adapt_to_phase(default_recipe(), program.info.entry_phase, program.info.dialects)
    artifact = Compiler(program.graph).compile(recipe).artifact
    node = next(op for op in program.graph.operations if op.target == "onnx.Tanh")

    def make(captured: CapturedGraph, folder: Path) -> RuntimeModel:
        return scale(make_model(captured, folder), node.name)

    (side,) = beside(program, artifact, [ONNX_RUNTIME], make=make)
    assert side.divergence is not None
    assert side.divergence.node == node.stable
