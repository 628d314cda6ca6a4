"""Sizes that only a call tells, in the function that is being lowered: their values, and the shapes of its tensors.

A type says `?` where the graph has an expression. Lowerings compute with the expressions (`shape_of` in `structured`
gives them), and where MLIR needs a value, `index_value` makes one from the function's symbols.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.graph.sizes import Dim, Size, computed, is_dynamic, parsed
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops.utils import LoweringError, mlir_shape

# How `one-shot-bufferize` leaves them in place: attributes of arguments and functions of ours.
SYMBOL = "buddy.symbol"  # on an argument of type index: its name
SIZES = "buddy.sizes"  # on an argument with `?` dims: its sizes, each as text
RESULTS = "buddy.result_sizes"  # on a function: the sizes of each of its results, an empty list for a static one


@dataclass
class FunctionSizes:
    """The values of a function's symbols, and the shapes of its tensors whose types do not say them."""

    symbols: dict[str, Any] = field(default_factory=dict)
    shapes: dict[Any, tuple[Dim, ...]] = field(default_factory=dict)


_functions = [FunctionSizes()]


@contextmanager
def function_sizes(symbols: dict[str, Any]) -> Iterator[FunctionSizes]:
    """What is lowered inside belongs to a function whose symbols have the values `symbols`, of type index."""
    _functions.append(FunctionSizes(symbols))
    try:
        yield _functions[-1]
    finally:
        _functions.pop()


def remember(value: Any, shape: Sequence[Dim]) -> Any:
    """`value`, with its shape kept where its type has a `?` for some of it."""
    if is_dynamic(shape):
        _functions[-1].shapes[value] = tuple(shape)
    return value


def known_shape(value: Any) -> tuple[Dim, ...]:
    """The shape of a tensor.

    Raises `LoweringError` for one with `?` dims that nobody has told the sizes of.
    """
    kind = ir.RankedTensorType(value.type)
    if kind.has_static_shape:
        return tuple(kind.shape)
    if value not in _functions[-1].shapes:
        raise LoweringError(f"the sizes of a {kind} are not known when compiling")
    return _functions[-1].shapes[value]


def index_value(size: Any) -> Any:
    """A size as an MLIR value of type index; what is one already stays it. Emitted at the insertion point."""
    if not isinstance(size, (int, Size)):
        return size
    return in_arithmetic(size, _functions[-1].symbols)


def in_arithmetic(size: Dim, symbols: dict[str, Any]) -> Any:
    """`size` computed from the values of `symbols`."""
    return computed(size, symbols, lambda number: arith.constant(ir.IndexType.get(), number), _applied)


def _applied(name: str, left: Any, right: Any) -> Any:
    if name == "%":  # with the sign of the divisor, as Python has it
        return arith.subi(left, arith.muli(arith.floordivsi(left, right), right))
    functions = {
        "+": arith.addi, "*": arith.muli, "//": arith.floordivsi, "max": arith.maxsi, "min": arith.minsi,
    }  # fmt: skip
    return functions[name](left, right)


def split_sizes(sizes: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Sizes as slice ops take them: the values of those that are no numbers, then all with a mark for these."""
    return [index_value(size) for size in sizes if not isinstance(size, int)], mlir_shape(sizes)


def sizes_attribute(shape: Sequence[Dim]) -> Any:
    """A shape as an attribute: its sizes as texts where some are symbolic, else nothing."""
    return ir.ArrayAttr.get([ir.StringAttr.get(str(size)) for size in shape] if is_dynamic(shape) else [])


def symbol_attributes(name: str) -> Any:
    """The attributes of an argument that is the value of symbol `name`."""
    return ir.DictAttr.get({SYMBOL: ir.StringAttr.get(name)})


# ---- read off the IR -------------------------------------------------------------------------------------------------


def read_sizes(attribute: Any) -> list[Dim]:
    """What `sizes_attribute` wrote; a number is one again."""
    return [parsed(ir.StringAttr(text).value) for text in ir.ArrayAttr(attribute)]


def result_attributes(function: Any) -> list[Any]:
    """The sizes of each result that a function once had, none for those whose types say them."""
    if RESULTS in function.attributes:
        return [ir.ArrayAttr(shape) for shape in ir.ArrayAttr(function.attributes[RESULTS])]
    kind = ir.FunctionType(ir.TypeAttr(function.attributes["function_type"]).value)
    return [ir.ArrayAttr.get([])] * len(kind.results)


def symbols_of(function: Any, values: Sequence[Any]) -> dict[str, Any]:
    """The symbols among a function's arguments, and for each its value among `values`, in the order of arguments."""
    if "arg_attrs" not in function.attributes:
        return {}
    pairs = zip(map(ir.DictAttr, ir.ArrayAttr(function.attributes["arg_attrs"])), values, strict=False)
    return {ir.StringAttr(flags[SYMBOL]).value: value for flags, value in pairs if SYMBOL in flags}
