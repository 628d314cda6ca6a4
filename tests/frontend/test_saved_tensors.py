"""Tests what a forward graph saves and what the backward graph recomputes: the former against what PyTorch saves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from buddy.app.reports.nodes import RoleMemory, TrainingMemory, training_memory
from buddy.compiler.frontend.capture import GraphRecorder, capture
from buddy.compiler.runtime.captured import CapturedGraph


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (2, 8)).transpose(1, 2) for t in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.5), nn.Linear(16, 4))


def convolutions() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 4, 1))


def memories(graphs: list[CapturedGraph]) -> list[TrainingMemory]:
    found = [training_memory(graph.info) for graph in graphs]
    assert len(found) == 2
    assert all(memory is not None for memory in found)
    return [memory for memory in found if memory is not None]


def share_of_tensors(tensors: list[torch.Tensor]) -> RoleMemory:
    return RoleMemory(len(tensors), sum(t.numel() * t.element_size() for t in tensors), 0, 0)


@pytest.mark.parametrize(
    ("make", "shape"),
    [(mlp, (3, 8)), (convolutions, (2, 3, 10, 10)), (Attention, (2, 5, 16))],
    ids=["layers", "convolutions", "attention"],
)
def test_what_is_saved_is_what_autograd_saves(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    model, x = make(), torch.randn(shape, requires_grad=True)
    saved = list[torch.Tensor]()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        graphs = capture(model, (x,), grad=True)
    inputs = {tensor.data_ptr() for tensor in (x, *model.parameters(), *model.buffers())}
    kept = [tensor for tensor in saved if tensor.data_ptr() not in inputs]
    reread = [tensor for tensor in saved if tensor.data_ptr() in inputs]
    assert kept
    assert reread
    for memory in memories(graphs):
        assert memory.saved == share_of_tensors(kept)
        assert memory.reread == share_of_tensors(reread)
        assert memory.recomputed.count == 0


def test_the_backward_graph_receives_what_the_forward_graph_saves() -> None:
    forward, backward = capture(Attention(), (torch.randn(2, 5, 16, requires_grad=True),), grad=True)
    received = [row for row in backward.info.rows if row.opcode == "placeholder" and "tangents" not in row.name]
    assert {row.training for row in received} == {"saved", "reread"}
    for role in ("saved", "reread"):
        shapes = [Counter(row.shape for row in rows if row.training == role) for rows in (forward.info.rows, received)]
        assert shapes[0] == shapes[1]
    assert {row.training for row in forward.info.rows if row.opcode == "placeholder"} == {"", "reread"}


def test_checkpointed_ops_are_recomputed() -> None:
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    def recomputed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(lambda y: model(y.sin()), x, use_reentrant=False)

    graphs = capture(recomputed, (torch.randn(3, 8, requires_grad=True),), grad=True)
    for graph, memory in zip(graphs, memories(graphs), strict=True):
        names = [row.target for row in graph.info.rows if row.training == "recomputed"]
        assert names == ["aten.sin.default", "aten.addmm.default", "aten.gelu.default"]
        assert memory.saved == RoleMemory(0, 0, 0, 0)
        assert memory.recomputed == RoleMemory(3, 4 * (3 * 8 + 3 * 16 + 3 * 16), 0, 0)


def test_numbers_that_a_checkpoint_draws_again_are_recomputed_from_the_saved_seed() -> None:
    model = mlp()

    def recomputed(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(model, x, use_reentrant=False)

    for memory in memories(capture(recomputed, (torch.randn(3, 8, requires_grad=True),), grad=True)):
        assert memory.saved == RoleMemory(1, 8, 0, 0)  # one int64
        assert memory.recomputed.count == 5  # addmm, gelu, the mask, its scale and their product
        assert memory.recomputed.bytes == 5 * 4 * 3 * 16


def test_what_only_random_ops_read_is_not_computed_again() -> None:
    _, backward = capture(mlp(), (torch.randn(3, 8, requires_grad=True),), grad=True)
    assert "aten.gelu.default" not in [row.target for row in backward.info.rows]


def test_sizes_that_vary_are_those_of_the_captured_call() -> None:
    model, x = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(5, 8, requires_grad=True)
    torch._dynamo.mark_dynamic(x, 0)
    recorder = GraphRecorder()
    torch.compile(model, backend=recorder)(x).sum().backward()
    for memory in memories(recorder.graphs):
        assert memory.saved == RoleMemory(2, 2 * 4 * 5 * 16, 2, 0)
        assert memory.saved.text == "~640 B"
    torch._dynamo.reset()


def test_an_inference_graph_saves_nothing() -> None:
    (graph,) = capture(mlp(), (torch.randn(3, 8),))
    assert training_memory(graph.info) is None
