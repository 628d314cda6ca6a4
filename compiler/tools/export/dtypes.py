"""Element types in the spelling of safetensors, C and NumPy."""

from __future__ import annotations

from typing import NamedTuple

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.protocol.artifact import TensorSpec


class ElementType(NamedTuple):
    """An element type: safetensors' name, C's type, NumPy's name, and its size in bytes.

    Some have no type in C11 or NumPy: they are stored as integers with the same bits, and `note` names the type.
    """

    safetensors: str
    c: str
    numpy: str
    bytes: int
    note: str = ""


_ELEMENTS = {
    TensorDType.Bool: ElementType("BOOL", "uint8_t", "bool", 1, "0 or 1"),
    TensorDType.UInt8: ElementType("U8", "uint8_t", "uint8", 1),
    TensorDType.UInt16: ElementType("U16", "uint16_t", "uint16", 2),
    TensorDType.UInt32: ElementType("U32", "uint32_t", "uint32", 4),
    TensorDType.UInt64: ElementType("U64", "uint64_t", "uint64", 8),
    TensorDType.Int8: ElementType("I8", "int8_t", "int8", 1),
    TensorDType.Int16: ElementType("I16", "int16_t", "int16", 2),
    TensorDType.Int32: ElementType("I32", "int32_t", "int32", 4),
    TensorDType.Int64: ElementType("I64", "int64_t", "int64", 8),
    TensorDType.Float8E4M3FN: ElementType("F8_E4M3", "uint8_t", "uint8", 1, "the bits of a float8_e4m3fn"),
    TensorDType.Float8E5M2: ElementType("F8_E5M2", "uint8_t", "uint8", 1, "the bits of a float8_e5m2"),
    # The file format has no name for these.
    TensorDType.Float8E4M3FNUZ: ElementType("U8", "uint8_t", "uint8", 1, "the bits of a float8_e4m3fnuz"),
    TensorDType.Float8E5M2FNUZ: ElementType("U8", "uint8_t", "uint8", 1, "the bits of a float8_e5m2fnuz"),
    TensorDType.Float16: ElementType("F16", "uint16_t", "float16", 2, "the bits of an IEEE half"),
    TensorDType.BFloat16: ElementType("BF16", "uint16_t", "uint16", 2, "the bits of a bfloat16"),
    TensorDType.Float32: ElementType("F32", "float", "float32", 4),
    TensorDType.Float64: ElementType("F64", "double", "float64", 8),
}


def element_of(dtype: str) -> ElementType:
    """The element type of a `TensorSpec`; for complex numbers, that of their parts."""
    return _ELEMENTS[TensorDType(dtype).part]


def stored_shape(spec: TensorSpec) -> tuple[int | str, ...]:
    """The shape in memory: complex numbers are pairs of floats along an additional last dim."""
    return (*spec.shape, 2) if TensorDType(spec.dtype).is_complex else tuple(spec.shape)
