"""Emits vector loops for reductions: along a contiguous reduction loop, or across the columns of a parallel loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import attributes_of
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, flatten
from buddy.compiler.passes.kernels.elementwise import lanes_for, vector_loop
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, reduce_lanes
from buddy.compiler.passes.kernels.structured import (
    StructuredOp,
    VectorBody,
    VectorPosition,
    for_rows,
    moved_bytes,
    work_of,
)
from buddy.compiler.support.target import FMA_LATENCY, Target

# The number of vectors that accumulate results: enough to hide the latency of the op. Below, `sums` are accumulators,
# and `terms` the values that are combined with them, whatever the op is.
ACCUMULATORS = FMA_LATENCY

_INFINITY = float("inf")
# The neutral element of each op that a reduction may combine values with, by the bit width of the type. Adding 0.0
# would change -0.0 to 0.0, so `arith.addf` has -0.0.
_NEUTRAL: dict[str, Callable[[int], float]] = {
    "arith.addf": lambda width: -0.0,
    "arith.mulf": lambda width: 1.0,
    "arith.maximumf": lambda width: -_INFINITY,
    "arith.maxnumf": lambda width: -_INFINITY,
    "arith.minimumf": lambda width: _INFINITY,
    "arith.minnumf": lambda width: _INFINITY,
    "arith.addi": lambda width: 0,
    "arith.muli": lambda width: 1,
    "arith.ori": lambda width: 0,
    "arith.xori": lambda width: 0,
    "arith.andi": lambda width: -1,
    "arith.maxsi": lambda width: -(1 << (width - 1)),
    "arith.minsi": lambda width: (1 << (width - 1)) - 1,
    "arith.maxui": lambda width: 0,
    "arith.minui": lambda width: -1,
}


@dataclass(frozen=True)
class RowReduction:
    """The reduction to one output: `accumulator = combine(accumulator, term)` for every element."""

    combine: Any  # the op of the body
    term: Any  # a scalar of the body
    element: Any  # the element type of the output

    def neutral(self, e: KernelEmitter, lanes: int) -> ir.Value:
        """Returns a vector of neutral elements."""
        number = _NEUTRAL[self.combine.name](self.element.width)
        return e.splat(ir.VectorType.get([lanes], self.element), number)

    def join(self, left: ir.Value, right: ir.Value) -> ir.Value:
        """Returns `combine` of two scalars or vectors."""
        attributes = attributes_of(self.combine)
        return ir.Operation.create(self.combine.name, [left.type], [left, right], attributes).results[0]


def _reductions_of(op: StructuredOp) -> dict[int, RowReduction]:
    """Returns the reduction to each output that does not vary along a reduction loop, by operand number.

    Other outputs are only stored. Raises `UnsupportedError` if the body reads such an output, or if it does not combine
    an accumulator with one value by an op in `_NEUTRAL`.
    """
    reductions = {}
    for number, scalar in enumerate(op.yielded, start=op.inputs):
        varies = any(loop.strides[number] for loop in op.reductions)
        if op.reads(number) and varies:
            raise UnsupportedError("an output that is read varies along a reduction")
        if not varies:
            reductions[number] = _match_reduction(scalar, op.arguments[number])
    return reductions


def _match_reduction(yielded: ir.Value, argument: ir.Value) -> RowReduction:
    """Returns the reduction that yields `yielded`, with the accumulator `argument`.

    Raises `UnsupportedError` if the body is not such a reduction.
    """
    uses = list(argument.uses)
    if len(uses) != 1 or not isinstance(yielded, ir.OpResult) or uses[0].owner.operation != yielded.owner.operation:
        raise UnsupportedError("its body is not a plain reduction")
    combine = yielded.owner.operation
    if combine.name not in _NEUTRAL:
        raise UnsupportedError(f"a reduction with {combine.name}")
    left, right = combine.operands
    return RowReduction(combine, right if left == argument else left, argument.type)


def emit_reduction(e: KernelEmitter, op: StructuredOp, target: Target) -> str:
    """Emits `op` at the insertion point and returns a description.

    Raises `UnsupportedError`, before anything is emitted, if no loop is contiguous or the body is not a plain
    reduction.
    """
    reductions = _reductions_of(op)
    lanes = lanes_for(op, target)
    stored_outputs = set(range(op.inputs, len(op.operands))) - set(reductions)
    contiguous = _contiguous_reduction(op, stored_outputs)
    columns = _column_loop(op) if len(reductions) == op.outputs and not op.indexed else None
    # Vectors along a short loop, such as that over a window, are mostly empty.
    if contiguous is not None and columns is not None and contiguous.size < lanes <= columns.size:
        contiguous = None
    if not op.indexed <= set(contiguous.dims if contiguous is not None else ()):
        raise UnsupportedError("a reduction that reads another index than that of its contiguous loop")
    if contiguous is not None:
        _AlongReduction(e, op, reductions, contiguous, lanes).emit()
        return f"{contiguous.size} elements reduced in vectors of {lanes}"
    if columns is not None:
        _AcrossColumns(e, op, reductions, columns, lanes).emit()
        return f"columns reduced in vectors of {lanes}"
    if _column_loop(op) is None:
        raise UnsupportedError("no loop is contiguous in all of its operands")
    raise UnsupportedError("an output varies along a reduction")


def _column_loop(op: StructuredOp) -> Loop | None:
    """Returns the innermost parallel loop along which vectors can be loaded and stored, or `None`.

    Inputs may have a stride of 2 along it, as pools have; the outputs are contiguous.
    """
    for max_stride in (1, 2):
        loop = vector_loop(op, op.parallel, max_stride)
        if loop is not None and all(stride == 1 for stride in loop.strides[op.inputs :]):
            return loop
    return None


def _contiguous_reduction(op: StructuredOp, stored: set[int]) -> Loop | None:
    """Returns the innermost reduction loop along which vectors can be loaded and stored, or `None`.

    Along it, inputs are contiguous or constant, and the outputs in `stored` are contiguous; at least one operand is.
    """
    for loop in reversed(op.reductions):
        strides = loop.strides[: op.inputs]
        is_contiguous = 1 in strides or bool(stored)
        if is_contiguous and {*strides} <= {0, 1} and all(loop.strides[i] == 1 for i in stored):
            return loop
    return None


class _Reduction:
    """Emits a reduction with vectors along the loop `inner`.

    `reduced` has the operand numbers of the outputs in `reductions`, and `stored` those of the other outputs.
    """

    def __init__(
        self, e: KernelEmitter, op: StructuredOp, reductions: dict[int, RowReduction], inner: Loop, lanes: int
    ) -> None:
        self.e, self.op, self.inner, self.lanes = e, op, inner, lanes
        self.reduced, self.reductions = list(reductions), list(reductions.values())
        self.stored = [i for i in range(op.inputs, len(op.operands)) if i not in reductions]
        self.flats = [flatten(value) for value in op.operands]
        self.body = VectorBody(e, op, lanes, frozenset(reduction.combine for reduction in self.reductions))
        self.outer_loops = [loop for loop in op.parallel if loop is not inner]
        self.reduction_loops = [loop for loop in op.reductions if loop is not inner]

    def emit(self) -> None:
        """Emits all loops of the op."""
        raise NotImplementedError

    def _starts(self, outer: list[Index]) -> list[Index]:
        """Returns the offset of each operand for the indices of the outer loops."""
        return [self.e.dot(outer, [loop.strides[i] for loop in self.outer_loops]) for i in range(len(self.flats))]

    def _emit_reductions(
        self,
        starts: list[Index],
        sums: list[ir.Value],
        body: Callable[[list[Index], list[ir.Value]], list[ir.Value]],
        depth: int = 0,
    ) -> list[ir.Value]:
        """Emits `body(offsets of the operands, sums) -> sums` inside the reduction loops from number `depth` on."""
        if depth == len(self.reduction_loops):
            return body(starts, sums)
        loop, e = self.reduction_loops[depth], self.e

        def emit_iteration(index: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
            offsets = [e.add(start, e.mul(index, stride)) for start, stride in zip(starts, loop.strides, strict=True)]
            return self._emit_reductions(offsets, carried, body, depth + 1)

        return e.loop(0, loop.size, 1, emit_iteration, sums)

    def _terms(self, starts: list[Index], index: Index, active: int | None = None) -> list[ir.Value]:
        """Returns the vector that each reduction adds at `index` along the vector loop; unused lanes are neutral.

        Emits the stores of the outputs in `stored`.
        """
        e, op = self.e, self.op
        vectors = {}
        for i in range(op.inputs):
            if op.reads(i) and (stride := self.inner.strides[i]):
                vectors[op.arguments[i]] = e.load_strided(self.flats[i], starts[i], index, stride, self.lanes, active)
            elif op.reads(i):
                vectors[op.arguments[i]] = self.body.broadcast(e.load_scalar(self.flats[i], starts[i]))
        # The body's `linalg.index` is along the vector loop, which then consists of one dim.
        position = VectorPosition(self.inner.dims[0], index, active, {}, {}) if op.indexed else None
        vectors = self.body.emit(vectors, position)
        terms = [self.body.vector_of(reduction.term, vectors) for reduction in self.reductions]
        for i in self.stored:
            value = self.body.vector_of(op.yielded[i - op.inputs], vectors)
            e.store(value, self.flats[i], e.add(starts[i], index), active)
        if active is None:
            return terms
        mask = e.mask(self.lanes, active)
        return [
            arith.select(mask, term, reduction.neutral(e, self.lanes))
            for term, reduction in zip(terms, self.reductions, strict=True)
        ]

    def _combine(self, sums: Sequence[ir.Value], terms: Sequence[ir.Value]) -> list[ir.Value]:
        """Combines each of `sums` with one of `terms`, both of which repeat the order of `reductions` once or more."""
        return [
            reduction.join(total, term)
            for reduction, total, term in zip(cycle(self.reductions), sums, terms, strict=False)
        ]


class _AlongReduction(_Reduction):
    """Emits vectors along a reduction loop: they are added to accumulators, whose lanes are then combined."""

    def emit(self) -> None:
        rows = [loop.size for loop in self.outer_loops]
        row_bytes = moved_bytes(self.op, math.prod(rows))
        for_rows(self.e, rows, row_bytes, work_of(self.op), lambda outer: self._reduce_row(self._starts(outer)))

    def _reduce_row(self, starts: list[Index]) -> None:
        """Emits all reductions of one row, and adds their results to the outputs."""
        e, size = self.e, self.inner.size
        count = max(1, min(ACCUMULATORS, size // self.lanes))
        sums = [reduction.neutral(e, self.lanes) for _ in range(count) for reduction in self.reductions]
        sums = self._emit_reductions(starts, sums, lambda offsets, carried: self._add_vectors(offsets, carried, count))
        width = len(self.reductions)
        totals = sums[:width]
        for i in range(width, len(sums), width):
            totals = self._combine(totals, sums[i : i + width])
        for i, reduction, total in zip(self.reduced, self.reductions, totals, strict=True):
            old = e.load_scalar(self.flats[i], starts[i])
            e.store_scalar(reduction.join(old, reduce_lanes(total, reduction.join)), self.flats[i], starts[i])

    def _add_vectors(self, starts: list[Index], sums: list[ir.Value], count: int) -> list[ir.Value]:
        """Returns the sums after the vector loop: `count` vectors per iteration, then one, then a partial one."""
        e, size, lanes = self.e, self.inner.size, self.lanes
        block = count * lanes
        blocks_end, vectors_end = size // block * block, size // lanes * lanes
        width = len(self.reductions)

        def add_block(index: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
            terms = [term for i in range(count) for term in self._terms(starts, e.add(index, i * lanes))]
            return self._combine(carried, terms)

        def add_vector(index: Index, carried: list[ir.Value]) -> Sequence[ir.Value]:
            return [*self._combine(carried[:width], self._terms(starts, index)), *carried[width:]]

        sums = e.loop(0, blocks_end, block, add_block, sums)
        sums = e.loop(blocks_end, vectors_end, lanes, add_vector, sums)
        if vectors_end < size:
            terms = self._terms(starts, vectors_end, size - vectors_end)
            sums = [*self._combine(sums[:width], terms), *sums[width:]]
        return sums


class _AcrossColumns(_Reduction):
    """Emits vectors along a parallel loop: a block of columns stays in accumulators over all reductions."""

    def emit(self) -> None:
        """Emits blocks of several vectors, and then the remainder of each row; threads share both."""
        e, lanes, size, rows = self.e, self.lanes, self.inner.size, [loop.size for loop in self.outer_loops]
        accumulators = max(1, min(ACCUMULATORS, size // lanes))
        block = accumulators * lanes
        blocks, remaining = divmod(size, block)
        work = work_of(self.op)

        def emit_block(indices: list[Index]) -> None:
            *outer, number = indices
            first = e.mul(number, block)
            self._reduce_columns(self._starts(outer), [e.add(first, i * lanes) for i in range(accumulators)], None)

        if blocks:
            e.parallel([*rows, blocks], emit_block, work * (size - remaining) / size)
        if remaining:
            e.parallel(
                rows, lambda outer: self._emit_remainder(self._starts(outer), blocks * block), work * remaining / size
            )

    def _emit_remainder(self, starts: list[Index], first: int) -> None:
        """Emits the columns from `first` on, one vector at a time."""
        e, size, lanes = self.e, self.inner.size, self.lanes
        vectors_end = size // lanes * lanes

        def emit_vector(index: Index) -> None:
            self._reduce_columns(starts, [index], None)

        e.for_each(first, vectors_end, lanes, emit_vector)
        if vectors_end < size:
            self._reduce_columns(starts, [vectors_end], size - vectors_end)

    def _reduce_columns(self, starts: list[Index], columns: list[Index], active: int | None) -> None:
        """Emits the reductions of one vector of columns from each of `columns` on."""
        e, first = self.e, self.op.inputs
        targets = [(i, e.add(starts[i], column)) for column in columns for i in range(first, len(self.flats))]
        sums = [e.load(self.flats[i], offset, self.lanes, active) for i, offset in targets]

        def add_terms(offsets: list[Index], carried: list[ir.Value]) -> list[ir.Value]:
            terms = [term for column in columns for term in self._terms(offsets, column, active)]
            return self._combine(carried, terms)

        for (i, offset), value in zip(targets, self._emit_reductions(starts, sums, add_terms), strict=True):
            e.store(value, self.flats[i], offset, active)
