"""Vector loops for reductions: several accumulators along a contiguous loop, or one per column."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import attributes_of
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, flatten
from buddy.compiler.passes.kernels.body import Lanes, VectorBody
from buddy.compiler.passes.kernels.elementwise import lanes_for, vector_loop
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, reduce_lanes
from buddy.compiler.passes.kernels.structured import Structured, for_rows, moved_bytes, work_of
from buddy.compiler.support.target import FMA_LATENCY, Target

ACCUMULATORS = FMA_LATENCY  # enough to hide the latency

_INFINITY = float("inf")
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
    """One output: `accumulator = combine(accumulator, term)` for every element."""

    combine: Any  # the op of the body
    term: Any  # a scalar of the body
    element: Any

    def neutral(self, e: KernelEmitter, lanes: int) -> Any:
        number = _NEUTRAL[self.combine.name](self.element.width)
        return e.splat(ir.VectorType.get([lanes], self.element), number)

    def join(self, left: Any, right: Any) -> Any:
        """Returns `combine` of two scalars or vectors."""
        attributes = attributes_of(self.combine)
        return ir.Operation.create(self.combine.name, [left.type], [left, right], attributes).results[0]


def folds_of(op: Structured) -> dict[int, RowReduction]:
    """Returns the fold of each output, by its operand number; outputs that the body does not read are only stored.

    Raises `UnsupportedError` for bodies that are not plain folds.
    """
    folds = {}
    for number, scalar in enumerate(op.yielded, start=op.inputs):
        moves = any(loop.strides[number] for loop in op.reductions)
        if op.reads(number) and moves:
            raise UnsupportedError("an output that is read varies along a reduction")
        if not moves:
            folds[number] = _fold(scalar, op.arguments[number])
    return folds


def _fold(yielded: Any, argument: Any) -> RowReduction:
    uses = list(argument.uses)
    if len(uses) != 1 or not isinstance(yielded, ir.OpResult) or uses[0].owner.operation != yielded.owner.operation:
        raise UnsupportedError("its body is not a plain fold")
    combine = yielded.owner.operation
    if combine.name not in _NEUTRAL:
        raise UnsupportedError(f"a fold with {combine.name}")
    left, right = combine.operands
    return RowReduction(combine, right if left == argument else left, argument.type)


def emit_reduction(e: KernelEmitter, op: Structured, target: Target) -> str:
    """Emits `op` at the insertion point and returns a description.

    Raises `UnsupportedError`, before anything is emitted, if no loop is contiguous or the body is not a plain fold.
    """
    folds = folds_of(op)
    lanes = lanes_for(op, target)
    along = _contiguous_reduction(op, set(range(op.inputs, len(op.operands))) - set(folds))
    if not op.indexed <= set(along.dims if along is not None else ()):
        raise UnsupportedError("a reduction that reads another index than that of its contiguous loop")
    if along is not None:
        _AlongReduction(e, op, folds, along, lanes).emit()
        return f"{along.size} elements folded in vectors of {lanes}"
    across = vector_loop(op, op.parallel)
    if across is None:
        raise UnsupportedError("no loop is contiguous in all of its operands")
    if len(folds) < op.outputs:
        raise UnsupportedError("an output varies along a reduction")
    _AcrossColumns(e, op, folds, across, lanes).emit()
    return f"columns folded in vectors of {lanes}"


def _contiguous_reduction(op: Structured, stored: set[int]) -> Loop | None:
    """Returns the reduction loop along which inputs are contiguous or constant, and `stored` outputs contiguous."""
    for loop in reversed(op.reductions):
        read = loop.strides[: op.inputs]
        if all(stride in (0, 1) for stride in read) and 1 in read and all(loop.strides[i] == 1 for i in stored):
            return loop
    return None


class _Reduction:
    """Base of both directions: offsets, loads and terms."""

    def __init__(
        self, e: KernelEmitter, op: Structured, folds: dict[int, RowReduction], inner: Loop, lanes: int
    ) -> None:
        self.e, self.op, self.inner, self.lanes = e, op, inner, lanes
        self.folded, self.folds = list(folds), list(folds.values())
        self.stored = [i for i in range(op.inputs, len(op.operands)) if i not in folds]
        self.flats = [flatten(value) for value in op.operands]
        self.body = VectorBody(e, op, lanes, frozenset(fold.combine for fold in self.folds))
        self.outer = [loop for loop in op.parallel if loop is not inner]
        self.reduced = [loop for loop in op.reductions if loop is not inner]

    def emit(self) -> None:
        raise NotImplementedError

    def _starts(self, outer: list[Index]) -> list[Index]:
        """Returns the offset of each operand for the indices of the outer loops."""
        return [self.e.dot(outer, [loop.strides[i] for loop in self.outer]) for i in range(len(self.flats))]

    def _emit_reductions(
        self, starts: list[Index], sums: list[Any], body: Callable[[list[Index], list[Any]], list[Any]], depth: int = 0
    ) -> list[Any]:
        """Emits `body(offsets of the inputs, sums) -> sums` inside the reduction loops other than the vector loop."""
        if depth == len(self.reduced):
            return body(starts, sums)
        loop, e = self.reduced[depth], self.e

        def level(index: Index, inner: list[Any]) -> Sequence[Any]:
            here = [e.add(start, e.mul(index, stride)) for start, stride in zip(starts, loop.strides, strict=True)]
            return self._emit_reductions(here, inner, body, depth + 1)

        return e.loop(0, loop.size, 1, level, sums)

    def _terms(self, starts: list[Index], index: Index, active: int | None = None) -> list[Any]:
        """Returns the vector that each fold adds at `index` along the vector loop; unused lanes are neutral.

        Stores the other outputs.
        """
        e, op = self.e, self.op
        values = {}
        for i in range(op.inputs):
            if op.reads(i) and self.inner.strides[i]:
                values[op.arguments[i]] = e.load(self.flats[i], e.add(starts[i], index), self.lanes, active)
            elif op.reads(i):
                values[op.arguments[i]] = self.body.broadcast(e.load_scalar(self.flats[i], starts[i]))
        # The body's `linalg.index` is along the vector loop, which then consists of one dim.
        at = Lanes(self.inner.dims[0], index, active, {}, {}) if op.indexed else None
        known = self.body.emit(values, at)
        terms = [self.body.value(fold.term, known) for fold in self.folds]
        for i in self.stored:
            value = self.body.value(op.yielded[i - op.inputs], known)
            e.store(value, self.flats[i], e.add(starts[i], index), active)
        if active is None:
            return terms
        mask = e.mask(self.lanes, active)
        return [
            arith.select(mask, term, fold.neutral(e, self.lanes)) for term, fold in zip(terms, self.folds, strict=True)
        ]

    def _combine(self, sums: Sequence[Any], terms: Sequence[Any]) -> list[Any]:
        return [fold.join(a, b) for fold, a, b in zip(self.folds * len(sums), sums, terms, strict=False)]


class _AlongReduction(_Reduction):
    """The vector loop is a reduction: vectors are folded into accumulators, and these across their lanes."""

    def emit(self) -> None:
        rows = [loop.size for loop in self.outer]
        row_bytes = moved_bytes(self.op, math.prod(rows))
        for_rows(self.e, rows, row_bytes, work_of(self.op), lambda outer: self._fold_row(self._starts(outer)))

    def _fold_row(self, starts: list[Index]) -> None:
        e, size = self.e, self.inner.size
        count = max(1, min(ACCUMULATORS, size // self.lanes))
        sums = [fold.neutral(e, self.lanes) for _ in range(count) for fold in self.folds]
        sums = self._emit_reductions(starts, sums, lambda here, inner: self._row(here, inner, count))
        width = len(self.folds)
        total = sums[:width]
        for i in range(width, len(sums), width):
            total = self._combine(total, sums[i : i + width])
        for i, fold, value in zip(self.folded, self.folds, total, strict=True):
            start = e.load_scalar(self.flats[i], starts[i])
            e.store_scalar(fold.join(start, reduce_lanes(value, fold.join)), self.flats[i], starts[i])

    def _row(self, starts: list[Index], sums: list[Any], count: int) -> list[Any]:
        e, size, lanes = self.e, self.inner.size, self.lanes
        block = count * lanes
        many, full = size // block * block, size // lanes * lanes
        width = len(self.folds)

        def blocks(index: Index, inner: list[Any]) -> Sequence[Any]:
            terms = [term for i in range(count) for term in self._terms(starts, e.add(index, i * lanes))]
            return self._combine(inner, terms)

        def singles(index: Index, inner: list[Any]) -> Sequence[Any]:
            return [*self._combine(inner[:width], self._terms(starts, index)), *inner[width:]]

        sums = e.loop(0, many, block, blocks, sums)
        sums = e.loop(many, full, lanes, singles, sums)
        if full < size:
            sums = [*self._combine(sums[:width], self._terms(starts, full, size - full)), *sums[width:]]
        return sums


class _AcrossColumns(_Reduction):
    """The vector loop is parallel: a block of columns stays in accumulators over all reductions."""

    def emit(self) -> None:
        """Emits blocks of several vectors, which threads share, and then the remainder of each row."""
        e, lanes, rows = self.e, self.lanes, [loop.size for loop in self.outer]
        block = ACCUMULATORS * lanes
        many = self.inner.size // block

        def columns(indices: list[Index]) -> None:
            *outer, number = indices
            first = e.mul(number, block)
            self._columns(self._starts(outer), [e.add(first, i * lanes) for i in range(ACCUMULATORS)], None)

        if many:
            e.parallel([*rows, many], columns, work_of(self.op))
        if many * block < self.inner.size:
            e.nest(rows, lambda outer: self._rest(self._starts(outer), many * block))

    def _rest(self, starts: list[Index], first: int) -> None:
        e, size, lanes = self.e, self.inner.size, self.lanes
        full = size // lanes * lanes

        def single(index: Index, _: list[Any]) -> Sequence[Any]:
            self._columns(starts, [index], None)
            return ()

        e.loop(first, full, lanes, single)
        if full < size:
            self._columns(starts, [full], size - full)

    def _columns(self, starts: list[Index], columns: list[Index], active: int | None) -> None:
        e, first = self.e, self.op.inputs
        places = [(i, e.add(starts[i], column)) for column in columns for i in range(first, len(self.flats))]
        sums = [e.load(self.flats[i], place, self.lanes, active) for i, place in places]

        def body(here: list[Index], inner: list[Any]) -> list[Any]:
            return self._combine(inner, [term for column in columns for term in self._terms(here, column, active)])

        for (i, place), value in zip(places, self._emit_reductions(starts, sums, body), strict=True):
            e.store(value, self.flats[i], place, active)
