"""Scratch memory of programs: reused by each call, shared by programs, and never by calls that overlap."""

from __future__ import annotations

import pytest
import torch

from buddy.compiler.runtime.buffers import WorkArena
from tests.programs import assert_same


def test_programs_that_share_an_arena_work_in_memory_of_the_larger_one() -> None:
    arena = WorkArena()
    for size in (64, 4096, 128):
        arena.reserve(size)
    memory, address = arena.lend()
    assert (len(memory), list(arena.words)) == (4096, [address, 1])


def test_a_larger_program_gets_new_memory() -> None:
    arena = WorkArena(64)
    arena.lend()
    arena.words[1] = 0  # the call has ended
    arena.reserve(4096)
    assert arena.words[0] == 0
    memory, address = arena.lend()
    assert (len(memory), list(arena.words)) == (4096, [address, 1])


def test_memory_that_a_call_uses_stays_when_the_arena_grows() -> None:
    arena = WorkArena(64)
    memory, _ = arena.lend()
    storage = memory.untyped_storage()._cdata
    arena.reserve(4096)
    assert [old.untyped_storage()._cdata for old in arena._outgrown] == [storage]


def test_native_and_other_calls_have_separate_memory() -> None:
    arena = WorkArena(64)
    lent, _ = arena.lend()
    with arena.borrow() as borrowed, arena.borrow() as second:
        assert len({memory.data_ptr() for memory in (lent, borrowed, second)}) == 3
    arena.reserve(128)
    with arena.borrow() as borrowed:
        assert len(borrowed) == 128


@pytest.mark.usefixtures("fresh_dynamo")
def test_forward_and_backward_graph_work_in_one_arena(monkeypatch: pytest.MonkeyPatch) -> None:
    reserved: list[tuple[WorkArena, int]] = []
    reserve = WorkArena.reserve

    def record(arena: WorkArena, size: int) -> None:
        reserve(arena, size)
        reserved.append((arena, size))

    monkeypatch.setattr(WorkArena, "reserve", record)

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.softmax(torch.relu(x @ w) @ w, -1).square().sum()

    # Scaled, so that a product with the weights keeps the size of its operand.
    inputs = [torch.randn(64, 256, requires_grad=True), (torch.randn(256, 256) / 16).requires_grad_()]
    compiled = torch.compile(loss, backend="buddy", dynamic=False, options={"fallback": "error"})
    expected = torch.autograd.grad(loss(*inputs), inputs)
    for _ in range(3):  # through AOTAutograd's function, then native ones
        assert_same(torch.autograd.grad(compiled(*inputs), inputs), expected)
    (arena, forward), (other, backward) = reserved
    assert arena is other
    assert min(forward, backward) > 0
    assert len(arena.lend()[0]) == max(forward, backward)
