"""Vector loops for structured ops without reductions, and for transposes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import arith
from buddy.compiler.mlir.walk import element_bytes
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, flatten
from buddy.compiler.passes.kernels.body import Lanes, VectorBody, clone_ops
from buddy.compiler.passes.kernels.emit import Body, Index, KernelEmitter
from buddy.compiler.passes.kernels.packing import PanelCopy
from buddy.compiler.passes.kernels.structured import CHUNK, Structured, for_rows, work_of
from buddy.compiler.support.target import Target

# (most ops in the body, vectors per iteration of a long loop). Unrolling shares the loop overhead of short bodies; for
# the dependent chain of a polynomial, a second vector fills the gaps (3 to 7 %).
_UNROLLED = ((8, 4), (64, 2))


def lanes_for(op: Structured, target: Target) -> int:
    """Returns the number of lanes for which the widest element fills a register."""
    return target.lanes(max(element_bytes(value.type.element_type) for value in op.operands))


def vector_loop(op: Structured, candidates: Sequence[Loop], furthest: int = 1) -> Loop | None:
    """Returns the innermost of `candidates` along which operands move by at most `furthest`; outputs must move."""
    for loop in reversed(candidates):
        if all(0 <= stride <= furthest for stride in loop.strides) and all(loop.strides[op.inputs :]):
            return loop
    return None


def emit_elementwise(e: KernelEmitter, op: Structured, target: Target) -> str:
    """Emits `op` at the insertion point and returns a description.

    A stride of two is supported, as for the parts of complex numbers. Raises `UnsupportedError`, before anything is
    emitted, if no loop is contiguous in all operands.
    """
    if not op.loops:
        _emit_single(e, op)
        return "a single element, without a loop"
    lanes = lanes_for(op, target)
    inner, pair = vector_loop(op, op.loops), _transposing_loops(op) if _moves_one_operand(op) else None
    if inner is None and pair is not None:
        _emit_transpose(e, op, *pair, lanes)
        return f"transposed in {lanes}x{lanes} squares" + _over(op.loops, pair)
    inner = inner or vector_loop(op, op.loops, furthest=2)
    if inner is not None:
        _Elementwise(e, op, inner, lanes).emit()
        return f"{inner.size} elements in vectors of {lanes}" + _over(op.loops, (inner,))
    raise UnsupportedError("no loop is contiguous in all of its operands")


def _over(loops: Sequence[Loop], used: Sequence[Loop]) -> str:
    sizes = "x".join(str(loop.size) for loop in loops if loop not in used)
    return f", {sizes} times" if sizes else ""


def _emit_single(e: KernelEmitter, op: Structured) -> None:
    flats = [flatten(value) for value in op.operands]
    known = {op.arguments[i]: e.load_scalar(flat, 0) for i, flat in enumerate(flats) if op.reads(i)}
    known = clone_ops(op.block, known | op.scalars, {dim: e.value(0) for dim in op.indexed})
    for scalar, flat in zip(op.yielded, flats[op.inputs :], strict=True):
        e.store_scalar(known.get(scalar, scalar), flat, 0)


class _Elementwise:
    def __init__(self, e: KernelEmitter, op: Structured, inner: Loop, lanes: int) -> None:
        self.e, self.op, self.inner, self.lanes = e, op, inner, lanes
        self.outer = [loop for loop in op.loops if loop is not inner]
        self.flats = [flatten(value) for value in op.operands]
        self.body = VectorBody(e, op, lanes)
        several = next((count for ops, count in _UNROLLED if len(op.block.operations) <= ops), 1)
        self.unrolled = several if inner.size >= 16 * several * lanes else 1
        self.read = [number for number in range(len(op.operands)) if op.reads(number)]

    def emit(self) -> None:
        e, work, rows = self.e, work_of(self.op), [loop.size for loop in self.outer]
        full = self.inner.size // self.lanes * self.lanes
        element = max(element_bytes(value.type.element_type) for value in self.op.operands)
        part = CHUNK // element
        if not e.shares(work) or full <= part:
            for_rows(e, rows, self.inner.size * element, work, lambda outer: self._row(outer, 0, full, True))
            return

        def chunk(indices: list[Index]) -> None:
            *outer, number = indices
            lower = e.mul(number, part)
            upper = e.add(lower, part)
            self._row(outer, lower, upper if full % part == 0 else e.minimum(upper, full), False)

        e.parallel([*rows, -(-full // part)], chunk, work)
        e.nest(rows, lambda outer: self._row(outer, full, full, True))

    def _row(self, outer: list[Index], lower: Index, upper: Index, to_end: bool) -> None:
        """Emits whole vectors from `lower` to `upper`; with `to_end`, also the remainder after the last one."""
        e = self.e
        full = self.inner.size // self.lanes * self.lanes
        if isinstance(lower, int) and lower == upper and full == self.inner.size:
            return
        starts = [e.dot(outer, [loop.strides[i] for loop in self.outer]) for i in range(len(self.flats))]
        still = {
            self.op.arguments[i]: e.load_scalar(self.flats[i], starts[i])
            for i in self.read
            if not self.inner.strides[i]
        }

        def step(index: Index, _: list[Any], active: int | None = None) -> Sequence[Any]:
            self._vector(outer, starts, still, index, active)
            return ()

        if self.unrolled == 1:
            e.loop(lower, upper, self.lanes, step)
        else:
            self._unrolled(lower, upper, step)
        if to_end and full < self.inner.size:
            step(full, [], self.inner.size - full)

    def _unrolled(self, lower: Index, upper: Index, step: Body) -> None:
        """Emits several vectors per iteration, and the remaining ones one by one."""
        e, lanes = self.e, self.lanes

        def several(index: Index, _: list[Any]) -> Sequence[Any]:
            for i in range(self.unrolled):
                step(e.add(index, i * lanes), [])
            return ()

        block = self.unrolled * lanes
        if isinstance(lower, int) and isinstance(upper, int):
            middle: Index = lower + (upper - lower) // block * block
        else:
            count = arith.divui(arith.subi(e.value(upper), e.value(lower)), e.value(block))
            middle = e.add(lower, e.mul(count, block))
        e.loop(lower, middle, block, several)
        e.loop(middle, upper, lanes, step)

    def _vector(
        self, outer: list[Index], starts: list[Index], still: dict[Any, Any], index: Index, active: int | None
    ) -> None:
        op = self.op
        values = {}
        for i in self.read:
            if self.inner.strides[i]:
                values[op.arguments[i]] = self._load(i, starts[i], index, active)
        indices = {loop.dims[0]: i for loop, i in zip(self.outer, outer, strict=True)}
        known = self.body.emit(values, Lanes(self.inner.dims[0], index, active, still, indices))
        for i, scalar in enumerate(op.yielded, start=op.inputs):
            value = self.body.broadcast(still[scalar]) if scalar in still else self.body.value(scalar, known)
            self._store(value, i, starts[i], index, active)

    def _load(self, operand: int, start: Index, index: Index, active: int | None) -> Any:
        e, flat = self.e, self.flats[operand]
        if self.inner.strides[operand] == 2:
            return e.load_every_other(flat, e.add(start, e.mul(index, 2)), self.lanes, active)
        return e.load(flat, e.add(start, index), self.lanes, active)

    def _store(self, value: Any, operand: int, start: Index, index: Index, active: int | None) -> None:
        e, flat = self.e, self.flats[operand]
        if self.inner.strides[operand] == 2:
            e.store_every_other(value, flat, e.add(start, e.mul(index, 2)), active)
        else:
            e.store(value, flat, e.add(start, index), active)


def _moves_one_operand(op: Structured) -> bool:
    return len(op.operands) == 2 and op.outputs == 1 and op.yielded == [op.arguments[0]]


def _transposing_loops(op: Structured) -> tuple[Loop, Loop] | None:
    """Returns the loops along which the input and the output, respectively, are contiguous."""
    reading = next((loop for loop in op.loops if loop.strides[0] == 1), None)
    writing = next((loop for loop in op.loops if loop.strides[1] == 1), None)
    return None if reading is None or writing is None or reading is writing else (reading, writing)


def _emit_transpose(e: KernelEmitter, op: Structured, reading: Loop, writing: Loop, lanes: int) -> None:
    source, target = (flatten(value) for value in op.operands)
    outer = [loop for loop in op.loops if loop is not reading and loop is not writing]
    copier = PanelCopy(e, source, 1, writing.strides[0], target, reading.strides[1], writing.size, lanes)

    band = max(lanes, CHUNK // (writing.size * element_bytes(source.type.element_type)) // lanes * lanes)

    def body(numbers: list[Index], active: list[int]) -> None:
        *indices, number = numbers
        here, there = (e.dot(indices, [loop.strides[i] for loop in outer]) for i in (0, 1))
        here, there = e.add(here, e.mul(number, band)), e.add(there, e.mul(number, band * reading.strides[1]))
        copier.copy(here, there, 0, active[-1], writing.size)

    e.parallel_blocks([*(loop.size for loop in outer), reading.size], [*[1] * len(outer), band], body, work_of(op))
