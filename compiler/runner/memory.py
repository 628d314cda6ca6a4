"""Tensors and the memory that compiled code sees: dense, row-major, at an address."""

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


def tensor_at(address: int, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of `shape` that views the memory at `address`; valid as long as that memory is."""
    count = math.prod(shape)
    if not count:
        return torch.empty(tuple(shape), dtype=dtype)
    memory = (ctypes.c_byte * (count * dtype.itemsize)).from_address(address)
    return torch.frombuffer(memory, dtype=dtype).reshape(tuple(shape))
