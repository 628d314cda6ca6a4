"""The road through torch-mlir: by hand for any node, with eager's answer, and with a reason where there is none."""

from __future__ import annotations

import msgspec
import pytest
import torch

from buddy.compiler.graph import serialize
from buddy.compiler.ops.torch_mlir import apart
from buddy.compiler.ops.utils import LoweringError
from buddy.compiler.presets import default_recipe
from buddy.compiler.recipe import EAGER, TORCH_MLIR, OpChoice
from tests.ops.cases import normal, whole
from tests.programs import Line, assert_same


def program(x: torch.Tensor, y: torch.Tensor, n: torch.Tensor, parts: torch.Tensor) -> list[torch.Tensor]:
    """Numbers, lists, `None`, a dtype and a tensor list as arguments; several results; integers, bools, a scalar."""
    values, mean = torch.var_mean(x, dim=[1], correction=0, keepdim=True)
    joined = torch.cat([x, y], 1)
    clamped = torch.clamp(y, min=-0.5)
    left, right = torch.split(parts, [2, 3])
    total = torch.sum(n, dtype=torch.float32)
    return [torch.atan2(x, y), values, mean, joined, clamped, n * 3 + 1, total, x > y, left, right]


INPUTS = (normal(3, 4), normal(3, 4), whole(-5, 5, 4, 2).int(), normal(5, 2))


def by_hand(line: Line, road: str) -> dict[str, tuple[str, str]]:
    """The road and the reason of each node when all of them are sent down `road`, where the answer is eager's."""
    choices = tuple(OpChoice(op.stable, road) for op in line.program.graph.operations)
    recipe = msgspec.structs.replace(default_recipe(), choices=tuple(sorted(choices)))
    found = {a.node: (a.lowering, a.reason) for a in line.compile(recipe).assignments}
    assert_same(line.run(recipe), program(*INPUTS))
    return found


def test_every_node_can_be_sent_through_torch_mlir_by_hand() -> None:
    line = Line(program, *INPUTS)
    roads = by_hand(line, TORCH_MLIR)
    sent = [node for node, (road, _) in roads.items() if road == TORCH_MLIR]
    assert len(sent) >= 8, roads
    assert EAGER not in {road for road, _ in roads.values()}


def test_what_the_importer_needs_to_know_of_torch_crosses_processes() -> None:
    graph = Line(program, *INPUTS).program.graph
    again = serialize.from_bytes(serialize.to_bytes(graph))
    assert [op.schema for op in again.operations] == [op.schema for op in graph.operations]
    (cat,) = [op for op in again.operations if op.target == "cat.default"]
    assert cat.schema is not None
    assert [p.name for p in cat.schema.parameters] == ["tensors", "dim"]
    assert cat.schema.parameters[1].default == 0


def test_an_op_that_neither_we_nor_torch_mlir_lower_says_both_reasons() -> None:
    line = Line(lambda x: torch.geqrf(x)[0], normal(4, 4))
    (found,) = [a for a in line.compile().assignments if a.node.startswith("geqrf")]
    assert found.lowering == EAGER
    assert "torch-mlir: the torch dialect has no op torch.aten.geqrf" in found.reason


DIES = """
func.func @node(%x: !torch.vtensor<[5,0,5],f32>) -> !torch.vtensor<[0,3],si64> {
  %0 = torch.aten.nonzero %x : !torch.vtensor<[5,0,5],f32> -> !torch.vtensor<[0,3],si64>
  return %0 : !torch.vtensor<[0,3],si64>
}
"""
LIVES = """
func.func @node(%x: !torch.vtensor<[5],f32>) -> !torch.vtensor<[5],f32> {
  %0 = torch.aten.tanh %x : !torch.vtensor<[5],f32> -> !torch.vtensor<[5],f32>
  return %0 : !torch.vtensor<[5],f32>
}
"""


def test_passes_that_die_leave_a_reason_and_the_next_op_is_lowered() -> None:
    with pytest.raises(LoweringError, match="SIGFPE"):
        apart.lowered(DIES)
    assert "linalg.generic" in apart.lowered(LIVES)
    with pytest.raises(LoweringError):
        apart.lowered("func.func @node(")
