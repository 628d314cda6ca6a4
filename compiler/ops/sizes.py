"""Symbolic sizes in the function that is being lowered: the values of symbols, and the shapes of tensors.

An MLIR type has `?` where the graph has a symbolic size. Lowerings compute with symbolic sizes, which
`structured.shape_of` returns. Where MLIR needs a value, `index_value` computes it from the function's symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeVar

from buddy.compiler.graph.sizes import Dim, Size, evaluate, is_dynamic, parse_size
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops.utils import LoweringError, mlir_shape

# Attributes of arguments and functions, which `one-shot-bufferize` preserves.
SYMBOL = "buddy.symbol"  # on an argument of type index: the name of the symbol whose value it is
SIZES = "buddy.sizes"  # on an argument with `?` dims: its sizes, each as text
RESULT_SIZES = "buddy.result_sizes"  # on a function: the sizes of each of its results, an empty list for a static one


@dataclass
class FunctionSizes:
    """The values of a function's symbols, and the shapes of its tensors whose types have `?` dims."""

    symbols: dict[str, ir.Value] = field(default_factory=dict)
    shapes: dict[ir.Value, tuple[Dim, ...]] = field(default_factory=dict)


T = TypeVar("T")

# The functions that are being lowered, the innermost one last. The first entry is for code outside of all functions.
_function_stack = [FunctionSizes()]


@contextmanager
def function_sizes(symbols: dict[str, ir.Value]) -> Iterator[FunctionSizes]:
    """Starts a function, with the values of its `symbols` (of type index), for the time of the `with` block."""
    _function_stack.append(FunctionSizes(symbols))
    try:
        yield _function_stack[-1]
    finally:
        _function_stack.pop()


def record_shape(value: ir.Value, shape: Sequence[Dim]) -> ir.Value:
    """Returns `value`, a tensor. Records its `shape` for `known_shape` if the shape is dynamic."""
    if is_dynamic(shape):
        _function_stack[-1].shapes[value] = tuple(shape)
    return value


def known_shape(value: ir.Value) -> tuple[Dim, ...]:
    """Returns the shape of a tensor.

    Raises `LoweringError` for a tensor with `?` dims whose sizes were not recorded.
    """
    tensor_type = ir.RankedTensorType(value.type)
    if tensor_type.has_static_shape:
        return tuple(tensor_type.shape)
    if value not in _function_stack[-1].shapes:
        raise LoweringError(f"the sizes of a {tensor_type} are unknown at compile time")
    return _function_stack[-1].shapes[value]


def index_value(size: Dim | ir.Value) -> ir.Value:
    """Returns a size as an MLIR value of type index, which is emitted unless `size` already is such a value."""
    if not isinstance(size, (int, Size)):
        return size
    return emit_size(size, _function_stack[-1].symbols)


def emit_size(size: Dim, symbols: dict[str, ir.Value]) -> ir.Value:
    """Emits the computation of `size` from the values of `symbols`."""
    return evaluate(size, symbols, lambda number: arith.constant(ir.IndexType.get(), number), _emit_operation)


def _emit_operation(name: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """Emits an operation of `graph.sizes.evaluate`."""
    if name == "%":  # the sign of the divisor, as in Python
        return arith.subi(left, arith.muli(arith.floordivsi(left, right), right))
    builders = {
        "+": arith.addi, "*": arith.muli, "//": arith.floordivsi, "max": arith.maxsi, "min": arith.minsi,
    }  # fmt: skip
    return builders[name](left, right)


def split_sizes(sizes: Sequence[Dim | ir.Value]) -> tuple[list[ir.Value], list[int]]:
    """Returns sizes in the form of slice ops: values of the dynamic sizes, and static sizes with markers for these."""
    return [index_value(size) for size in sizes if not isinstance(size, int)], mlir_shape(sizes)


def sizes_attribute(shape: Sequence[Dim]) -> ir.ArrayAttr:
    """Returns a shape as an array attribute: the sizes as texts if some are symbolic, else an empty array."""
    return ir.ArrayAttr.get([ir.StringAttr.get(str(size)) for size in shape] if is_dynamic(shape) else [])


def symbol_attributes(name: str) -> ir.DictAttr:
    """Returns the attributes of an argument that is the value of symbol `name`."""
    return ir.DictAttr.get({SYMBOL: ir.StringAttr.get(name)})


# ---- reading attributes ----------------------------------------------------------------------------------------------


def read_sizes(attribute: ir.Attribute) -> list[Dim]:
    """Parses the result of `sizes_attribute`; numbers become ints."""
    return [parse_size(ir.StringAttr(text).value) for text in ir.ArrayAttr(attribute)]


def result_attributes(function: ir.Operation) -> list[ir.ArrayAttr]:
    """Returns the recorded sizes of each result of a function; empty for results with static types."""
    if RESULT_SIZES in function.attributes:
        return [ir.ArrayAttr(shape) for shape in ir.ArrayAttr(function.attributes[RESULT_SIZES])]
    function_type = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    return [ir.ArrayAttr.get([])] * len(function_type.results)


def symbols_of(function: ir.Operation, values: Sequence[T]) -> dict[str, T]:
    """Returns the value of each symbol that is an argument of a function; `values` are those of all arguments."""
    if "arg_attrs" not in function.attributes:
        return {}
    pairs = zip(map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"])), values, strict=False)
    return {ir.StringAttr(attributes[SYMBOL]).value: value for attributes, value in pairs if SYMBOL in attributes}
