"""Finds out which tensors that a forward graph saved are used by nothing but the call of its backward graph.

Such a call may write gradients to their memory after their last use, so that gradients and saved tensors need not be
in memory at the same time. A tensor may be in use elsewhere: it is a result of the program, hooks on saved tensors keep
it, or the graph is retained for another backward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from sys import getrefcount
from typing import Any, Protocol

import torch

from buddy.compiler.runtime.buffers import references_of_listed_object, storage_use_count


def releases_saved_tensors() -> bool:
    """True inside a backward pass that releases saved tensors after use, and whose results have no gradients."""
    # Dynamo, for compiled autograd, cannot trace the question.
    if torch.compiler.is_compiling():
        return False
    return not torch.is_grad_enabled() and not torch._C._autograd._get_current_graph_task_keep_graph()


class Lend(Protocol):
    """Returns a context in which a call may write results to those of its inputs `tensors` that nothing else uses.

    Returns `None` if it writes to none. See `unshared_storages` for the parameters.
    """

    def __call__(
        self, tensors: Sequence[torch.Tensor], is_released: bool = False
    ) -> AbstractContextManager[None] | None: ...


def unshared_storages(
    tensors: Sequence[torch.Tensor], numbers: Iterable[int], is_released: bool = False
) -> dict[int, torch.UntypedStorage]:
    """Returns the storages of those tensors with `numbers` that nothing else uses, by number.

    A tensor that does not begin at the start of its storage is left out: scratch memory may lie after the tensor.
    `tensors` are a tuple with saved tensors, made inside the backward function of an autograd function. In Python, only
    this tuple may refer to them, and only a `BufferPool` to their storages. `is_released` says that the autograd
    function has released its saved tensors.
    """
    expected = _expected_counts()
    if expected is not None and is_released:
        expected = (0, expected[1])
    return {
        number: tensors[number].untyped_storage()
        for number in numbers
        if expected is not None and tensors[number].storage_offset() == 0 and _count_uses(tensors, number) == expected
    }


def _count_uses(tensors: Sequence[torch.Tensor], number: int) -> tuple[int, int]:
    """Returns the number of references to a tensor, less those of a listed object, and that of users of its storage."""
    assert storage_use_count is not None
    tensor = tensors[number]
    references = getrefcount(tensor) - references_of_listed_object()
    storage = tensor.untyped_storage()
    return references, -1 if storage.is_shared() else storage_use_count(storage._cdata)


@lru_cache(maxsize=1)
def _expected_counts() -> tuple[int, int] | None:
    """Returns the result of `_count_uses` for a tensor that nothing else uses; `None` if it cannot be found out."""
    if storage_use_count is None:
        return None
    counts: list[tuple[int, int]] = []

    class SaveOne(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(torch.zeros(4, device="cpu"))
            return x.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            inputs = (*ctx.saved_tensors, gradient)
            counts.append(_count_uses(inputs, 0))
            return gradient

    with torch.enable_grad():
        x = torch.ones(4, device="cpu", requires_grad=True)
        torch.autograd.grad(SaveOne.apply(x).sum(), x)
    return counts[0] if counts and counts[0][1] > 0 else None
