"""Lowering by torch-mlir: by hand for any node, with eager's answer, and with a reason where there is none."""

from __future__ import annotations

import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest
import torch

from buddy.compiler.driver import program_cache
from buddy.compiler.frontend import backend, compiled_graph, segment_gradients
from buddy.compiler.graph import serialization
from buddy.compiler.ops.torch_mlir import separate_process
from buddy.compiler.ops.utils import LoweringError, TransientLoweringError
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, OpChoice
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


def by_hand(line: Line, lowering: str) -> dict[str, tuple[str, str]]:
    """The lowering and the reason of each node if `lowering` is chosen for all of them."""
    choices = tuple(OpChoice(op.stable, lowering) for op in line.program.graph.operations)
    recipe = msgspec.structs.replace(default_recipe(), choices=tuple(sorted(choices)))
    found = {a.node: (a.lowering, a.reason) for a in line.compile(recipe).assignments}
    assert_same(line.run(recipe), program(*INPUTS))
    return found


def test_every_node_can_be_sent_through_torch_mlir_by_hand() -> None:
    line = Line(program, *INPUTS)
    lowerings = by_hand(line, TORCH_MLIR)
    sent = [node for node, (lowering, _) in lowerings.items() if lowering == TORCH_MLIR]
    assert len(sent) >= 8, lowerings
    assert EAGER not in {lowering for lowering, _ in lowerings.values()}


def test_what_the_importer_needs_to_know_of_torch_crosses_processes() -> None:
    graph = Line(program, *INPUTS).program.graph
    again = serialization.from_bytes(serialization.to_bytes(graph))
    assert [op.schema for op in again.operations] == [op.schema for op in graph.operations]
    (cat,) = [op for op in again.operations if op.target == "cat.default"]
    assert cat.schema is not None
    assert [p.name for p in cat.schema.parameters] == ["tensors", "dim"]
    assert cat.schema.parameters[1].default == 0


def test_an_op_that_neither_we_nor_torch_mlir_lower_says_both_reasons() -> None:
    line = Line(lambda x: torch.histogram(x, 3)[0], normal(4, 4))
    (found,) = [a for a in line.compile().assignments if a.node.startswith("histogram")]
    assert found.lowering == EAGER
    assert "torch-mlir: the torch dialect has no op torch.aten.histogram.bin_ct" in found.reason


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
        separate_process.lower_text(DIES)
    assert "linalg.generic" in separate_process.lower_text(LIVES)
    with pytest.raises(LoweringError):
        separate_process.lower_text("func.func @node(")


def texts(count: int) -> list[str]:
    return [LIVES.replace("[5]", f"[{size}]") for size in range(6, 6 + count)]


def test_answers_go_to_their_questions_whatever_happens_between() -> None:
    """A question that an alarm interrupts leaves nothing in the pipe, and two threads get one answer each."""

    def alarm(*_: object) -> None:
        raise KeyboardInterrupt

    separate_process.lower_text(LIVES)
    before = signal.signal(signal.SIGALRM, alarm)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001)  # the passes take longer
        with pytest.raises(KeyboardInterrupt):
            separate_process.lower_text(LIVES.replace("[5]", "[77]"))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    with ThreadPoolExecutor(2) as pool:
        for text, found in zip(texts(6), pool.map(separate_process.lower_text, texts(6)), strict=True):
            assert text.partition("<")[2].partition("]")[0].strip("[") in found.partition("tensor<")[2]


def test_a_process_that_was_killed_is_replaced_and_one_that_is_silent_is_remembered(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What is compiled in the place of the silent one's lowering is not kept on disk."""
    monkeypatch.setenv("BUDDY_CACHE", str(tmp_path))
    line = Line(torch.tanh, normal(5))
    (node,) = [op.stable for op in line.program.graph.operations]
    recipe = msgspec.structs.replace(default_recipe(), choices=(OpChoice(node, TORCH_MLIR),))
    with monkeypatch.context() as patch:
        patch.setattr(separate_process, "_processes", [separate_process._Process()])
        patch.setattr(separate_process, "TIMEOUT_SECONDS", 0.0)
        compiled_graph._compile_and_store(line.program.graph, recipe, backend.BackendSettings(), None)
        assert program_cache.find_program(line.program.graph, recipe) is None
        patch.setattr(separate_process, "TIMEOUT_SECONDS", 60.0)
        (text,) = separate_process._processes[0]._cache
        with pytest.raises(TransientLoweringError, match="took more than 0 s"):
            separate_process.lower_text(text)
    separate_process.lower_text(LIVES)
    worker = separate_process._processes[0]._worker
    assert worker is not None
    worker.kill()
    assert "linalg.generic" in separate_process.lower_text(text)
    compiled_graph._compile_and_store(line.program.graph, recipe, backend.BackendSettings(), None)
    assert program_cache.find_program(line.program.graph, recipe) is not None


def test_a_lowering_that_does_not_read_a_tensor_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch-mlir's of `_embedding_bag` leaves the weights of the samples out; the op is decomposed before it."""
    monkeypatch.delitem(segment_gradients.CONDITIONAL_DECOMPOSITIONS, torch.ops.aten._embedding_bag.default)
    table, at, bags, weights = normal(6, 4), torch.tensor([0, 2, 5]), torch.tensor([0, 2]), normal(3)

    def bag(w: torch.Tensor, p: torch.Tensor) -> list[torch.Tensor]:
        return list(torch.ops.aten._embedding_bag(w, at, bags, False, 0, False, p)[:3])

    line = Line(bag, table, weights)
    (found,) = [a for a in line.compile().assignments if a.node.startswith("_embedding_bag")]
    assert found.lowering == EAGER
    assert "torch-mlir: the lowering ignores" in found.reason
    assert_same(line.run(), bag(table, weights))
