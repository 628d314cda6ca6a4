"""Copies of matrices to contiguous rows: row by row, or by transposes of squares in registers.

Kernels copy panels of B, weights of convolutions, and A, if it is not contiguous along K or has to be converted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, memref, vector
from buddy.compiler.passes.kernels.access import Loop, row_major_strides
from buddy.compiler.passes.kernels.contraction import Contraction, byte_width, convert_elements
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, estimate_nanoseconds, for_blocks, round_up
from buddy.compiler.support.target import CACHE_LINE


@dataclass(frozen=True)
class PanelCopy:
    """Emits copies of a matrix to contiguous rows; columns that are not contiguous in the source are transposed.

    Element (k, column) is read from the flat memref `source` at `start + k * k_stride + column * column_stride` and
    written to the flat memref `target` at `target_start + k * row_stride + column`; `copy` gets both starts. A row has
    `width` columns; `lanes` is a power of two. Elements are converted if the element types differ; `unsigned` says
    that integers are zero-extended. `convert`, if given, converts scalars and vectors instead.
    """

    e: KernelEmitter
    source: Any
    k_stride: int
    column_stride: int
    target: Any
    row_stride: int
    width: int
    lanes: int
    unsigned: bool = False
    convert: Callable[[ir.Value], ir.Value] | None = None

    def copy(self, start: Index, target_start: Index, lower: Index, upper: Index, active: int) -> None:
        """Emits the copy of the rows `lower <= k < upper`; columns from `active` to `width` become zeros."""
        if self.column_stride == 1:
            self._emit_rows(self._copy_row, start, target_start, lower, upper, active)
        elif self.k_stride == 1 and self.lanes > 1:
            self._transpose_squares(start, target_start, lower, upper, active)
        else:
            self._emit_rows(self._gather_row, start, target_start, lower, upper, active)

    def _emit_rows(
        self,
        emit_row: Callable[[Index, Index, int], None],
        start: Index,
        target_start: Index,
        lower: Index,
        upper: Index,
        active: int,
    ) -> None:
        """Emits `emit_row(offset in the source, offset in the target, active)` for each row."""
        e = self.e

        def emit_iteration(k: Index) -> None:
            emit_row(e.add(start, e.mul(k, self.k_stride)), e.add(target_start, e.mul(k, self.row_stride)), active)

        e.for_each(lower, upper, 1, emit_iteration)

    def _copy_row(self, start: Index, target_start: Index, active: int) -> None:
        """Copies a row that is contiguous in the source, in vectors."""
        for column in range(0, active, self.lanes):
            value = self.e.load(self.source, self.e.add(start, column), self.lanes, active - column)
            self._store(value, target_start, column)
        self._store_zeros(target_start, round_up(active, self.lanes))

    def _gather_row(self, start: Index, target_start: Index, active: int) -> None:
        """Copies a row element by element."""
        e = self.e
        self._store_zeros(target_start, active // self.lanes * self.lanes)

        def copy_element(column: Index) -> None:
            value = e.load_scalar(self.source, e.add(start, e.mul(column, self.column_stride)))
            e.store_scalar(self._convert(value), self.target, e.add(target_start, column))

        e.for_each(0, active, 1, copy_element)

    def _store(self, value: ir.Value, row_start: Index, column: int) -> None:
        """Stores a vector to the row at `row_start` of the target, from `column` to at most `width`."""
        self.e.store(self._convert(value), self.target, self.e.add(row_start, column), self.width - column)

    def _store_zeros(self, row_start: Index, first: int) -> None:
        """Stores zeros to the row at `row_start` of the target, from column `first` on."""
        for column in range(first, self.width, self.lanes):
            self.e.store(self.e.zero(self._vector), self.target, self.e.add(row_start, column), self.width - column)

    def _transpose_squares(self, start: Index, target_start: Index, lower: Index, upper: Index, active: int) -> None:
        """Transposes squares of lanes x lanes elements in registers; the remaining rows of K are copied one by one."""
        e, lanes = self.e, self.lanes
        squares_end = self._squares_end(lower, upper)
        full_columns = active // lanes * lanes

        def emit_squares(k: Index) -> None:
            row_start, row_target = e.add(start, k), e.add(target_start, e.mul(k, self.row_stride))
            e.for_each(0, full_columns, lanes, lambda column: self._transpose(row_start, row_target, column, lanes))
            if active > full_columns:
                self._transpose(row_start, row_target, full_columns, active - full_columns)
            for row in range(lanes):
                self._store_zeros(e.add(row_target, row * self.row_stride), round_up(active, lanes))

        e.for_each(lower, squares_end, lanes, emit_squares)
        self._emit_rows(self._gather_row, start, target_start, squares_end, upper, active)

    def _squares_end(self, lower: Index, upper: Index) -> Index:
        """Returns the end of the last full square between `lower` and `upper`."""
        e, lanes = self.e, self.lanes
        if isinstance(lower, int) and isinstance(upper, int):
            return lower + (upper - lower) // lanes * lanes
        count = arith.divui(arith.subi(e.value(upper), e.value(lower)), e.value(lanes))
        return e.add(lower, e.mul(count, lanes))

    def _transpose(self, start: Index, target_start: Index, column: Index, count: int) -> None:
        """Reads `count` columns of `lanes` elements from `column` on, and writes `lanes` rows of `count` elements.

        If `count` is less than `lanes`, zeros follow in each row, up to `width`.
        """
        e = self.e
        stored = self.lanes if count == self.lanes or not isinstance(column, int) else self.width - column
        start, target_start = e.add(start, e.mul(column, self.column_stride)), e.add(target_start, column)
        columns = [e.load(self.source, e.add(start, i * self.column_stride), self.lanes) for i in range(count)]
        columns += [e.zero(ir.VectorType.get([self.lanes], self.source.type.element_type))] * (self.lanes - count)
        for i, row in enumerate(transposed(columns)):
            e.store(self._convert(row), self.target, e.add(target_start, i * self.row_stride), stored)

    def _convert(self, value: ir.Value) -> ir.Value:
        """Converts a scalar or vector of the source to elements of the target."""
        if self.convert is not None:
            return self.convert(value)
        return convert_elements(value, self.target.type.element_type, self.unsigned)

    @property
    def _vector(self) -> ir.Type:
        return ir.VectorType.get([self.lanes], self.target.type.element_type)


class PackedWindows:
    """Converts weights [column, channel, window] to vectors of columns, in a scratch buffer for `lanes` channels.

    A column of the flat `source` begins `column_stride` elements after the one before it. The buffer, `scratch`, exists
    only while `for_each_channel` emits its body.
    """

    def __init__(
        self, e: KernelEmitter, source: ir.Value, column_stride: int, window: int, columns: int, lanes: int
    ) -> None:
        self.e, self.source, self.column_stride = e, source, column_stride
        self.window, self.columns, self.lanes = window, columns, lanes
        self.scratch: Any = None

    def for_each_channel(
        self, start: Index, channels: int, active: int, body: Callable[[Index, list[Index]], object]
    ) -> None:
        """Emits `body(channel, row_starts)` for each channel.

        `row_starts` has, for each element of the window, the offset in `scratch` of a row of columns. Columns from
        `active` on are zeros.
        """
        e, channel_stride = self.e, self.window * self.columns
        type_ = ir.MemRefType.get([self.lanes * channel_stride], self.source.type.element_type)
        self.scratch = memref.alloc(type_, [], [], alignment=CACHE_LINE)
        copier = PanelCopy(
            e, self.source, 1, self.column_stride, self.scratch, self.columns, self.columns, self.lanes
        )  # fmt: skip

        def emit_block(number: Index, count: int) -> None:
            first = e.mul(number, self.lanes)
            copier.copy(e.add(start, e.mul(first, self.window)), 0, 0, count * self.window, active)

            def emit_channel(channel: Index) -> None:
                scratch_start = e.mul(channel, channel_stride)
                body(e.add(first, channel), [e.add(scratch_start, i * self.columns) for i in range(self.window)])

            e.for_each(0, count, 1, emit_channel)

        for_blocks(e, channels, self.lanes, emit_block)
        memref.dealloc(self.scratch)


def interleaved(rows: list[ir.Value]) -> ir.Value:
    """Returns the vector with the first elements of all `rows` (a power of two), then the second ones, and so on."""
    while len(rows) > 1:
        half = len(rows) // 2
        lanes = rows[0].type.shape[0]
        mask = [lane // 2 + lanes * (lane % 2) for lane in range(2 * lanes)]
        rows = [vector.shuffle(rows[i], rows[i + half], mask) for i in range(half)]
    return rows[0]


def transposed(rows: list[ir.Value]) -> list[ir.Value]:
    """Returns the transpose of a square: of L vectors with L lanes, a power of two.

    Interleaving row i with row i + L/2 moves the top bit of the row number into the lowest bit of the lane number;
    after log2(L) rounds, row and lane are exchanged.
    """
    lanes = len(rows)
    low = [lane // 2 + lanes * (lane % 2) for lane in range(lanes)]
    high = [index + lanes // 2 for index in low]
    for _ in range(lanes.bit_length() - 1):
        pairs = [(rows[i], rows[i + lanes // 2]) for i in range(lanes // 2)]
        rows = [vector.shuffle(a, b, mask) for a, b in pairs for mask in (low, high)]
    return rows


# ---- copies of the operand A -----------------------------------------------------------------------------------------


# Rows, and vectors of each row, in a block of A that one iteration copies: enough work, and enough blocks for threads.
_BLOCK_ROWS, _BLOCK_VECTORS = 32, 8


def copy_rows(
    e: KernelEmitter, a: ir.Value, contraction: Contraction, lanes: int, element: ir.Type, rows: int, multiple: int,
    convert: Callable[[ir.Value], ir.Value],
) -> tuple[ir.Value, Contraction]:  # fmt: skip
    """Emits a copy of the flat memref `a`, the operand A of `contraction`, which has one loop over K.

    The copy has elements of type `element`, to which `convert` converts scalars and vectors of A. It has `rows` rows
    for each iteration of the outer loops; rows that A lacks are zeros. Zeros fill up each row to a `multiple` of
    elements. Returns the copy, which the caller frees, and the contraction that reads it instead of A.
    """
    c, (k,) = contraction, contraction.k
    outer = [loop for loop in c.outer if loop.used[0]]
    row_elements = round_up(k.size, multiple)
    strides = row_major_strides([loop.size for loop in outer], rows * row_elements)
    size = math.prod(loop.size for loop in outer) * rows * row_elements
    target = memref.alloc(ir.MemRefType.get([size], element), [], [], alignment=CACHE_LINE)
    sizes = [*(loop.size for loop in outer), c.m.size, k.size]
    blocks = [*(1 for _ in outer), _BLOCK_ROWS, round_up(_BLOCK_VECTORS * lanes, multiple)]

    def copy_block(numbers: list[Index], active: list[int]) -> None:
        *outer_numbers, row_block, k_block = numbers
        *_, active_rows, active_steps = active
        indices = [*outer_numbers, e.mul(row_block, blocks[-2]), e.mul(k_block, blocks[-1])]
        start = e.dot(indices, [loop.strides[0] for loop in (*outer, c.m, k)])
        target_start = e.dot(indices, [*strides, row_elements, 1])
        width = round_up(active_steps, multiple)
        copier = PanelCopy(
            e, a, c.m.strides[0], k.strides[0], target, row_elements, width, lanes, convert=convert
        )  # fmt: skip
        copier.copy(start, target_start, 0, active_rows, active_steps)

    moved_bytes = size * (byte_width(c.input_elements[0]) + element.width // 8)
    e.parallel_blocks(sizes, blocks, copy_block, estimate_nanoseconds(moved=moved_bytes))
    if rows > c.m.size:
        _fill_rows(e, target, lanes, outer, strides, c.m.size * row_elements, rows * row_elements)
    copied_strides = iter(strides)
    new_outer = tuple(_copied(loop, next(copied_strides) if loop.used[0] else 0) for loop in c.outer)
    return target, replace(c, outer=new_outer, m=_copied(c.m, row_elements), k=(_copied(k, 1),))


def _copied(loop: Loop, stride: int) -> Loop:
    """Returns `loop` with `stride` as its stride of A."""
    return replace(loop, strides=(stride, *loop.strides[1:]))


def _fill_rows(
    e: KernelEmitter, target: ir.Value, lanes: int, outer: Sequence[Loop], strides: Sequence[int], first: int, end: int
) -> None:
    """Stores zeros from offset `first` up to `end`, for each iteration of the outer loops; `lanes` divides both."""
    zero = e.zero(ir.VectorType.get([lanes], target.type.element_type))

    def fill(indices: list[Index]) -> None:
        start = e.dot(indices, strides)

        def store(offset: Index) -> None:
            e.store(zero, target, offset)

        e.for_each(e.add(start, first), e.add(start, end), lanes, store)

    e.nest([loop.size for loop in outer], fill)
