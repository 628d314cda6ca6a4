"""Nodes of a captured graph as a program of their own, and as a script."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.frontend.capture import GraphRecorder, capture
from buddy.compiler.graph.serialization import ExtractionError, extract_graph, find_nodes
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph, as_array
from buddy.compiler.runtime.graph_interpreter import compute_values
from buddy.compiler.tools.extract import Subgraph, extract, extract_subgraph, make_script


class Model(torch.nn.Module):
    """A product, a transposed view of an attention's result, an op of two results, and a bfloat16 tail."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        heads = self.linear(x).reshape(4, 2, 4).transpose(0, 1)[None]
        mixed = torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)
        flat = mixed.transpose(1, 2).reshape(4, 8)
        values, indices = torch.topk(flat, 2)
        return torch.softmax(flat, -1), values.bfloat16() * 2, indices


@pytest.fixture(scope="module")
def program() -> CapturedGraph:
    torch.manual_seed(0)
    with torch.no_grad():
        (found,) = capture(Model().eval(), (torch.randn(4, 8),))
    return found


def names(program: CapturedGraph, *targets: str) -> list[str]:
    return [op.stable for op in program.graph.operations if op.target.split(".")[0] in targets]


def test_eager_node_by_node_is_eager(program: CapturedGraph) -> None:
    wanted = [str(result) for result in program.graph.results]
    found = compute_values(program.graph, program.tensors, wanted)
    for name, expected in zip(wanted, program.eager(program.tensors), strict=True):
        torch.testing.assert_close(found[name], expected)


def test_what_nodes_read_is_what_eager_computes_up_to_there(program: CapturedGraph) -> None:
    part = extract(program, names(program, "_softmax"))
    (result,) = part.eager(part.tensors)
    torch.testing.assert_close(result, program.eager(program.tensors)[0])
    assert part.graph.kinds == [NodeType.InputNode]
    assert [row.opcode for row in part.info.rows] == ["placeholder", "call_function", "output"]
    assert part.info.rows[1].stable == names(program, "_softmax")[0]
    assert part.info.rows[1].inputs == (0,)


def test_a_value_made_of_parameters_alone_is_a_parameter(program: CapturedGraph) -> None:
    part = extract(program, names(program, "addmm"))
    assert part.graph.kinds.count(NodeType.FakeNode) == 2
    assert len(part.parameters) == 2


def test_a_selection_need_not_be_connected(program: CapturedGraph) -> None:
    part = extract(program, [*names(program, "addmm"), *names(program, "_softmax")])
    assert len(part.graph.results) == 2
    ours = LoadedProgram(compile_graph(part.graph, default_recipe()))(part.tensors)
    for mine, theirs in zip(ours, part.eager(part.tensors), strict=True):
        torch.testing.assert_close(mine, theirs)


def test_results_of_one_op_stay_together(program: CapturedGraph) -> None:
    part = extract(program, names(program, "topk"))
    assert [type(op).__name__ for op in part.graph.operations].count("GetItemOp") == 2
    assert len(part.graph.results) == 2


def test_every_node_stands_for_itself(program: CapturedGraph) -> None:
    """Edges lie as eager gave them: the view behind the attention is one of its strides."""
    whole = Subgraph(program.graph, program.tensors)
    for op in program.graph.operations:
        part = extract_subgraph(whole, [op])
        compute_values(part.graph, part.tensors, [str(result) for result in part.graph.results])


def test_sizes_of_a_call_become_numbers() -> None:
    recorder = GraphRecorder("f")
    x = torch.randn(6, 5)
    torch._dynamo.reset()
    torch.compile(lambda x: (x.reshape(-1) + 1).sum(), backend=recorder, dynamic=True)(x)
    (captured,) = recorder.graphs
    assert captured.graph.symbols
    part = extract_subgraph(Subgraph(captured.graph, captured.tensors, captured.numbers), captured.graph.operations)
    assert not part.graph.symbols
    assert "s0" not in str(part.graph)
    with pytest.raises(ExtractionError, match="depends on data"):
        extract_graph(captured.graph, captured.graph.operations)


def test_names_that_are_none_are_refused(program: CapturedGraph) -> None:
    with pytest.raises(ExtractionError, match="did you mean addmm"):
        find_nodes(program.graph, ["admm"])
    with pytest.raises(ExtractionError, match="no op node 'output'"):
        find_nodes(program.graph, ["output"])
    with pytest.raises(ExtractionError, match="none of these nodes returns a tensor"):
        extract_graph(program.graph, [])


def test_a_script_is_plain_python_and_gives_the_same(program: CapturedGraph, tmp_path: Path) -> None:
    """All of the program: strides, element types that NumPy does not have, parameters."""
    script = make_script(Subgraph(program.graph, program.tensors))
    (tmp_path / f"{script.name}.py").write_text(script.text)
    (tmp_path / f"{script.name}.npz").write_bytes(script.values)
    check = f"from {script.name} import *\nimport numpy\nr = model(*example_inputs)\nnumpy.save('r.npy', r[0].numpy())"
    subprocess.run([sys.executable, "-c", check], cwd=tmp_path, check=True)
    subprocess.run([sys.executable, f"{script.name}.py"], cwd=tmp_path, check=True, capture_output=True)
    expected = program.eager(program.tensors)[0]
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "r.npy")), expected)


def test_a_tensor_keeps_its_bits_and_strides_in_a_script(tmp_path: Path) -> None:
    with torch.no_grad():
        (program,) = capture(lambda x: (x.t().reshape(-1) * 2).float(), (torch.randn(3, 4).bfloat16().t(),))
    part = extract_subgraph(Subgraph(program.graph, program.tensors), program.graph.operations)
    part.tensors[0] = part.tensors[0].t().contiguous().t() if part.tensors[0].is_contiguous() else part.tensors[0]
    script = make_script(part)
    (tmp_path / f"{script.name}.npz").write_bytes(script.values)
    world: dict[str, object] = {"__file__": str(tmp_path / "x.py"), "__name__": "x"}
    exec(script.text, world)
    (given,) = world["example_inputs"]  # type: ignore[misc]
    assert given.stride() == part.tensors[0].stride()
    assert torch.equal(given, part.tensors[0])


def test_a_script_with_random_numbers_gives_those_of_its_seed(tmp_path: Path) -> None:
    (program,) = capture(lambda x: torch.nn.functional.dropout(x, 0.5) + torch.rand(8), (torch.ones(4, 8),))
    script = make_script(Subgraph(program.graph, program.tensors))
    (tmp_path / f"{script.name}.npz").write_bytes(script.values)
    assert "import buddy.compiler.runtime.torch_ops" in script.text  # else a Python of its own has no such op
    world: dict[str, Any] = {"__file__": str(tmp_path / "x.py"), "__name__": "x"}
    exec(script.text, world)
    assert program.eager is not None
    torch.testing.assert_close(world["model"](*world["example_inputs"])[0], program.eager(program.tensors)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float8_e5m2, torch.complex32])
def test_an_element_type_that_numpy_lacks_is_kept_bit_for_bit(dtype: torch.dtype) -> None:
    tensor = torch.tensor([1.5, -0.0, math.inf, math.nan]).to(dtype)
    kept = torch.from_numpy(as_array(tensor, bits=True))
    whole = kept.dtype
    assert torch.equal(kept, tensor.view(whole))
    assert torch.equal(kept.view(dtype).view(whole), tensor.view(whole))
