"""The matrices of fast convolution, and their products with vectors and with the weights of 3x3 windows.

F(m, r) computes m neighbouring outputs of a window of r with m + r - 1 products instead of m r: it evaluates two
polynomials at m + r - 2 points and at infinity, multiplies the values, and interpolates (Toom and Cook). In two dims it
is nested with itself (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015):

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A

Y is a tile of m x m outputs, g the window of r x r weights, and d the (m + r - 1) x (m + r - 1) inputs of the tile. A
convolution has r = 3. In the gradient of its 3x3 kernel, m = 3 taps are the outputs, and r x r positions of the
gradient of its result are the window.

Bytes are transformed to 16-bit integers by `exact_transforms`, and the result is exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir, vector
from buddy.compiler.passes.kernels.access import SizeAndStride
from buddy.compiler.passes.kernels.contraction import convert_elements, emit_add, emit_multiply_add
from buddy.compiler.passes.kernels.dot_instructions import as_elements, as_words
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, element_type, for_blocks
from buddy.compiler.passes.kernels.matrix_copies import PackedWindows

WINDOW = 3  # lines and pixels of a window

# Finite points of evaluation by m + r - 3, which is m, the size of a tile, for a convolution. Pairs that differ in sign
# share half of their operations. The points of F(4, 3) are closer to one than the usual 1 and 2, and reciprocal: sums
# lose less than half as many digits.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2), -math.sqrt(2))}
TILE_SIZES = tuple(_POINTS)
# Points with which all transforms of F(4, 3) are integers, if those of the weights are multiplied by 24.
_INTEGER_POINTS = (0.0, 1.0, -1.0, 2.0, -2.0)
EXACT_TILE_SIZE = 4
EXACT_ELEMENT = "i16"

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Transforms:
    """`of_input` is Bᵀ, `of_weights` G, `of_output` Aᵀ.

    They have (m + r - 1, m + r - 1), (m + r - 1, r) and (m, m + r - 1) numbers.
    """

    of_input: Matrix
    of_weights: Matrix
    of_output: Matrix


@cache
def transforms(tile_size: int, window: int = WINDOW) -> Transforms:
    """Returns the matrices of F(`tile_size`, `window`)."""
    return _transforms_at(_POINTS[tile_size + window - WINDOW], tile_size, window)


def _transforms_at(points: Sequence[float], tile_size: int, window: int) -> Transforms:
    """Returns the matrices of F(`tile_size`, `window`) with the finite `points` of evaluation."""
    other_points = [[b for b in points if b != a] for a in points]
    size = len(points) + 1
    of_input = [_padded(_polynomial(roots), size) for roots in (*other_points, points)]
    scales = [math.prod(a - b for b in others) for a, others in zip(points, other_points, strict=True)]
    of_weights = [[a**k / scale for k in range(window)] for a, scale in zip(points, scales, strict=True)]
    of_output = [[*(a**i for a in points), float(i == tile_size - 1)] for i in range(tile_size)]
    return Transforms(_matrix(of_input), _matrix([*of_weights, [*[0.0] * (window - 1), 1.0]]), _matrix(of_output))


# The matrices of `exact_transforms` give the sums of the window times the square of this number.
_SCALE = 24
# The sum of magnitudes in a row of Bᵀ is at most 10, and in a row of G at most 12: for signed bytes, transformed inputs
# are up to 128 * 10^2, and transformed weights up to 128 * 12^2, which both fit into 16 bits.


@cache
def exact_transforms() -> Transforms:
    """Returns integer matrices of F(4, 3), with which Y is 24² times the sums of the windows.

    Rows of G are 24 times those of `transforms`, but for the last one, which would be too large: it is 12 times as
    large, and the last column of Aᵀ is twice as large.
    """
    plain = _transforms_at(_INTEGER_POINTS, EXACT_TILE_SIZE, WINDOW)
    *of_weights, last = plain.of_weights
    scaled = [[_SCALE * x for x in row] for row in of_weights] + [[_SCALE / 2 * x for x in last]]
    of_output = [[*row[:-1], 2 * row[-1]] for row in plain.of_output]
    return replace(plain, of_weights=_matrix(scaled), of_output=_matrix(of_output))


# The bits of a sum of a window that remain of 32 after the division by 24² = 2^6 * 9.
_EXACT_BITS = 26
# The most input channels for which the products of signed bytes in a window of 3x3 have such a sum.
MAX_EXACT_CHANNELS = (2 ** (_EXACT_BITS - 1) - 1) // (WINDOW**2 * 2**7 * 2**7)


def emit_exact_division(e: KernelEmitter, value: ir.Value) -> ir.Value:
    """Returns the vector of i32 `value`, which is 24² times a sum modulo 2^32, divided by 24².

    24² is 2^6 * 9. An odd number has an inverse modulo 2^32. The product with the inverse of 9 is 2^6 times the sum,
    without overflow if the sum has at most 26 bits.
    """
    shift = 32 - _EXACT_BITS
    inverse = pow(_SCALE**2 >> shift, -1, 2**32)
    multiple = arith.muli(value, e.splat(value.type, inverse - 2**32 if inverse >= 2**31 else inverse))
    return arith.shrsi(multiple, e.splat(value.type, shift))


def _polynomial(roots: Sequence[float]) -> list[float]:
    """Returns the coefficients, lowest first, of the product of (x - root)."""
    coefficients = [1.0]
    for root in roots:
        pairs = zip([0.0, *coefficients], [*coefficients, 0.0], strict=True)
        coefficients = [low - root * high for low, high in pairs]
    return coefficients


def _padded(row: list[float], size: int) -> list[float]:
    return row + [0.0] * (size - len(row))


def _matrix(rows: Sequence[Sequence[float]]) -> Matrix:
    """Returns `rows` as a matrix; numbers within 1e-9 of an integer are rounded to it."""
    return tuple(tuple(float(round(x)) if abs(x - round(x)) < 1e-9 else x for x in row) for row in rows)


# ---- products with matrices ------------------------------------------------------------------------------------------

Grid = list[list[ir.Value]]  # scalars or vectors by line and pixel


def apply_on_both_sides(e: KernelEmitter, matrix: Matrix, grid: Grid) -> Grid:
    """Returns `matrix * grid * matrixᵀ`."""
    columns = [_multiply(e, matrix, [line[j] for line in grid]) for j in range(len(grid[0]))]
    return [_multiply(e, matrix, [column[i] for column in columns]) for i in range(len(matrix))]


def _multiply(e: KernelEmitter, matrix: Sequence[Sequence[float]], values: Sequence[ir.Value]) -> list[ir.Value]:
    """Returns `matrix * values`; neighbouring columns, and rows, that differ only in some signs share operations."""
    # First replaces pairs of columns, with the values they are multiplied by, then computes rows, in pairs if possible.
    columns, combined = [list(column) for column in zip(*matrix, strict=True)], list(values)
    for j in range(len(columns) - 1):
        if _differ_in_signs(columns[j], columns[j + 1]):
            # a x + b y = even (x + y) + odd (x - y)
            columns[j : j + 2] = _even_and_odd(columns[j], columns[j + 1])
            combined[j : j + 2] = (op(values[j], values[j + 1]) for op in (emit_add, _emit_subtract))
    rows, results = [list(row) for row in zip(*columns, strict=True)], list[Any]()
    while len(results) < len(rows):
        pair = rows[len(results) : len(results) + 2]
        if len(pair) == 2 and _differ_in_signs(*pair):
            even, odd = (_sum(e, row, combined) for row in _even_and_odd(*pair))
            results += [op(even, odd) for op in (emit_add, _emit_subtract)]
        else:
            results.append(_sum(e, pair[0], combined))
    return results


def _differ_in_signs(first: Sequence[float], second: Sequence[float]) -> bool:
    """True if `second` differs from `first` only in some signs, but not in all signs of numbers other than zero."""
    pairs = list(zip(first, second, strict=True))
    return all(abs(a) == abs(b) for a, b in pairs) and any(a and a == b for a, b in pairs) and first != second


def _even_and_odd(first: Sequence[float], second: Sequence[float]) -> tuple[list[float], list[float]]:
    """Returns the numbers that are equal in both, and the numbers of `first` whose sign differs in `second`.

    All other numbers are zero.
    """
    pairs = list(zip(first, second, strict=True))
    return [a if a == b else 0.0 for a, b in pairs], [0.0 if a == b else a for a, b in pairs]


def _sum(e: KernelEmitter, factors: Sequence[float], values: Sequence[ir.Value]) -> ir.Value:
    """Returns the sum of `factors[i] * values[i]`, of which at least one factor is not zero.

    Terms with a factor of 1 or -1 are added first, the other terms by multiply-add.
    """
    terms = [(a, value) for a, value in zip(factors, values, strict=True) if a]
    (first, total), *others = sorted(terms, key=lambda term: (abs(term[0]) != 1, -term[0]))
    if first != 1:
        is_float = isinstance(element_type(total.type), ir.FloatType)
        total = (arith.mulf if is_float else arith.muli)(total, e.splat(total.type, first))
    for factor, value in others:
        if abs(factor) == 1:
            total = (emit_add if factor > 0 else _emit_subtract)(total, value)
        else:
            total = emit_multiply_add(value, e.splat(value.type, factor), total)
    return total


def _emit_subtract(left: ir.Value, right: ir.Value) -> ir.Value:
    """Returns the difference of two scalars or vectors of the same type."""
    return (arith.subf if isinstance(element_type(left.type), ir.FloatType) else arith.subi)(left, right)


def _rounded(value: ir.Value, element: ir.Type) -> ir.Value:
    """Returns `value`, a double or i32, as `element`; bfloat16 by way of float32, as processors convert."""
    if isinstance(element, ir.FloatType) and element.width < 32:
        value = convert_elements(value, ir.F32Type.get())
    return convert_elements(value, element)


# ---- weights ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TransformedWeights:
    """The packing of weights as `G g Gᵀ` of every window: [panel, part, point, input channel, column].

    Columns beyond the output channels are zeros. `n` and `channels` are the sizes and strides of the output and input
    channels in the unpacked weights, `window` the strides of its lines and pixels. `element` is the type of the packed
    elements; for `EXACT_ELEMENT`, the weights are signed bytes, and the transforms exact. `parts` is the number of
    equal parts of the input channels, whose products are summed apart.

    With a `group` of more than one, which divides the number of channels of a part, that many channels are adjacent:
    the order is [panel, part, point, channel / group, column, channel % group].
    """

    tile_size: int
    n: SizeAndStride
    channels: SizeAndStride
    window: tuple[int, int]
    columns: int
    lanes: int
    element: str
    group: int = 1
    parts: int = 1

    @property
    def points(self) -> int:
        """Returns the number of elements of a transformed window."""
        return (self.tile_size + WINDOW - 1) ** 2

    @property
    def shape(self) -> tuple[int, ...]:
        steps = (self._part_channels // self.group, self.columns, *([self.group] if self.group > 1 else []))
        parts = [self.parts] if self.parts > 1 else []
        return (ceil_div(self.n[0], self.columns), *parts, self.points, *steps)

    @property
    def _part_channels(self) -> int:
        """Returns the number of input channels of a part."""
        return self.channels[0] // self.parts

    @property
    def point_elements(self) -> int:
        """Returns the number of elements of a part at one point."""
        return self._part_channels * self.columns

    @property
    def part_elements(self) -> int:
        """Returns the number of elements of a part of a panel."""
        return self.points * self.point_elements

    def emit_packing(self, e: KernelEmitter, source: ir.Value, target: ir.Value) -> None:
        """Emits the transform from the flat weights `source` to the flat `target`. Sums are doubles or i32."""
        if not self._has_dense_windows:
            self._zero_partial_panel(e, target)

        def transform_panel(number: Index, active: int) -> None:
            start, target_start = e.mul(number, self.columns * self.n[1]), e.mul(number, self._panel_elements)
            if self._has_dense_windows:
                self._transform_vectors(e, source, start, active, target, target_start)
                return

            def transform_window(indices: list[Index]) -> None:
                window = e.dot(indices, (self.channels[1], self.n[1]), start)
                point_offset = self._first_point_offset(e, target_start, *indices)
                self._transform_window(e, source, window, target, point_offset)

            e.nest((self.channels[0], active), transform_window)

        for_blocks(e, self.n[0], self.columns, transform_panel)

    def _first_point_offset(self, e: KernelEmitter, panel_start: Index, channel: Index, column: Index) -> Index:
        """Returns the offset of a channel and column at the first point of the panel that begins at `panel_start`."""
        part, channel = e.divide(channel, self._part_channels) if self.parts > 1 else (0, channel)
        step, lane = e.divide(channel, self.group)
        strides = (self.part_elements, self.columns * self.group, self.group, 1)
        return e.dot((part, step, column, lane), strides, panel_start)

    @property
    def matrices(self) -> Transforms:
        """Returns the matrices of the transforms that the kernel computes."""
        return exact_transforms() if self.element == EXACT_ELEMENT else transforms(self.tile_size)

    @property
    def _wide_type(self) -> ir.Type:
        """Returns the type in which weights are transformed."""
        return ir.IntegerType.get_signless(32) if self.element == EXACT_ELEMENT else ir.F64Type.get()

    @property
    def _panel_elements(self) -> int:
        return self.parts * self.part_elements

    @property
    def _has_dense_windows(self) -> bool:
        """True if windows are contiguous, channel by channel, as in PyTorch."""
        dense_strides = (WINDOW, 1), WINDOW**2, WINDOW**2 * self.channels[0]
        return self.lanes > 1 and (self.window, self.channels[1], self.n[1]) == dense_strides

    def _transform_vectors(
        self, e: KernelEmitter, source: ir.Value, start: Index, active: int, target: ir.Value, target_start: Index
    ) -> None:
        """Transforms the windows of a panel, one vector of columns at a time; columns from `active` on become zeros."""
        windows = PackedWindows(e, source, self.n[1], WINDOW * WINDOW, self.columns, self.lanes)
        wide_type, matrix = self._wide_type, self.matrices.of_weights

        def transform_channel(channel: Index, row_starts: list[Index]) -> None:
            def transform_columns(column: Index) -> None:
                loaded = (e.load(windows.scratch, e.add(row, column), self.lanes) for row in row_starts)
                weights = [convert_elements(value, wide_type) for value in loaded]
                grid = [weights[line * WINDOW : (line + 1) * WINDOW] for line in range(WINDOW)]
                values = [value for row in apply_on_both_sides(e, matrix, grid) for value in row]
                point_offset = self._first_point_offset(e, target_start, channel, column)
                for point, value in enumerate(values):
                    self._store(e, value, target, e.add(point_offset, point * self.point_elements), channel)

            e.for_each(0, self.columns, self.lanes, transform_columns)

        windows.for_each_channel(start, self.channels[0], active, transform_channel)

    def _store(self, e: KernelEmitter, value: ir.Value, target: ir.Value, offset: Index, channel: Index) -> None:
        """Stores a vector of columns of `channel`; `offset` is that of the first column's element.

        In groups, the elements of a column form a word, to which the channels are added one after the other: bits of
        earlier channels are kept, and those of later ones become zeros.
        """
        narrow = _rounded(value, target.type.element_type)
        if self.group == 1:
            e.store(narrow, target, offset)
            return
        bits = narrow.type.element_type.width
        word = ir.IntegerType.get_signless(bits * self.group)
        integers = as_elements(narrow, ir.IntegerType.get_signless(bits))
        word_vector = ir.VectorType.get([self.lanes], word)
        _, lane = e.divide(channel, self.group)
        shift = arith.index_cast(word, e.value(e.mul(lane, bits)))
        earlier_mask = arith.subi(arith.shli(e.splat(word, 1), shift), e.splat(word, 1))
        start = e.subtract(offset, lane)
        old = as_words(e.load(target, start, self.lanes * self.group), self.group)
        earlier_bits = arith.andi(old, vector.broadcast(word_vector, earlier_mask))
        new_bits = arith.shli(arith.extui(word_vector, integers), vector.broadcast(word_vector, shift))
        e.store(as_elements(arith.ori(earlier_bits, new_bits), target.type.element_type), target, start)

    def _transform_window(
        self, e: KernelEmitter, source: ir.Value, start: Index, target: ir.Value, target_start: Index
    ) -> None:
        """Transforms the window at offset `start` of `source`; `target_start` is the offset of its first point."""
        wide_type, element = self._wide_type, target.type.element_type

        def load_weight(line: int, pixel: int) -> ir.Value:
            offset = e.dot((line, pixel), self.window, start)
            return convert_elements(e.load_scalar(source, offset), wide_type)

        matrix = self.matrices.of_weights
        grid = [[load_weight(line, pixel) for pixel in range(WINDOW)] for line in range(WINDOW)]
        rows = apply_on_both_sides(e, matrix, grid)
        for point, value in enumerate(value for row in rows for value in row):
            offset = e.add(target_start, point * self.point_elements)
            e.store_scalar(_rounded(value, element), target, offset)

    def _zero_partial_panel(self, e: KernelEmitter, target: ir.Value) -> None:
        """Emits zeros for the whole last panel, if it has fewer output channels than columns."""
        whole_panels, remaining_columns = divmod(self.n[0], self.columns)
        if not remaining_columns:
            return
        zero = e.zero(target.type.element_type)

        def store_zero(index: Index) -> None:
            e.store_scalar(zero, target, index)

        e.for_each(whole_panels * self._panel_elements, (whole_panels + 1) * self._panel_elements, 1, store_zero)
