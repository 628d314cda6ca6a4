"""Tensors whose elements are all that lies between two pages that nobody may touch: to read or write beyond ends the
process, with the name of the test."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal
from unittest.mock import patch

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from buddy.compiler.runtime import LoadedProgram, executable
from buddy.compiler.runtime.buffers import BufferPool

Edge = Literal["first", "last"]
EDGES: tuple[Edge, ...] = ("first", "last")
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(tensor: torch.Tensor, edge: Edge) -> torch.Tensor:
    """A dense copy whose `first` byte is the first of a page behind a forbidden one, or whose `last` byte is the last
    of a page before one."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    copy = empty(dense.shape, dense.dtype, edge)
    return copy.copy_(dense)


def guarded_arguments(arguments: Any, edge: Edge) -> Any:
    """Nested arguments whose strided tensors are copied to guarded memory, with their strides, lazy conjugations and
    signs. Tensors that share memory share the copy, which reaches from the first of their bytes to the last."""
    bounds: dict[int, tuple[int, int]] = {}
    strided = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor) and _is_copied(leaf)]
    for tensor in strided:
        start, end = _bytes_of(tensor)
        known = bounds.get(tensor.untyped_storage().data_ptr(), (start, end))
        bounds[tensor.untyped_storage().data_ptr()] = (min(start, known[0]), max(end, known[1]))
    copies: dict[int, torch.Tensor] = {}

    def copied(tensor: torch.Tensor) -> torch.Tensor:
        if not _is_copied(tensor):
            return tensor
        address = tensor.untyped_storage().data_ptr()
        start, end = bounds[address]
        if address not in copies:
            copies[address] = empty((end - start,), torch.uint8, edge)
            ctypes.memmove(copies[address].data_ptr(), address + start, end - start)
        offset = _bytes_of(tensor)[0] - start
        whole = copies[address][offset : end - start - (end - start - offset) % tensor.itemsize].view(tensor.dtype)
        view = whole.as_strided(tensor.shape, tensor.stride())
        view = view.conj() if tensor.is_conj() else view
        return torch._neg_view(view) if tensor.is_neg() else view

    return tree_map_only(torch.Tensor, copied, arguments)


def _is_copied(tensor: torch.Tensor) -> bool:
    return tensor.layout == torch.strided and tensor.numel() > 0 and not tensor.requires_grad


def _bytes_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The offset of the tensor's first byte in its storage, and that behind its last."""
    span = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.storage_offset() * tensor.itemsize, (tensor.storage_offset() + span) * tensor.itemsize


def empty(shape: Iterable[int], dtype: torch.dtype, edge: Edge) -> torch.Tensor:
    made = torch.empty(tuple(shape), dtype=dtype)
    if not made.nbytes:
        return made
    page = mmap.PAGESIZE
    room = -(-made.nbytes // page) * page
    memory = mmap.mmap(-1, room + 2 * page)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for forbidden in (address, address + page + room):
        if _libc.mprotect(ctypes.c_void_p(forbidden), ctypes.c_size_t(page), 0):
            raise OSError(ctypes.get_errno(), "mprotect failed")
    offset = page if edge == "first" else page + room - made.nbytes
    return torch.frombuffer(memory, dtype=dtype, count=made.numel(), offset=offset).reshape(made.shape)


@contextmanager
def guarded_results(edge: Edge) -> Iterator[None]:
    """Programs that are called meanwhile have their results in guarded memory. It holds for programs that are loaded
    meanwhile too: calls of others may allocate results natively."""

    def tensor(_pool: BufferPool, _number: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return empty(shape, dtype, edge)

    with patch.object(executable, "native_function_address", lambda: 0), patch.object(BufferPool, "tensor", tensor):
        yield


def run_guarded(program: LoadedProgram, tensors: Sequence[torch.Tensor], edge: Edge) -> list[torch.Tensor]:
    """The results of `program`, in guarded memory, as its inputs are."""
    inputs = [guarded(tensor, edge) for tensor in tensors]
    # Native calls allocate results themselves.
    with patch.object(program, "_call", None), guarded_results(edge):
        return program(inputs)
