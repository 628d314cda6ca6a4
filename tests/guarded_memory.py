"""Tensors whose elements are all that lies between two pages that nobody may touch: to read or write beyond ends the
process, with the name of the test."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Iterable, Sequence
from typing import Literal
from unittest.mock import patch

import torch

from buddy.compiler.runtime import LoadedProgram

Edge = Literal["first", "last"]
EDGES: tuple[Edge, ...] = ("first", "last")
_libc = ctypes.CDLL(None, use_errno=True)


def guarded(tensor: torch.Tensor, edge: Edge) -> torch.Tensor:
    """A dense copy whose `first` byte is the first of a page behind a forbidden one, or whose `last` byte is the last
    of a page before one."""
    dense = tensor.detach().resolve_conj().resolve_neg().contiguous()
    copy = empty(dense.shape, dense.dtype, edge)
    return copy.copy_(dense)


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


def run_guarded(program: LoadedProgram, tensors: Sequence[torch.Tensor], edge: Edge) -> list[torch.Tensor]:
    """The results of `program`, in guarded memory, as its inputs are."""
    inputs = [guarded(tensor, edge) for tensor in tensors]
    with patch.object(program._memory, "tensor", lambda _number, shape, dtype: empty(shape, dtype, edge)):
        return program(inputs)
