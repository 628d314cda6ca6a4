"""Ranked memref descriptors of MLIR's C interface: allocated, aligned, offset, sizes, strides, 8 bytes each."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence

import torch

from buddy.compiler.artifact import TensorSpec
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.torch_values import to_torch


def torch_dtype(spec: TensorSpec) -> torch.dtype:
    return to_torch(TensorDType(spec.dtype))


def words(rank: int) -> int:
    """How many 8-byte words the descriptor of a memref of `rank` takes."""
    return 3 + 2 * rank


def dense_strides(shape: Sequence[int]) -> list[int]:
    """Row-major strides, in elements."""
    return [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]


def static_words(shape: Sequence[int]) -> list[int]:
    """The descriptor of a dense tensor of `shape`, its two pointers left 0."""
    return [0, 0, 0, *shape, *dense_strides(shape)]


def tensor_at(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor that views the memory a descriptor at `address` describes; valid as long as that memory is.

    Sizes are `shape`'s; offset and strides are the descriptor's, so views of a buffer are seen as such.
    """
    rank = len(shape)
    descriptor = (ctypes.c_int64 * words(rank)).from_address(address)
    if 0 in shape:
        return torch.empty(tuple(shape), dtype=dtype)
    strides = list(descriptor[3 + rank : 3 + 2 * rank])
    count = 1 + sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    width = torch.empty((), dtype=dtype).element_size()
    memory = (ctypes.c_byte * (count * width)).from_address(descriptor[1] + descriptor[2] * width)
    return torch.frombuffer(memory, dtype=dtype).as_strided(tuple(shape), strides)
