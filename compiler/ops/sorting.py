"""Sorting along a dim by a bottom-up stable merge sort, and ops that use sorted rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import product
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, math, tensor
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import selection
from buddy.compiler.ops.loops import Extent, element, for_each, index_of, index_position, insert, number, position
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.selection import Order, SortBuffer
from buddy.compiler.ops.structured import (
    PARALLEL,
    empty,
    filled,
    generic,
    loop_index,
    reduce,
    reshape,
    shape_of,
    transpose,
)
from buddy.compiler.ops.utils import LoweringError, SymbolTable, argument, normalized, tensor_type, value_of

ops_registry = Registry()
lowering = ops_registry.lowering


# `at::internal::GRAIN_SIZE`: from this length on, ATen radix-sorts integers (native/cpu/SortingKernel.cpp).
RADIX_FROM = 32768


def ascending(x: Scalar, y: Scalar) -> Scalar:
    """Orders NaN after all numbers, as in PyTorch."""
    before = x < y
    return before | (y.compare("ne", y) & x.compare("eq", x)) if x.dtype.is_float else before


def descending(x: Scalar, y: Scalar) -> Scalar:
    """Orders NaN before all numbers, as in PyTorch."""
    return ascending(y, x)


@dataclass(frozen=True)
class SortKeys:
    """Keys [rows, n] of `dtype`, and for each key its original position (i64) in the row."""

    keys: Any
    places: Any
    dtype: TensorDType

    def at(self, row: Any, i: Any) -> tuple[Scalar, Scalar]:
        return element(self.keys, [row, i], self.dtype), element(self.places, [row, i], TensorDType.Int64)


def sort_lines(keys: Any, dtype: TensorDType, order: Order) -> SortKeys:
    """Sorts the rows of `keys` [rows, n] stably, by a bottom-up merge sort.

    Passes are made in pairs, to a scratch row and back, to avoid a copy: the first merges runs of `width`, the second
    runs of twice that.
    """
    rows, length = shape_of(keys)
    shape = shape_of(keys)
    spare = [1, shape[1]]

    def line(at: list[Any], held: list[Any]) -> list[Any]:
        def two_passes(_: list[Any], carried: list[Any]) -> list[Any]:
            here, there, width = carried[:2], carried[2:4], carried[4]
            double = arith.addi(width, width)
            there = _merge_runs(SortKeys(here[0], here[1], dtype), at[0], there, position(0), width, order)
            here = _merge_runs(SortKeys(there[0], there[1], dtype), position(0), here, at[0], double, order)
            return [*here, *there, arith.addi(double, double)]

        return for_each([_pairs_of_passes(length)], [*held, position(1)], two_passes)[:4]

    tensors = [keys, _positions(shape), empty(spare, dtype), empty(spare, TensorDType.Int64)]
    found = for_each([rows], tensors, line)
    return SortKeys(found[0], found[1], dtype)


def _positions(shape: Sequence[int]) -> Any:
    """Returns every element's position in its row."""
    out = empty(shape, TensorDType.Int64)
    return generic([], [], [out], [[0, 1]], [PARALLEL] * 2, lambda _: [index_of(loop_index(1)).value])[0]


def _pairs_of_passes(length: Extent) -> Extent:
    """Returns the number of pairs of passes that a row of `length` needs: half its binary logarithm, rounded up."""
    if isinstance(length, int):
        return (max(length - 1, 0).bit_length() + 1) // 2
    last = arith.subi(arith.maxui(position(length), position(1)), position(1))
    bits = arith.subi(position(65), arith.index_cast(ir.IndexType.get(), math.ctlz(index_of(last).value)))
    return arith.divui(bits, position(2))


def _merge_runs(source: SortKeys, row: Any, into: Sequence[Any], into_row: Any, width: Any, order: Order) -> list[Any]:
    """Returns `into`, whose row `into_row` is row `row` of `source` with pairs of runs of `width` merged."""
    length = position(shape_of(source.keys)[1])
    double = arith.addi(width, width)

    def merge(at: list[Any], held: list[Any]) -> list[Any]:
        start = arith.muli(at[0], double)
        middle, end = (arith.minui(arith.addi(start, size), length) for size in (width, double))

        def take(step: list[Any], carried: list[Any]) -> list[Any]:
            *outs, left, right = carried
            there = [into_row, arith.addi(start, step[0])]
            (x, i), (y, j) = (source.at(row, _clamp(p, length)) for p in (left, right))
            spent = Scalar(arith.cmpi(arith.CmpIPredicate.uge, left, middle), TensorDType.Bool)
            more = Scalar(arith.cmpi(arith.CmpIPredicate.ult, right, end), TensorDType.Bool)
            second = (spent | order(y, x)) & more
            taken = [s.select(second, b, a) for a, b in ((x, y), (i, j))]
            step_of = arith.index_castui(ir.IndexType.get(), second.value)
            ahead = arith.addi(right, step_of)
            behind = arith.addi(left, arith.subi(position(1), step_of))
            return [*(insert(v, there, out) for v, out in zip(taken, outs, strict=True)), behind, ahead]

        return for_each([arith.subi(end, start)], [*held, start, middle], take)[:2]

    return for_each([arith.ceildivui(length, double)], into, merge)


def _clamp(at: Any, length: Any) -> Any:
    """Clamps a position, so that it can be loaded; the caller ignores a value loaded for a position past the end."""
    return arith.minui(at, arith.subi(length, position(1)))


def _lines_of(node: Op, symbol_table: SymbolTable, dim: int | None) -> tuple[Any, list[int], TensorDType]:
    """Returns the operand as [rows, n] along `dim` (flattened if `None`), and the order of the original dims."""
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    shape = shape_of(value)
    if dim is None or not shape:
        return reshape(value, [1, product(shape)], dtype), [0], dtype
    axis = normalized(dim, len(shape))
    order = [i for i in range(len(shape)) if i != axis] + [axis]
    rows = product([shape[i] for i in order[:-1]])
    return reshape(transpose(value, order, dtype), [rows, shape[axis]], dtype), order, dtype


def _as_results(node: Op, found: Sequence[Any], order: Sequence[int]) -> list[Any]:
    """Returns rows in the shapes of the node's results, whose dims were permuted by `order`."""
    results = []
    for value, meta in zip(found, node.metas, strict=False):
        assert meta is not None
        if len(order) != len(meta.shape) or shape_of(value)[1] == 1:
            results.append(reshape(value, meta.shape, meta.dtype))
            continue
        turned = reshape(value, [meta.shape[i] for i in order], meta.dtype)
        results.append(transpose(turned, [list(order).index(i) for i in range(len(order))], meta.dtype))
    return results


def _columns(lines: SortKeys, start: int, count: int) -> list[Any]:
    """Returns keys and places of `count` columns."""
    rows = shape_of(lines.keys)[0]

    def columns(value: Any, dtype: TensorDType) -> Any:
        if 0 in (rows, count):  # MLIR rejects an empty slice whose start is at the end
            return empty([rows, count], dtype)
        kind = tensor_type([rows, count], dtype)
        return tensor.extract_slice(kind, value, [], [], [], [0, start], [rows, count], [1, 1])

    return [columns(lines.keys, lines.dtype), columns(lines.places, TensorDType.Int64)]


@lowering("SortOp")
def sort(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Sorts along a dim; equal keys have the same order as in eager, also in unstable sorts."""
    stable = node.target == "sort.stable" and argument(node, 1, "stable")
    first = int(node.target == "sort.stable" and len(node.args) > 1)
    dim, down = argument(node, 1 + first, "dim", -1), argument(node, 2 + first, "descending", False)
    keys, order, dtype = _lines_of(node, symbol_table, dim)
    towards = descending if down else ascending
    if stable or _uses_radix_sort(node):
        lines = sort_lines(keys, dtype, towards)
    else:
        length = _length(keys)
        lines = rearrange(keys, dtype, towards, lambda line: selection.sort(line, length))
    return _as_results(node, [lines.keys, lines.places], order)


def _uses_radix_sort(node: Op) -> bool:
    """True if eager uses a radix sort, which is stable: for one long row of integers."""
    meta = node.args[0].tensor_meta
    return meta.dtype.is_integer and len(meta.shape) == 1 and meta.shape[0] >= RADIX_FROM


def rearrange(keys: Any, dtype: TensorDType, order: Order, steps: Callable[[SortBuffer], None]) -> SortKeys:
    """Applies `steps`, an algorithm whose order of equal keys matters, to each row of `keys` [rows, n]."""
    rows = shape_of(keys)[0]

    def line(at: list[Any], held: list[Any]) -> list[Any]:
        entries = SortBuffer(held, at[0], dtype, order)
        steps(entries)
        return entries.tensors

    found = for_each([rows], [keys, _positions(shape_of(keys))], line)
    return SortKeys(found[0], found[1], dtype)


def _length(keys: Any) -> int:
    """Returns the static length of rows; it selects the algorithm at compile time."""
    length = shape_of(keys)[1]
    if not isinstance(length, int):
        raise LoweringError(f"the number of elements, {length}, is dynamic")
    return length


@lowering("TopkOp")
def topk(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Uses a heap for a small fraction of the elements, as in ATen, so that equal keys have the same order."""
    keys, order, dtype = _lines_of(node, symbol_table, argument(node, 2, "dim", -1))
    count, length = node.args[1], _length(keys)

    def steps(line: SortBuffer) -> None:
        if count * 64 <= length:
            return selection.partial_sort(line, count, length)
        selection.nth_element(line, count - 1, length)
        if argument(node, 4, "sorted", True):
            selection.sort(line, count - 1)

    towards = descending if argument(node, 3, "largest", True) else ascending
    lines = (
        rearrange(keys, dtype, towards, steps)
        if count and length
        else SortKeys(keys, _positions(shape_of(keys)), dtype)
    )
    return _as_results(node, _columns(lines, 0, count), order)


@lowering("KthvalueOp")
def kthvalue(node: Op, symbol_table: SymbolTable) -> list[Any]:
    keys, _, dtype = _lines_of(node, symbol_table, argument(node, 2, "dim", -1))
    k, length = node.args[1] - 1, _length(keys)
    lines = rearrange(keys, dtype, ascending, lambda line: selection.quick_select(line, k, length))
    return _as_results(node, _columns(lines, k, 1), [])


def _pick_entries(lines: SortKeys, given: Any, at: Callable[[Scalar], Scalar]) -> list[Any]:
    """Returns from each row the key and the place at position `at(given[row])`."""
    rows = shape_of(given)[0]
    outs = [empty([rows, 1], lines.dtype), empty([rows, 1], TensorDType.Int64)]

    def body(number_: Any, *_: Any) -> list[Any]:
        where = index_position(at(Scalar(number_, TensorDType.Int64)))
        return [x.value for x in lines.at(loop_index(0), where)]

    return generic([given], [[0]], outs, [[0, None]] * 2, [PARALLEL], body)


def _middle(keys: Any, dtype: TensorDType, at: Callable[[Scalar, int], Scalar]) -> list[Any]:
    """Returns the entry of each sorted row at position `at(number of keys that are not NaN, n)`, and its place."""
    length = _length(keys)
    if not length:
        raise LoweringError("the rows have no elements, and so no median")
    return _pick_entries(sort_lines(keys, dtype, ascending), _numbers(keys, dtype), lambda count: at(count, length))


def _numbers(keys: Any, dtype: TensorDType) -> Any:
    """Returns the number of keys in each row that are not NaN."""
    shape, kind = shape_of(keys), TensorDType.Int64
    if not dtype.is_float:
        return filled(shape[1], shape[:1], kind)
    return reduce([(keys, dtype)], shape, [1], False, 0, kind, lambda x, n: n + s.cast(x.compare("eq", x), kind))


@lowering("MedianOp")
def median(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the lower median, or the first NaN; equal keys are ordered by position, as in ATen."""
    keys, _, dtype = _lines_of(node, symbol_table, argument(node, 1, "dim"))

    def at(count: Scalar, length: int) -> Scalar:
        return s.select(count < length, count, count.like((length - 1) // 2))

    return _as_results(node, _middle(keys, dtype, at), [])


@lowering("NanmedianOp")
def nanmedian(node: Op, symbol_table: SymbolTable) -> list[Any]:
    keys, _, dtype = _lines_of(node, symbol_table, argument(node, 1, "dim"))

    def at(count: Scalar, _length: int) -> Scalar:
        last = s.maximum(count - 1, 0)
        return Scalar(arith.shrui(last.value, last.like(1).value), last.dtype)

    return _as_results(node, _middle(keys, dtype, at), [])


@lowering("ModeOp")
def mode(node: Op, symbol_table: SymbolTable) -> list[Any]:
    """Returns the least of the most frequent keys, and its last position."""
    keys, _, dtype = _lines_of(node, symbol_table, argument(node, 1, "dim", -1))
    if dtype.is_float:
        raise LoweringError("eager compares by `<` only, so the order of NaNs depends on its algorithm")
    rows, length = shape_of(keys)[0], _length(keys)
    if not length:
        raise LoweringError("the rows have no elements, and so no mode")
    lines = rearrange(keys, dtype, ascending, lambda line: selection.sort(line, length))
    start = filled(0, [rows], TensorDType.Int64)
    (ends,) = for_each([rows], [start], lambda at, held: [insert(_end_of_longest_run(lines, at[0]), at, held[0])])
    return _as_results(node, _pick_entries(lines, ends, lambda end: end), [])


def _end_of_longest_run(lines: SortKeys, row: Any) -> Any:
    """Returns the end of the longest run of equal keys in a row: the last position of the first such run."""

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        run, longest, end = (Scalar(x, TensorDType.Int64) for x in held)
        here = index_of(at[0])
        previous = lines.at(row, index_position(s.maximum(here - 1, 0)))[0]
        run = s.select(lines.at(row, at[0])[0].compare("eq", previous), run, run.like(0)) + 1
        longer = run > longest
        return [run.value, s.select(longer, run, longest).value, s.select(longer, here, end).value]

    start = number(0, TensorDType.Int64).value
    return for_each([shape_of(lines.keys)[1]], [start] * 3, visit)[2]
