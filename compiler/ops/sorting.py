"""Lowers sorting along a dim (stable: a bottom-up merge sort), and selections: top-k, k-th value, medians, mode."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.sizes import Dim, product
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, math, tensor
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops import selection
from buddy.compiler.ops.loops import (
    Extent,
    element,
    for_each,
    index_to_scalar,
    insert,
    number,
    position,
    scalar_to_index,
)
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
from buddy.compiler.ops.utils import (
    LoweringError,
    Registry,
    SymbolTable,
    argument,
    normalize_dim,
    tensor_type,
    value_of,
)

ops_registry = Registry()
lowering = ops_registry.lowering


# From this length on, ATen sorts one row of integers in ascending order by radix sort: `at::internal::GRAIN_SIZE`
# (native/cpu/SortingKernel.cpp).
MIN_RADIX_SORT_LENGTH = 32768


def ascending(x: Scalar, y: Scalar) -> Scalar:
    """Returns whether `x` comes before `y` in ascending order; NaN comes after all numbers, as in PyTorch."""
    is_less = x < y
    return is_less | (y.compare("ne", y) & x.compare("eq", x)) if x.dtype.is_float else is_less


def descending(x: Scalar, y: Scalar) -> Scalar:
    """Returns whether `x` comes before `y` in descending order; NaN comes before all numbers, as in PyTorch."""
    return ascending(y, x)


@dataclass(frozen=True)
class KeyedRows:
    """Keys [rows, n] of `dtype`, and the original index (i64) of each key in its row."""

    keys: ir.Value
    indices: ir.Value
    dtype: TensorDType

    def get(self, row: ir.Value, i: ir.Value) -> tuple[Scalar, Scalar]:
        """Returns the key in column `i` of a row, and its original index."""
        return element(self.keys, [row, i], self.dtype), element(self.indices, [row, i], TensorDType.Int64)


def sort_rows(keys: ir.Value, dtype: TensorDType, order: Order) -> KeyedRows:
    """Sorts the rows of `keys` [rows, n] stably, by a bottom-up merge sort.

    To avoid a copy, merge passes are made in pairs: the first merges runs of `width` keys to a scratch row, the second
    merges runs of twice that width back to the row.
    """
    rows, length = shape_of(keys)
    scratch_shape = [1, length]

    def sort_row(indices: list[ir.Value], tensors: list[ir.Value]) -> list[ir.Value]:
        (row,) = indices

        def merge_twice(_: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
            main, scratch, width = carried[:2], carried[2:4], carried[4]
            double = arith.addi(width, width)
            scratch = _merge_runs(KeyedRows(main[0], main[1], dtype), row, scratch, position(0), width, order)
            main = _merge_runs(KeyedRows(scratch[0], scratch[1], dtype), position(0), main, row, double, order)
            return [*main, *scratch, arith.addi(double, double)]

        return for_each([_merge_pass_pairs(length)], [*tensors, position(1)], merge_twice)[:4]

    scratch = [empty(scratch_shape, dtype), empty(scratch_shape, TensorDType.Int64)]
    sorted_keys, indices, *_ = for_each([rows], [keys, _indices((rows, length)), *scratch], sort_row)
    return KeyedRows(sorted_keys, indices, dtype)


def _indices(shape: Sequence[Dim]) -> ir.Value:
    """Returns every element's index in its row."""
    out = empty(shape, TensorDType.Int64)
    return generic([], [], [out], [[0, 1]], [PARALLEL] * 2, lambda _: [index_to_scalar(loop_index(1)).value])[0]


def _merge_pass_pairs(length: Extent) -> Extent:
    """Returns the number of pairs of merge passes for a row of `length`: half of log2(length), rounded up."""
    if isinstance(length, int):
        return (max(length - 1, 0).bit_length() + 1) // 2
    # The bit length of `length - 1` is 64 minus the number of its leading zeros.
    last = arith.subi(arith.maxui(position(length), position(1)), position(1))
    bits_plus_one = arith.subi(
        position(65), arith.index_cast(ir.IndexType.get(), math.ctlz(index_to_scalar(last).value))
    )
    return arith.divui(bits_plus_one, position(2))


def _merge_runs(
    source: KeyedRows,
    source_row: ir.Value,
    target: Sequence[ir.Value],
    target_row: ir.Value,
    width: ir.Value,
    order: Order,
) -> list[ir.Value]:
    """Merges each pair of adjacent sorted runs of `width` keys in a row of `source`. Returns the new `target`.

    `target` are keys and indices; the result is written to the row `target_row`.
    """
    length = position(shape_of(source.keys)[1])
    double = arith.addi(width, width)

    def merge(pair_indices: list[ir.Value], outs: list[ir.Value]) -> list[ir.Value]:
        (pair_number,) = pair_indices
        start = arith.muli(pair_number, double)
        middle, end = (arith.minui(arith.addi(start, size), length) for size in (width, double))

        def move_next(offset: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
            *outs, left, right = carried
            target_indices = [target_row, arith.addi(start, offset[0])]
            left_entry, right_entry = (source.get(source_row, _clamp(column, length)) for column in (left, right))
            left_is_empty = Scalar(arith.cmpi(arith.CmpIPredicate.uge, left, middle), TensorDType.Bool)
            right_has_more = Scalar(arith.cmpi(arith.CmpIPredicate.ult, right, end), TensorDType.Bool)
            # Of equal keys, the left one comes first, so the sort is stable.
            from_right = (left_is_empty | order(right_entry[0], left_entry[0])) & right_has_more
            entry = [s.select(from_right, y, x) for x, y in zip(left_entry, right_entry, strict=True)]
            right_step = arith.index_castui(ir.IndexType.get(), from_right.value)
            next_right = arith.addi(right, right_step)
            next_left = arith.addi(left, arith.subi(position(1), right_step))
            return [
                *(insert(x, target_indices, out) for x, out in zip(entry, outs, strict=True)),
                next_left,
                next_right,
            ]

        return for_each([arith.subi(end, start)], [*outs, start, middle], move_next)[:2]

    return for_each([arith.ceildivui(length, double)], target, merge)


def _clamp(index: ir.Value, length: Extent) -> ir.Value:
    """Clamps an index, so that the element there can be read; the caller ignores what an index past the end reads."""
    return arith.minui(index, arith.subi(length, position(1)))


def _rows_of(node: Op, symbol_table: SymbolTable, dim: int | None) -> tuple[ir.Value, list[int], TensorDType]:
    """Returns the operand as rows along `dim`, of shape [rows, n]; without `dim`, all elements are one row.

    Also returns the permutation of the operand's dims for that shape, and the element type.
    """
    value, dtype = value_of(node.args[0], symbol_table), node.args[0].tensor_meta.dtype
    shape = shape_of(value)
    if dim is None or not shape:
        return reshape(value, [1, product(shape)], dtype), [0], dtype
    axis = normalize_dim(dim, len(shape))
    permutation = [i for i in range(len(shape)) if i != axis] + [axis]
    rows = product([shape[i] for i in permutation[:-1]])
    return reshape(transpose(value, permutation, dtype), [rows, shape[axis]], dtype), permutation, dtype


def _restore_shapes(node: Op, tensors: Sequence[ir.Value], permutation: Sequence[int] = ()) -> list[ir.Value]:
    """Returns tensors of rows in the shapes of the node's results.

    `permutation` is that of `_rows_of`; without it, as for results without the dim, the tensors are only reshaped.
    """
    results = []
    for value, meta in zip(tensors, node.metas, strict=False):
        assert meta is not None
        if len(permutation) != len(meta.shape) or shape_of(value)[1] == 1:
            results.append(reshape(value, meta.shape, meta.dtype))
            continue
        inverse = [list(permutation).index(i) for i in range(len(permutation))]
        permuted = reshape(value, [meta.shape[i] for i in permutation], meta.dtype)
        results.append(transpose(permuted, inverse, meta.dtype))
    return results


def _columns(sorted_rows: KeyedRows, start: int, count: int) -> list[ir.Value]:
    """Returns the keys and indices of `count` columns from column `start` on."""
    rows = shape_of(sorted_rows.keys)[0]

    def columns(value: ir.Value, dtype: TensorDType) -> ir.Value:
        if 0 in (rows, count):  # MLIR rejects an empty slice whose start is at the end
            return empty([rows, count], dtype)
        slice_type = tensor_type([rows, count], dtype)
        return tensor.extract_slice(slice_type, value, [], [], [], [0, start], [rows, count], [1, 1])

    return [columns(sorted_rows.keys, sorted_rows.dtype), columns(sorted_rows.indices, TensorDType.Int64)]


@lowering("SortOp")
def sort(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Sorts along a dim; equal keys have the same order as in eager, also in unstable sorts."""
    is_stable = node.target == "sort.stable" and argument(node, 1, "stable")
    # `sort.stable` has one more argument before `dim`.
    shift = int(node.target == "sort.stable" and len(node.args) > 1)
    dim, is_descending = argument(node, 1 + shift, "dim", -1), argument(node, 2 + shift, "descending", False)
    keys, permutation, dtype = _rows_of(node, symbol_table, dim)
    order = descending if is_descending else ascending
    if is_stable or (not is_descending and _uses_radix_sort(node)):
        sorted_rows = sort_rows(keys, dtype, order)
    else:
        length = _static_length(keys)
        sorted_rows = apply_to_rows(keys, dtype, order, lambda buffer: selection.sort(buffer, length))
    return _restore_shapes(node, [sorted_rows.keys, sorted_rows.indices], permutation)


def _uses_radix_sort(node: Op) -> bool:
    """True if eager's ascending sort is a radix sort, which is stable: if the operand is one long row of integers."""
    meta = node.args[0].tensor_meta
    return meta.dtype.is_integer and len(meta.shape) == 1 and meta.shape[0] >= MIN_RADIX_SORT_LENGTH


def apply_to_rows(
    keys: ir.Value, dtype: TensorDType, order: Order, algorithm: Callable[[SortBuffer], None]
) -> KeyedRows:
    """Applies an algorithm of `selection` to each row of `keys` [rows, n]."""
    rows = shape_of(keys)[0]

    def visit(row: list[ir.Value], tensors: list[ir.Value]) -> list[ir.Value]:
        buffer = SortBuffer(tensors, row[0], dtype, order)
        algorithm(buffer)
        return buffer.tensors

    new_keys, indices = for_each([rows], [keys, _indices(shape_of(keys))], visit)
    return KeyedRows(new_keys, indices, dtype)


def _static_length(keys: ir.Value) -> int:
    """Returns the length of the rows, by which the algorithm is selected at compile time.

    Raises `LoweringError` if it is dynamic.
    """
    length = shape_of(keys)[1]
    if not isinstance(length, int):
        raise LoweringError(f"the number of elements, {length}, is dynamic")
    return length


@lowering("TopkOp")
def topk(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Selects the top k of each row by ATen's algorithms, so that equal keys have the same order as in eager."""
    keys, permutation, dtype = _rows_of(node, symbol_table, argument(node, 2, "dim", -1))
    count, length = node.args[1], _static_length(keys)

    def select_top(buffer: SortBuffer) -> None:
        if count * 64 <= length:  # as in ATen
            return selection.partial_sort(buffer, count, length)
        selection.nth_element(buffer, count - 1, length)
        if argument(node, 4, "sorted", True):
            # As in ATen: entry `count - 1` is in place already.
            selection.sort(buffer, count - 1)

    order = descending if argument(node, 3, "largest", True) else ascending
    if count and length:
        top_first = apply_to_rows(keys, dtype, order, select_top)
    else:
        top_first = KeyedRows(keys, _indices(shape_of(keys)), dtype)
    return _restore_shapes(node, _columns(top_first, 0, count), permutation)


@lowering("KthvalueOp")
def kthvalue(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the k-th smallest key of each row, where `k` counts from 1, and its index."""
    keys, _, dtype = _rows_of(node, symbol_table, argument(node, 2, "dim", -1))
    k, length = node.args[1] - 1, _static_length(keys)
    selected = apply_to_rows(keys, dtype, ascending, lambda buffer: selection.quick_select(buffer, k, length))
    return _restore_shapes(node, _columns(selected, k, 1))


def _pick_entries(sorted_rows: KeyedRows, values: ir.Value, column_of: Callable[[Scalar], Scalar]) -> list[ir.Value]:
    """Returns the key and the index in column `column_of(values[row])` of each row."""
    rows = shape_of(values)[0]
    outs = [empty([rows, 1], sorted_rows.dtype), empty([rows, 1], TensorDType.Int64)]

    def body(value: ir.Value, *_: Extent) -> list[ir.Value]:
        column = scalar_to_index(column_of(Scalar(value, TensorDType.Int64)))
        return [x.value for x in sorted_rows.get(loop_index(0), column)]

    return generic([values], [[0]], outs, [[0, None]] * 2, [PARALLEL], body)


def _median_entry(keys: ir.Value, dtype: TensorDType, column_of: Callable[[Scalar, int], Scalar]) -> list[ir.Value]:
    """Returns the key and the index in one column of each sorted row.

    The column is `column_of(number of keys in the row that are not NaN, n)`.
    """
    length = _static_length(keys)
    if not length:
        raise LoweringError("the rows have no elements, and so no median")
    sorted_rows, counts = sort_rows(keys, dtype, ascending), _count_numbers(keys, dtype)
    return _pick_entries(sorted_rows, counts, lambda count: column_of(count, length))


def _count_numbers(keys: ir.Value, dtype: TensorDType) -> ir.Value:
    """Returns the number of keys in each row that are not NaN."""
    shape, i64 = shape_of(keys), TensorDType.Int64
    if not dtype.is_float:
        return filled(shape[1], shape[:1], i64)
    return reduce([(keys, dtype)], shape, [1], 0, i64, lambda x, n: n + s.cast(x.compare("eq", x), i64))


@lowering("MedianOp")
def median(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the lower median, or the first NaN; equal keys are ordered by position, as in ATen."""
    keys, _, dtype = _rows_of(node, symbol_table, argument(node, 1, "dim"))

    def column_of(count: Scalar, length: int) -> Scalar:
        return s.select(count < length, count, count.like((length - 1) // 2))

    return _restore_shapes(node, _median_entry(keys, dtype, column_of))


@lowering("NanmedianOp")
def nanmedian(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the lower median of the elements that are not NaN."""
    keys, _, dtype = _rows_of(node, symbol_table, argument(node, 1, "dim"))

    def column_of(count: Scalar, _length: int) -> Scalar:
        last = s.maximum(count - 1, 0)
        return Scalar(arith.shrui(last.value, last.like(1).value), last.dtype)

    return _restore_shapes(node, _median_entry(keys, dtype, column_of))


@lowering("ModeOp")
def mode(node: Op, symbol_table: SymbolTable) -> list[ir.Value]:
    """Returns the smallest of the most frequent keys, and the index that ATen's unstable sort puts last in its run."""
    keys, _, dtype = _rows_of(node, symbol_table, argument(node, 1, "dim", -1))
    if dtype.is_float:
        raise LoweringError("floats run in eager: NaNs break the strict weak order that its std::sort requires")
    rows, length = shape_of(keys)[0], _static_length(keys)
    if not length:
        raise LoweringError("the rows have no elements, and so no mode")
    sorted_rows = apply_to_rows(keys, dtype, ascending, lambda buffer: selection.sort(buffer, length))

    def visit(row: list[ir.Value], ends: list[ir.Value]) -> list[ir.Value]:
        return [insert(_end_of_longest_run(sorted_rows, row[0]), row, ends[0])]

    (ends,) = for_each([rows], [filled(0, [rows], TensorDType.Int64)], visit)
    return _restore_shapes(node, _pick_entries(sorted_rows, ends, lambda end: end))


def _end_of_longest_run(sorted_rows: KeyedRows, row: ir.Value) -> ir.Value:
    """Returns the last column of the longest run of equal keys in a row; the first such run, if there are several."""

    def visit(indices: list[ir.Value], carried: list[ir.Value]) -> list[ir.Value]:
        run, longest, end = (Scalar(x, TensorDType.Int64) for x in carried)
        column = index_to_scalar(indices[0])
        previous = sorted_rows.get(row, scalar_to_index(s.maximum(column - 1, 0)))[0]
        run = s.select(sorted_rows.get(row, indices[0])[0].compare("eq", previous), run, run.like(0)) + 1
        is_longer = run > longest
        return [run.value, s.select(is_longer, run, longest).value, s.select(is_longer, column, end).value]

    zero = number(0, TensorDType.Int64).value
    return for_each([shape_of(sorted_rows.keys)[1]], [zero] * 3, visit)[2]
