"""Element types, tensor types and constants in MLIR for the Buddy graph's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from buddy.compiler.graph.arguments import argument, normalized, permutation_of
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith, ir

# What nodes' arguments say is the graph's business; lowerings find it beside the rest.
__all__ = [
    "LoweringError", "SymbolTable", "TransientLoweringError", "argument", "constant", "constant_attribute", "meta_type",
    "mlir_element_type_get", "normalized", "permutation_of", "tensor_type", "value_of",
]  # fmt: skip

SymbolTable = Mapping[tuple[str, int], Any]

# Unsigned integers are signless in MLIR: signedness belongs to the ops, as in LLVM.
_SPELLING = {dtype: dtype.value.removeprefix("u") for dtype in TensorDType if dtype.value.startswith("ui")}


def mlir_element_type_get(dtype: TensorDType) -> Any:
    """The MLIR type of one element, in the current context."""
    return ir.Type.parse(_SPELLING.get(dtype, dtype.value))


def mlir_shape(shape: Sequence[Any]) -> list[int]:
    """A shape as MLIR's types have it: a mark for each size that is no number."""
    return [size if isinstance(size, int) else ir.ShapedType.get_dynamic_size() for size in shape]


def tensor_type(shape: Sequence[Dim], dtype: TensorDType) -> Any:
    return ir.RankedTensorType.get(mlir_shape(shape), mlir_element_type_get(dtype))


def meta_type(meta: TensorMeta) -> Any:
    return tensor_type(meta.stored.shape, meta.stored.dtype)


def value_of(argument: Any, symbol_table: SymbolTable) -> Any:
    """The MLIR value of a node argument that is a tensor.

    Raises `LoweringError` when it is not.
    """
    if not isinstance(argument, Op):
        raise LoweringError(f"a tensor is needed where the graph has {argument!r}")
    return symbol_table[(str(argument), 0)]


def constant_attribute(value: bool | int | float, dtype: TensorDType) -> Any:
    """An attribute of `dtype`; bools and integers are converted as PyTorch converts a Python number."""
    element = mlir_element_type_get(dtype)
    if dtype.is_float:
        return ir.FloatAttr.get(element, float(value))
    if dtype is TensorDType.Bool:
        return ir.IntegerAttr.get(element, int(bool(value)))
    return ir.IntegerAttr.get(element, _wrapped(int(value), element.width))


def constant(value: bool | int | float, dtype: TensorDType) -> Any:
    """An `arith.constant` of `dtype`."""
    return arith.constant(mlir_element_type_get(dtype), constant_attribute(value, dtype))


def _wrapped(value: int, width: int) -> int:
    """`value` modulo 2**width, as the signed number that MLIR's attribute takes."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


class LoweringError(Exception):
    """A node that this registry cannot lower as it stands; the text is the reason shown in the table."""


class TransientLoweringError(LoweringError):
    """A node that may be lowered another time, so that what is compiled without it is not kept for others."""
