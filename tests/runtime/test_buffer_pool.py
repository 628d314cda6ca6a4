"""Results' memory is handed out again once nobody can see it, and never before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from buddy.compiler.runtime import buffers
from buddy.compiler.runtime.buffers import MAX_POOLED_BYTES, MIN_POOLED_BYTES, BufferPool

SHAPE = (MIN_POOLED_BYTES // 4, 3)


def made(memory: BufferPool, value: float, shape: tuple[int, ...] = SHAPE) -> torch.Tensor:
    return memory.tensor(0, shape, torch.float32).fill_(value)


def test_what_was_dropped_is_where_the_next_result_stands() -> None:
    memory = BufferPool(1)
    places = {made(memory, 1.0).data_ptr() for _ in range(5)}
    assert len(places) == 1
    result = made(memory, 2.0)
    assert result.shape == SHAPE
    assert result.is_contiguous()


def test_a_loop_that_holds_one_result_works_in_two_places() -> None:
    memory, places, held = BufferPool(1), set(), None
    for number in range(6):
        held = made(memory, float(number))
        places.add(held.data_ptr())
    assert len(places) == 2


@pytest.mark.parametrize(
    "hold",
    [
        lambda result: result,
        lambda result: result[3:],
        lambda result: result.numpy(),
        lambda result: result.untyped_storage(),
        lambda result: torch.utils.dlpack.to_dlpack(result),
        lambda result: memoryview(result.numpy()),
        lambda result: torch.nn.Parameter(result),
        lambda result: torch.ones(1, requires_grad=True).expand(SHAPE) * result,
    ],
    ids=["itself", "view", "numpy", "storage", "dlpack", "buffer", "parameter", "autograd"],
)
def test_what_somebody_holds_is_left_alone(hold: Callable[[torch.Tensor], Any]) -> None:
    memory = BufferPool(1)
    result = made(memory, 1.0)
    place, held = result.data_ptr(), hold(result)
    del result
    others = [made(memory, 2.0) for _ in range(4)]
    assert place not in [other.data_ptr() for other in others]
    del held


def test_a_result_in_shared_memory_is_not_handed_out_again() -> None:
    memory = BufferPool(1)
    result = made(memory, 1.0)
    result.share_memory_()
    place = result.data_ptr()
    del result
    assert made(memory, 2.0).data_ptr() != place


def test_results_are_in_the_hosts_memory_whatever_the_default_device_is() -> None:
    memory = BufferPool(1)
    with torch.device("meta"):
        for shape in (SHAPE, SHAPE, (3,)):
            assert memory.tensor(0, shape, torch.float32).device.type == "cpu"


def test_another_size_or_dtype_is_right_too() -> None:
    memory = BufferPool(1)
    for shape in (SHAPE, (SHAPE[0], 5), SHAPE, (0, 3), ()):
        assert made(memory, 3.0, shape).shape == shape
    wide = memory.tensor(0, (SHAPE[0] // 2, 3), torch.float64)
    assert wide.dtype == torch.float64
    assert wide.fill_(1).sum().item() == wide.numel()


def test_programs_keep_no_more_than_their_share() -> None:
    memory = BufferPool(3)
    for number in range(3):
        for _ in range(3):
            memory.tensor(number, (MAX_POOLED_BYTES // 2 + 8,), torch.uint8)
    kept = [storage.nbytes() for storages in memory._storages for storage in storages]
    assert 0 < sum(kept) <= MAX_POOLED_BYTES


def test_a_torch_that_does_not_count_uses_gets_new_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "storage_use_count", None)
    memory = BufferPool(1)
    first = made(memory, 1.0)
    del first
    made(memory, 2.0)
    assert memory._storages == [[]]


def test_compiled_results_outlive_later_calls() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: x + 1, backend="buddy")
    inputs = [torch.full((300, 300), float(number)) for number in range(4)]
    results = [compiled(x) for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        torch.testing.assert_close(result, x + 1)
    chained = inputs[0]
    for _ in range(5):
        chained = compiled(chained)
    torch.testing.assert_close(chained, inputs[0] + 5)


@pytest.mark.parametrize("held", [False, True], ids=["dropped", "held"])
def test_what_is_held_is_told_while_dynamo_is_at_work(held: bool) -> None:
    """Dynamo has the interpreter call functions in another way, in which they hold their arguments once more."""
    memory = BufferPool(1)
    result = made(memory, 1.0)
    place, kept = result.data_ptr(), result.untyped_storage() if held else None
    del result
    torch._dynamo.reset()
    torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    before = torch._C._dynamo.eval_frame.set_eval_frame(False)
    try:
        assert (made(memory, 2.0).data_ptr() == place) is not held
    finally:
        torch._C._dynamo.eval_frame.set_eval_frame(before)
    assert kept is None or kept.nbytes() >= MIN_POOLED_BYTES
