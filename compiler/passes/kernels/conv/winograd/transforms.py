"""The matrices of fast convolution, and their products with vectors of vectors, emitted with few operations.

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

from buddy.compiler.mlir.bindings import arith
from buddy.compiler.passes.kernels.arithmetic import multiply_add
from buddy.compiler.passes.kernels.emit import KernelEmitter

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
