"""Converts torch's element types, devices and layouts to their plain forms in the Buddy graph, and back.

Also evaluates the symbolic sizes of a call, and makes tensors dense.
"""

from __future__ import annotations

import zlib
from ast import literal_eval
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from buddy.compiler.graph.serialization import Opaque
from buddy.compiler.graph.sizes import Size, parse_size, value_of
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.protocol.artifact import ArtifactSymbol, TensorSpec


class RuntimeShape:
    """The shape of a spec; it is evaluated in each call if it is `dynamic`, that is, if a size is symbolic."""

    def __init__(self, spec: TensorSpec) -> None:
        self.sizes = tuple(map(parse_size, spec.shape))
        self.dynamic = any(isinstance(size, Size) for size in self.sizes)

    def at(self, symbols: Mapping[str, int]) -> tuple[int, ...]:
        """Returns the shape for the values of `symbols`."""
        return tuple(value_of(size, symbols) for size in self.sizes) if self.dynamic else self.sizes  # type: ignore[return-value]

    @property
    def is_passed(self) -> bool:
        """True if a call passes a pointer: tensors that never have elements are not passed."""
        return 0 not in self.sizes


def bind_symbols(
    symbols: Sequence[ArtifactSymbol], tensors: Sequence[torch.Tensor], numbers: Sequence[int]
) -> dict[str, int]:
    """Returns the value of each symbol in a call on `tensors` and `numbers`."""
    bound = {}
    for symbol in symbols:
        values = numbers if symbol.source < 0 else tensors[symbol.source].shape
        bound[symbol.name] = int(values[symbol.index])
    return bound


_DTYPES = {
    torch.bool: TensorDType.Bool,
    torch.uint8: TensorDType.UInt8,
    torch.uint16: TensorDType.UInt16,
    torch.uint32: TensorDType.UInt32,
    torch.uint64: TensorDType.UInt64,
    torch.int8: TensorDType.Int8,
    torch.int16: TensorDType.Int16,
    torch.int32: TensorDType.Int32,
    torch.int64: TensorDType.Int64,
    torch.float8_e4m3fn: TensorDType.Float8E4M3FN,
    torch.float8_e5m2: TensorDType.Float8E5M2,
    torch.float8_e4m3fnuz: TensorDType.Float8E4M3FNUZ,
    torch.float8_e5m2fnuz: TensorDType.Float8E5M2FNUZ,
    torch.float16: TensorDType.Float16,
    torch.bfloat16: TensorDType.BFloat16,
    torch.float32: TensorDType.Float32,
    torch.float64: TensorDType.Float64,
    torch.complex64: TensorDType.Complex64,
    torch.complex128: TensorDType.Complex128,
}
_TORCH_DTYPES = {dtype: torch_dtype for torch_dtype, dtype in _DTYPES.items()}

# The start of the texts of `tensor_form`.
_TENSOR_FORM_PREFIX = "like"


def from_torch_dtype(dtype: torch.dtype) -> TensorDType | None:
    """Returns the Buddy element type, or `None` for unsupported ones (complex32, quantised types)."""
    return _DTYPES.get(dtype)


def resolve_lazy(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a tensor whose elements are in memory: applies lazy conjugation and negation, and writes lazy zeros.

    A zero tensor (`Tensor._is_zerotensor`), which forward-mode differentiation makes, has the address 0.
    """
    resolved = tensor.resolve_conj().resolve_neg()
    return resolved.clone() if resolved._is_zerotensor() else resolved


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor row-major, with its elements in memory (`resolve_lazy`)."""
    return resolve_lazy(tensor).contiguous()


def dense_bytes(tensor: torch.Tensor) -> memoryview:
    """Returns the elements of a tensor as bytes, row-major; copies them only if the tensor is not row-major."""
    rows = dense(tensor.detach())
    # A tensor without elements is contiguous with any stride, but only one with stride 1 can be viewed as bytes.
    return memoryview(rows.as_strided((rows.numel(),), (1,)).view(torch.uint8).numpy())


def fingerprints(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Returns a checksum of each tensor's bytes."""
    return [zlib.crc32(dense_bytes(tensor)) for tensor in tensors]


def to_torch_dtype(dtype: TensorDType) -> torch.dtype:
    """Returns torch's element type; `from_torch_dtype` is the inverse."""
    return _TORCH_DTYPES[dtype]


def to_plain_argument(value: object) -> object:
    """Converts an FX argument that is not a node to the Buddy graph's form.

    Raises `TypeError` for unsupported types.
    """
    if isinstance(value, torch.dtype):
        dtype = from_torch_dtype(value)
        return Opaque(str(value)) if dtype is None else dtype
    if isinstance(value, (torch.device, torch.layout, torch.memory_format)):
        return Opaque(str(value))
    if isinstance(value, complex):
        return Opaque(repr(value))
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"an argument of type {type(value).__name__}")


def tensor_form(tensor: torch.Tensor) -> Opaque | None:
    """Returns the shape, strides and element type of a tensor as an argument; `None` if a size is symbolic."""
    dtype, sizes = from_torch_dtype(tensor.dtype), (*tensor.shape, *tensor.stride())
    if dtype is None or not all(isinstance(size, int) for size in sizes):
        return None
    return Opaque(f"{_TENSOR_FORM_PREFIX}({tuple(tensor.shape)}, {tensor.stride()}, {dtype.value!r})")


def from_opaque(text: str) -> Any:
    """Returns the torch value of an `Opaque` text: a device, dtype, layout, memory format or complex number.

    `to_plain_argument` and `tensor_form` return such texts. The output of `tensor_form` becomes an uninitialised tensor
    of that form.
    """
    if text.startswith(_TENSOR_FORM_PREFIX):
        shape, strides, dtype = literal_eval(text.removeprefix(_TENSOR_FORM_PREFIX))
        return torch.empty_strided(shape, strides, dtype=to_torch_dtype(TensorDType(dtype)))
    if text.startswith("torch."):
        return getattr(torch, text.removeprefix("torch."))
    try:
        return complex(text)
    except ValueError:
        return torch.device(text)
