"""Element types, devices and shapes of the Buddy graph. Imports neither torch nor MLIR."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from buddy.compiler.protocol.errors import BuddyError


class TensorDType(Enum):
    """Element types. The value is MLIR's name of the type; signed integers are signless there, such as `i8`."""

    Bool = "i1"
    UInt8 = "ui8"
    UInt16 = "ui16"
    UInt32 = "ui32"
    UInt64 = "ui64"
    Int8 = "i8"
    Int16 = "i16"
    Int32 = "i32"
    Int64 = "i64"
    Float8E4M3FN = "f8E4M3FN"
    Float8E5M2 = "f8E5M2"
    Float8E4M3FNUZ = "f8E4M3FNUZ"
    Float8E5M2FNUZ = "f8E5M2FNUZ"
    Float16 = "f16"
    BFloat16 = "bf16"
    Float32 = "f32"
    Float64 = "f64"
    Complex64 = "complex<f32>"
    Complex128 = "complex<f64>"

    @property
    def is_float(self) -> bool:
        return self in _FLOATS

    @property
    def is_float8(self) -> bool:
        """True for 8-bit floats. They are only stored and converted; arithmetic uses a wider type."""
        return self in _FLOAT8_TYPES

    @property
    def is_integer(self) -> bool:
        return self in _INTEGERS

    @property
    def is_complex(self) -> bool:
        return self in _PARTS

    @property
    def part(self) -> TensorDType:
        """Returns the type of the real and imaginary parts of a complex type; any other type returns itself."""
        return _PARTS.get(self, self)

    @property
    def complex(self) -> TensorDType:
        """Returns the complex type whose parts have this type. Raises `KeyError` if no complex type has such parts."""
        return {part: dtype for dtype, part in _PARTS.items()}[self]

    @property
    def is_unsigned(self) -> bool:
        """True if an integer of this type is unsigned; includes bool."""
        return self in _UNSIGNED

    @property
    def bytes(self) -> int:
        """Returns the bytes of one element in memory; a bool takes one byte."""
        if self.is_complex:
            return 2 * self.part.bytes
        return 1 if self is TensorDType.Bool or self.is_float8 else int(self.value.lstrip("uibf")) // 8


_UNSIGNED = (TensorDType.Bool, TensorDType.UInt8, TensorDType.UInt16, TensorDType.UInt32, TensorDType.UInt64)
_INTEGERS = (*_UNSIGNED[1:], TensorDType.Int8, TensorDType.Int16, TensorDType.Int32, TensorDType.Int64)
_FLOAT8_TYPES = (
    TensorDType.Float8E4M3FN, TensorDType.Float8E5M2, TensorDType.Float8E4M3FNUZ, TensorDType.Float8E5M2FNUZ,
)  # fmt: skip
_FLOATS = (*_FLOAT8_TYPES, TensorDType.Float16, TensorDType.BFloat16, TensorDType.Float32, TensorDType.Float64)
# The type of the real and of the imaginary part, by complex type.
_PARTS = {TensorDType.Complex64: TensorDType.Float32, TensorDType.Complex128: TensorDType.Float64}


class DeviceType(Enum):
    """The device that a graph runs on."""

    CPU = "cpu"
    GPU = "gpu"
    UNKNOWN = "unknown"
    # Buddy-MLIR misspells the name.
    UNKNOW = "unknown"


class NodeType(Enum):
    """The kind of a placeholder: an input, or a parameter or buffer of the model. The member names are Buddy-MLIR's.

    `Graph.add_node` takes `OtherNode` for all other nodes.
    """

    InputNode = "input"
    FakeNode = "parameter"
    OtherNode = "other"


class GraphError(BuddyError, ValueError):
    """An invalid graph, or an invalid edit; the text says what is wrong, where, and what to do."""


@dataclass(frozen=True, eq=False)
class TensorMeta:
    """Shape and element type of one tensor. `meta["shape"]` is the same as `meta.shape`; metas compare by value.

    The sizes in `shape` are numbers, or a `Size` if they are symbolic.
    """

    shape: tuple[Any, ...]
    dtype: TensorDType

    @property
    def stored(self) -> TensorMeta:
        """Returns the meta that compiled code uses: a complex tensor is a float tensor with a last dim of size 2."""
        return TensorMeta((*self.shape, 2), self.dtype.part) if self.dtype.is_complex else self

    def __getitem__(self, key: str) -> Any:
        if key not in ("shape", "dtype"):
            raise KeyError(f"a tensor's meta has 'shape' and 'dtype', not {key!r}")
        return getattr(self, key)

    # A dataclass's own `__eq__` is false for objects of different classes, such as a `NodeMeta`.
    def __eq__(self, other: object) -> bool:
        return isinstance(other, TensorMeta) and (self.shape, self.dtype) == (other.shape, other.dtype)

    def __hash__(self) -> int:
        return hash((self.shape, self.dtype))

    def __str__(self) -> str:
        return "x".join([*map(str, self.shape), self.dtype.value])
