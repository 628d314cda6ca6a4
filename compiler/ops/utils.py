"""Converts element types, shapes and constants of the Buddy graph to MLIR, and defines the errors of lowerings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from buddy.compiler.graph.node import Op, argument, normalized, permutation_of
from buddy.compiler.graph.sizes import Dim
from buddy.compiler.graph.types import TensorDType, TensorMeta
from buddy.compiler.mlir.bindings import arith, ir

# Includes functions of the graph package that lowerings use.
__all__ = [
    "LoweringError", "SymbolTable", "TransientLoweringError", "argument", "constant", "constant_attribute", "meta_type",
    "mlir_element_type_get", "normalized", "permutation_of", "tensor_type", "value_of",
]  # fmt: skip

SymbolTable = Mapping[tuple[str, int], Any]

# Unsigned integers are signless in MLIR, where ops define the signedness.
_SPELLING = {dtype: dtype.value.removeprefix("u") for dtype in TensorDType if dtype.value.startswith("ui")}


def mlir_element_type_get(dtype: TensorDType) -> Any:
    """Returns the MLIR type of one element, in the current context."""
    return ir.Type.parse(_SPELLING.get(dtype, dtype.value))


def mlir_shape(shape: Sequence[Any]) -> list[int]:
    """Returns a shape for MLIR types, with MLIR's marker for each dynamic size."""
    return [size if isinstance(size, int) else ir.ShapedType.get_dynamic_size() for size in shape]


def tensor_type(shape: Sequence[Dim], dtype: TensorDType) -> Any:
    return ir.RankedTensorType.get(mlir_shape(shape), mlir_element_type_get(dtype))


def meta_type(meta: TensorMeta) -> Any:
    return tensor_type(meta.stored.shape, meta.stored.dtype)


def value_of(argument: Any, symbol_table: SymbolTable) -> Any:
    """Returns the MLIR value of a node argument that is a tensor.

    Raises `LoweringError` if it is not.
    """
    if not isinstance(argument, Op):
        raise LoweringError(f"expected a tensor, the graph has {argument!r}")
    return symbol_table[(str(argument), 0)]


def constant_attribute(value: bool | int | float, dtype: TensorDType) -> Any:
    """Returns an attribute of `dtype`; bools and integers are converted as PyTorch converts a Python number."""
    element = mlir_element_type_get(dtype)
    if dtype.is_float:
        return ir.FloatAttr.get(element, float(value))
    if dtype is TensorDType.Bool:
        return ir.IntegerAttr.get(element, int(bool(value)))
    return ir.IntegerAttr.get(element, _wrapped(int(value), element.width))


def constant(value: bool | int | float, dtype: TensorDType) -> Any:
    """Emits an `arith.constant` of `dtype`."""
    return arith.constant(mlir_element_type_get(dtype), constant_attribute(value, dtype))


def _wrapped(value: int, width: int) -> int:
    """Returns `value` modulo 2**width, as a signed number for MLIR's attribute."""
    value &= (1 << width) - 1
    return value - (1 << width) if value >> (width - 1) else value


class LoweringError(Exception):
    """The registry cannot lower the node; the text is the reason, which the table of nodes shows."""


class TransientLoweringError(LoweringError):
    """A later attempt may succeed, so a compilation without this lowering must not be cached."""
