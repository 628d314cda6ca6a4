"""The matrices of fast convolution, and their products with vectors and with the weights of 3x3 windows.

F(m, 3) computes m neighbouring outputs of a window of 3 with m + 2 products instead of 3 m: it evaluates two
polynomials at m + 1 points and at infinity, multiplies the values, and interpolates (Toom and Cook). In two dims it is
nested with itself (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015):

    Y = Aᵀ [(G g Gᵀ) ⊙ (Bᵀ d B)] A
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.passes.kernels.contraction import converted, multiply_add
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, for_blocks
from buddy.compiler.passes.kernels.packing import Extent, PackedWindows

WINDOW = 3

# Finite points of evaluation by the number of outputs. Pairs that differ in sign share half of their operations. The
# points of F(4, 3) are closer to one than the usual 1 and 2, and reciprocal: sums lose less than half as many digits.
_POINTS = {2: (0.0, 1.0, -1.0), 4: (0.0, math.sqrt(0.5), -math.sqrt(0.5), math.sqrt(2), -math.sqrt(2))}
OUTPUTS = tuple(_POINTS)

Matrix = tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Transforms:
    """`of_input` is Bᵀ, `of_weights` G, `of_output` Aᵀ: (m + 2, m + 2), (m + 2, 3) and (m, m + 2) numbers."""

    of_input: Matrix
    of_weights: Matrix
    of_output: Matrix


@cache
def transforms(outputs: int) -> Transforms:
    """Returns the matrices of F(`outputs`, 3)."""
    points = _POINTS[outputs]
    others = [[b for b in points if b != a] for a in points]
    size = len(points) + 1
    of_input = [_padded(_with_roots(roots), size) for roots in (*others, points)]
    scales = [math.prod(a - b for b in rest) for a, rest in zip(points, others, strict=True)]
    of_weights = [[a**k / scale for k in range(WINDOW)] for a, scale in zip(points, scales, strict=True)]
    of_output = [[*(a**i for a in points), float(i == outputs - 1)] for i in range(outputs)]
    return Transforms(_matrix(of_input), _matrix([*of_weights, [0.0, 0.0, 1.0]]), _matrix(of_output))


def _with_roots(roots: Sequence[float]) -> list[float]:
    """Returns the coefficients, lowest first, of the product of (x - root)."""
    found = [1.0]
    for root in roots:
        found = [low - root * high for low, high in zip([0.0, *found], [*found, 0.0], strict=True)]
    return found


def _padded(row: list[float], size: int) -> list[float]:
    return row + [0.0] * (size - len(row))


def _matrix(rows: Sequence[Sequence[float]]) -> Matrix:
    """Returns the rows with rounding errors removed from zeros and integers."""
    return tuple(tuple(round(x) + 0.0 if abs(x - round(x)) < 1e-9 else x for x in row) for row in rows)


Grid = list[list[Any]]  # scalars or vectors by line and pixel


def on_both_sides(e: KernelEmitter, matrix: Matrix, grid: Grid) -> Grid:
    """Returns `matrix * grid * matrixᵀ`."""
    half = [product(e, matrix, [line[j] for line in grid]) for j in range(len(grid[0]))]
    return [product(e, matrix, [column[i] for column in half]) for i in range(len(matrix))]


def product(e: KernelEmitter, matrix: Sequence[Sequence[float]], values: Sequence[Any]) -> list[Any]:
    """Returns `matrix * values`; neighbouring columns, and rows, that differ only in some signs share operations."""
    columns, joined = [list(column) for column in zip(*matrix, strict=True)], list(values)
    for j in range(len(columns) - 1):
        if _mirrored(columns[j], columns[j + 1]):
            columns[j : j + 2] = _even_and_odd(columns[j], columns[j + 1])
            joined[j : j + 2] = (op(values[j], values[j + 1]) for op in (arith.addf, arith.subf))
    rows, found = [list(row) for row in zip(*columns, strict=True)], list[Any]()
    while len(found) < len(rows):
        pair = rows[len(found) : len(found) + 2]
        if len(pair) == 2 and _mirrored(*pair):
            even, odd = (_sum(e, row, joined) for row in _even_and_odd(*pair))
            found += [op(even, odd) for op in (arith.addf, arith.subf)]
        else:
            found.append(_sum(e, pair[0], joined))
    return found


def _mirrored(first: Sequence[float], second: Sequence[float]) -> bool:
    """True if the second differs from the first in some signs, but not in all."""
    pairs = list(zip(first, second, strict=True))
    return all(abs(a) == abs(b) for a, b in pairs) and any(a and a == b for a, b in pairs) and first != second


def _even_and_odd(first: Sequence[float], second: Sequence[float]) -> tuple[list[float], list[float]]:
    """Returns the common part of both, and the part of the first whose sign differs in the second."""
    pairs = list(zip(first, second, strict=True))
    return [a if a == b else 0.0 for a, b in pairs], [0.0 if a == b else a for a, b in pairs]


def _sum(e: KernelEmitter, factors: Sequence[float], values: Sequence[Any]) -> Any:
    """Returns the sum of the products, at least one: plain terms first, the others by multiply-add."""
    terms = [(a, value) for a, value in zip(factors, values, strict=True) if a]
    (first, total), *others = sorted(terms, key=lambda term: (abs(term[0]) != 1, -term[0]))
    if first != 1:
        total = arith.mulf(total, e.splat(total.type, first))
    for factor, value in others:
        if abs(factor) == 1:
            total = (arith.addf if factor > 0 else arith.subf)(total, value)
        else:
            total = multiply_add(value, e.splat(value.type, factor), total)
    return total


@dataclass(frozen=True)
class TransformedWeights:
    """`G g Gᵀ` of every window as [panel, point, input channel, column]; columns beyond the output channels are zeros.

    `n`, `channels` and `window` are sizes and strides of the unpacked weights.
    """

    outputs: int
    n: Extent
    channels: Extent
    window: tuple[int, int]
    columns: int
    lanes: int

    @property
    def points(self) -> int:
        return (self.outputs + WINDOW - 1) ** 2

    @property
    def shape(self) -> tuple[int, ...]:
        return (-(-self.n[0] // self.columns), self.points, self.channels[0], self.columns)

    def fill(self, e: KernelEmitter, source: Any, target: Any) -> None:
        """Emits the transform from the flat weights `source` to the flat `target`. Sums are in double precision."""
        if not self._dense:
            self._zero_rest(e, target)

        def panel(number: Index, active: int) -> None:
            read, written = e.mul(number, self.columns * self.n[1]), e.mul(number, self._panel)
            if self._dense:
                self._by_vectors(e, source, read, active, target, written)
                return

            def one(indices: list[Index]) -> None:
                here = e.dot(indices, (self.channels[1], self.n[1]), read)
                self._window(e, source, here, target, e.dot(indices, (self.columns, 1), written))

            e.nest((self.channels[0], active), one)

        for_blocks(e, self.n[0], self.columns, panel)

    @property
    def _panel(self) -> int:
        return self.points * self.channels[0] * self.columns

    @property
    def _dense(self) -> bool:
        """True if windows are contiguous, channel by channel, as in PyTorch."""
        size = WINDOW * WINDOW
        return (self.window, self.channels[1], self.n[1], self.lanes > 1) == (
            (WINDOW, 1), size, size * self.channels[0], True,
        )  # fmt: skip

    def _by_vectors(self, e: KernelEmitter, source: Any, read: Index, active: int, target: Any, written: Index) -> None:
        """Emits a panel, one vector of columns at a time."""
        windows = PackedWindows(e, source, self.n[1], WINDOW * WINDOW, self.columns, self.lanes)
        double, element = ir.F64Type.get(), source.type.element_type
        matrix = transforms(self.outputs).of_weights

        def one(channel: Index, rows: list[Index]) -> None:
            there = e.add(written, e.mul(channel, self.columns))

            def vector(column: Index, _: list[Any]) -> Sequence[Any]:
                values = [
                    converted(e.load(windows.scratch, e.add(row, column), self.lanes), double) for row in rows
                ]  # fmt: skip
                grid = [values[line * WINDOW : (line + 1) * WINDOW] for line in range(WINDOW)]
                found = [value for row in on_both_sides(e, matrix, grid) for value in row]
                for point, value in enumerate(found):
                    offset = e.add(e.add(there, column), point * self.channels[0] * self.columns)
                    e.store(converted(value, element), target, offset)
                return ()

            e.loop(0, self.columns, self.lanes, vector)

        windows.each(read, self.channels[0], active, one)

    def _window(self, e: KernelEmitter, source: Any, here: Index, target: Any, there: Index) -> None:
        """Transforms one window, from offset `here`, to all of its points, from offset `there`."""
        double, element = ir.F64Type.get(), source.type.element_type

        def weight(line: int, pixel: int) -> Any:
            offset = e.dot((line, pixel), self.window, here)
            return converted(e.load_scalar(source, offset), double)

        matrix = transforms(self.outputs).of_weights
        grid = [[weight(line, pixel) for pixel in range(WINDOW)] for line in range(WINDOW)]
        rows = on_both_sides(e, matrix, grid)
        for point, value in enumerate(value for row in rows for value in row):
            offset = e.add(there, point * self.channels[0] * self.columns)
            e.store_scalar(converted(value, element), target, offset)

    def _zero_rest(self, e: KernelEmitter, target: Any) -> None:
        """Emits zeros for the whole last panel, if fewer columns are left than its width."""
        panels, rest = divmod(self.n[0], self.columns)
        if not rest:
            return
        zero = e.zero(target.type.element_type)

        def one(index: Index, _: list[Any]) -> Sequence[Any]:
            e.store_scalar(zero, target, index)
            return ()

        e.loop(panels * self._panel, (panels + 1) * self._panel, 1, one)
