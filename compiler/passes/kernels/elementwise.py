"""Emits vector loops for structured ops without reductions, and for transposes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.mlir.walk import element_bytes
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, flatten
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div
from buddy.compiler.passes.kernels.matrix_copies import PanelCopy
from buddy.compiler.passes.kernels.structured import (
    CHUNK_BYTES,
    StructuredOp,
    VectorBody,
    VectorPosition,
    clone_ops,
    for_rows,
    work_of,
)
from buddy.compiler.support.target import Target

# (maximum number of ops in the body, vectors per iteration of a long loop). Unrolling reduces the loop overhead of
# short bodies; for the dependent chain of a polynomial, a second vector uses idle units (measured: 3 to 7 % faster).
_UNROLLING = ((8, 4), (64, 2))
# A loop is unrolled if it has at least this many iterations.
_MIN_UNROLLED_ITERATIONS = 16


def lanes_for(op: StructuredOp, target: Target) -> int:
    """Returns the number of lanes with which a vector of the widest elements of `op` fills a register."""
    return target.lanes(max(element_bytes(value.type.element_type) for value in op.operands))


def vector_loop(op: StructuredOp, candidates: Sequence[Loop], max_stride: int = 1) -> Loop | None:
    """Returns the innermost of `candidates` along which vectors can be loaded and stored, or `None`.

    Along it, the strides of inputs are -1 to `max_stride`, and those of outputs 1 to `max_stride`.
    """
    for loop in reversed(candidates):
        has_vectors = all(-1 <= stride <= max_stride for stride in loop.strides)
        if has_vectors and all(stride > 0 for stride in loop.strides[op.inputs :]):
            return loop
    return None


def emit_elementwise(e: KernelEmitter, op: StructuredOp, target: Target) -> str:
    """Emits `op`, which has no reductions, at the insertion point and returns a description.

    A stride of two is supported, as of the real parts of complex numbers, and so are inputs that are read from the last
    to the first element. Raises `UnsupportedError`, before anything is emitted, if no loop is contiguous in all
    operands.
    """
    if not op.loops:
        _emit_single_element(e, op)
        return "a single element, without a loop"
    lanes = lanes_for(op, target)
    inner = vector_loop(op, op.loops)
    transposed = _transposed_loops(op) if inner is None and _is_copy(op) else None
    if transposed is not None:
        _emit_transpose(e, op, *transposed, lanes)
        return f"transposed in {lanes}x{lanes} squares" + _describe_repetitions(op.loops, transposed)
    inner = inner or vector_loop(op, op.loops, max_stride=2)
    if inner is not None:
        _Elementwise(e, op, inner, lanes).emit()
        return f"{inner.size} elements in vectors of {lanes}" + _describe_repetitions(op.loops, (inner,))
    raise UnsupportedError("no loop is contiguous in all of its operands")


def _describe_repetitions(loops: Sequence[Loop], inner: Sequence[Loop]) -> str:
    """Returns the end of a description: the sizes of the loops around `inner`, "" if there are no others."""
    sizes = "x".join(str(loop.size) for loop in loops if loop not in inner)
    return f", {sizes} times" if sizes else ""


def _emit_single_element(e: KernelEmitter, op: StructuredOp) -> None:
    """Emits `op`, whose operands have one element each, on scalars."""
    flats = [flatten(value) for value in op.operands]
    values = {op.arguments[i]: e.load_scalar(flat, op.starts[i]) for i, flat in enumerate(flats) if op.reads(i)}
    values = clone_ops(op.block, values | op.scalars, {dim: e.value(0) for dim in op.indexed})
    for scalar, flat, start in zip(op.yielded, flats[op.inputs :], op.starts[op.inputs :], strict=True):
        e.store_scalar(values.get(scalar, scalar), flat, start)


class _Elementwise:
    """Emits `op` with vectors along the loop `inner`, and loops over the others around it."""

    def __init__(self, e: KernelEmitter, op: StructuredOp, inner: Loop, lanes: int) -> None:
        self.e, self.op, self.inner, self.lanes = e, op, inner, lanes
        self.outer_loops = [loop for loop in op.loops if loop is not inner]
        self.flats = [flatten(value) for value in op.operands]
        self.body = VectorBody(e, op, lanes)
        unrolling = next((count for ops, count in _UNROLLING if len(op.block.operations) <= ops), 1)
        is_long = inner.size >= _MIN_UNROLLED_ITERATIONS * unrolling * lanes
        self.vectors_per_iteration = unrolling if is_long else 1
        self.read_operands = [number for number in range(len(op.operands)) if op.reads(number)]

    def emit(self) -> None:
        """Emits the loops of the op, whose iterations threads share if the work is enough."""
        e, work, rows = self.e, work_of(self.op), [loop.size for loop in self.outer_loops]
        vectors_end = self.inner.size // self.lanes * self.lanes
        element_size = max(element_bytes(value.type.element_type) for value in self.op.operands)
        chunk = CHUNK_BYTES // element_size
        if not e.is_worth_sharing(work) or vectors_end <= chunk:
            row_bytes = self.inner.size * element_size
            for_rows(e, rows, row_bytes, work, lambda outer: self._emit_row(outer, 0, vectors_end, to_end=True))
            return

        def emit_chunk(indices: list[Index]) -> None:
            *outer, number = indices
            lower = e.mul(number, chunk)
            upper = e.add(lower, chunk)
            upper = upper if vectors_end % chunk == 0 else e.minimum(upper, vectors_end)
            self._emit_row(outer, lower, upper, to_end=False)

        e.parallel([*rows, ceil_div(vectors_end, chunk)], emit_chunk, work)
        e.nest(rows, lambda outer: self._emit_row(outer, vectors_end, vectors_end, to_end=True))

    def _emit_row(self, outer: list[Index], lower: Index, upper: Index, to_end: bool) -> None:
        """Emits whole vectors from `lower` to `upper`; with `to_end`, also the partial vector at the end of the row."""
        e = self.e
        vectors_end = self.inner.size // self.lanes * self.lanes
        if isinstance(lower, int) and lower == upper and vectors_end == self.inner.size:
            return
        starts = [
            e.dot(outer, [loop.strides[i] for loop in self.outer_loops], self.op.starts[i])
            for i in range(len(self.flats))
        ]
        uniform = {
            self.op.arguments[i]: e.load_scalar(self.flats[i], starts[i])
            for i in self.read_operands
            if not self.inner.strides[i]
        }

        def emit_vector(index: Index, active: int | None = None) -> None:
            self._emit_vector(outer, starts, uniform, index, active)

        if self.vectors_per_iteration == 1:
            e.for_each(lower, upper, self.lanes, emit_vector)
        else:
            self._emit_unrolled(lower, upper, emit_vector)
        if to_end and vectors_end < self.inner.size:
            emit_vector(vectors_end, self.inner.size - vectors_end)

    def _emit_unrolled(self, lower: Index, upper: Index, emit_vector: Callable[[Index], None]) -> None:
        """Emits a loop with several vectors per iteration, and a loop over the remaining vectors."""
        e, lanes = self.e, self.lanes

        def emit_block(index: Index) -> None:
            for i in range(self.vectors_per_iteration):
                emit_vector(e.add(index, i * lanes))

        block = self.vectors_per_iteration * lanes
        if isinstance(lower, int) and isinstance(upper, int):
            blocks_end: Index = lower + (upper - lower) // block * block
        else:
            count = arith.divui(arith.subi(e.value(upper), e.value(lower)), e.value(block))
            blocks_end = e.add(lower, e.mul(count, block))
        e.for_each(lower, blocks_end, block, emit_block)
        e.for_each(blocks_end, upper, lanes, emit_vector)

    def _emit_vector(
        self,
        outer: list[Index],
        starts: list[Index],
        uniform: dict[ir.Value, ir.Value],
        index: Index,
        active: int | None,
    ) -> None:
        """Emits the body for the vector at `index`; `uniform` has the scalars that are equal in all lanes."""
        op = self.op
        vectors = {}
        for i in self.read_operands:
            if self.inner.strides[i]:
                vectors[op.arguments[i]] = self.e.load_strided(
                    self.flats[i], starts[i], index, self.inner.strides[i], self.lanes, active
                )
        indices = {loop.dims[0]: i for loop, i in zip(self.outer_loops, outer, strict=True)}
        vectors = self.body.emit(vectors, VectorPosition(self.inner.dims[0], index, active, uniform, indices))
        for i, scalar in enumerate(op.yielded, start=op.inputs):
            is_uniform = scalar in uniform
            value = self.body.broadcast(uniform[scalar]) if is_uniform else self.body.vector_of(scalar, vectors)
            self._store(value, i, starts[i], index, active)

    def _store(self, value: ir.Value, operand: int, start: Index, index: Index, active: int | None) -> None:
        """Stores a vector from `index` on along the inner loop; `start` is the offset of the row in the operand."""
        e, flat = self.e, self.flats[operand]
        if self.inner.strides[operand] == 2:
            e.store_every_other(value, flat, e.add(start, e.mul(index, 2)), active)
        else:
            e.store(value, flat, e.add(start, index), active)


def _is_copy(op: StructuredOp) -> bool:
    """True if `op` copies its input, in any order of elements."""
    return len(op.operands) == 2 and op.outputs == 1 and op.yielded == [op.arguments[0]]


def _transposed_loops(op: StructuredOp) -> tuple[Loop, Loop] | None:
    """Returns the loop along which the input is contiguous, and the other loop, along which the output is.

    Returns `None` if there are no two such loops.
    """
    input_loop = next((loop for loop in op.loops if loop.strides[0] == 1), None)
    output_loop = next((loop for loop in op.loops if loop.strides[1] == 1), None)
    return None if input_loop is None or output_loop is None or input_loop is output_loop else (input_loop, output_loop)


def _emit_transpose(e: KernelEmitter, op: StructuredOp, input_loop: Loop, output_loop: Loop, lanes: int) -> None:
    """Emits a copy whose loops `_transposed_loops` returns, in bands of `input_loop`, which threads share."""
    source, target = (flatten(value) for value in op.operands)
    outer = [loop for loop in op.loops if loop is not input_loop and loop is not output_loop]
    copier = PanelCopy(e, source, 1, output_loop.strides[0], target, input_loop.strides[1], output_loop.size, lanes)

    row_bytes = output_loop.size * element_bytes(source.type.element_type)
    band = max(lanes, CHUNK_BYTES // row_bytes // lanes * lanes)

    def emit_band(numbers: list[Index], active: list[int]) -> None:
        *indices, number = numbers
        start, target_start = (e.dot(indices, [loop.strides[i] for loop in outer], op.starts[i]) for i in (0, 1))
        start = e.add(start, e.mul(number, band))
        target_start = e.add(target_start, e.mul(number, band * input_loop.strides[1]))
        copier.copy(start, target_start, 0, active[-1], output_loop.size)

    sizes, blocks = [*(loop.size for loop in outer), input_loop.size], [*[1] * len(outer), band]
    e.parallel_blocks(sizes, blocks, emit_band, work_of(op))
