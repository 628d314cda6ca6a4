"""Row-wise fusion: finds the rows of ops, groups ops into stages, and emits a loop over rows that runs all stages.

The fused ops share their outer loops, the row loops. A row is one iteration of these, with the elements that an op
accesses in it. An element-wise op joins the stage of the next op that reads its result, if both have the same loops
within a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from buddy.compiler.mlir.bindings import ir, linalg, memref
from buddy.compiler.mlir.walk import VIEW_OPS, element_bytes, is_unaliased, root_of
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, layout_of
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, estimate_nanoseconds, round_up
from buddy.compiler.passes.kernels.structured import StructuredOp, clone_ops, for_chunk, rows_in_chunk
from buddy.compiler.support.target import CACHE_LINE

# ---- rows of an op ---------------------------------------------------------------------------------------------------


# The products of the sizes of the first 0, 1, 2, ... row loops: row loops of the sizes 2, 3 and 4 have the bounds
# (1, 2, 6, 24). Ops whose loops are split at the same bounds have the same row loops.
Bounds = tuple[int, ...]


@dataclass(frozen=True)
class OperandAccess:
    """An op's access to element `offset + row indices · row_strides + inner indices · inner_strides` of `buffer`.

    Offsets and strides are in elements.
    """

    value: Any  # the operand, a view of `buffer`
    buffer: Any
    offset: int
    row_strides: tuple[int, ...]
    inner_strides: tuple[int, ...]
    span: int  # elements from the first to the last one of a row, with those in between
    written: bool

    def overlaps_in_other_rows(self, other: OperandAccess, sizes: Sequence[int]) -> bool:
        """True if a row of this access may overlap another row of `other`, in the same buffer.

        `sizes` are those of the row loops.
        """
        if self.row_strides != other.row_strides:
            return True
        start = min(self.offset, other.offset)
        extent = max(self.offset + self.span, other.offset + other.span) - start
        # Rows are disjoint if each stride is at least the extent of all rows along the loops with smaller strides.
        for stride, size in sorted(zip(self.row_strides, sizes, strict=True)):
            if stride < extent:
                return True
            extent += stride * (size - 1)
        return False


@dataclass(frozen=True)
class RowOp:
    """A structured op as `row_loops` around `inner_loops`, with an access for each operand."""

    structured: StructuredOp
    row_loops: tuple[Loop, ...]
    inner_loops: tuple[Loop, ...]
    accesses: tuple[OperandAccess, ...]


def leading_rows(op: StructuredOp) -> int:
    """Returns the product of the sizes of the parallel loops before the first reduction loop of `op`."""
    count = 1
    for loop in op.loops:
        if loop.reduction:
            break
        count *= loop.size
    return count


def refine_bounds(bounds: Bounds, op: StructuredOp) -> Bounds | None:
    """Returns `bounds` with the bounds of the loops of `op` added, as far as they are below the last one.

    Returns `None` if a bound does not divide the next one.
    """
    iterations, refined = 1, set(bounds)
    for loop in op.loops:
        if iterations * loop.size >= bounds[-1]:
            break
        iterations *= loop.size
        refined.add(iterations)
    ordered = tuple(sorted(refined))
    return ordered if all(b % a == 0 for a, b in pairwise(ordered)) else None


def split_rows(op: StructuredOp, bounds: Bounds) -> RowOp:
    """Splits the loops of `op`: the outer ones, with `bounds[-1]` iterations, become row loops, the others inner loops.

    Raises `UnsupportedError` if a loop cannot be split there, if a row loop would be a reduction, if an inner loop has
    no stride, or if an operand's offset is not known.
    """
    rows: list[Loop] = []
    inner: list[Loop] = []
    iterations = 1
    for loop in op.loops:
        remaining = loop.size
        for lower, upper in pairwise(bounds):
            # The row loop between two bounds takes a part of this loop if the loops before it end at the lower bound.
            if lower != iterations or remaining == 1:
                continue
            size = upper // lower
            if loop.reduction or remaining % size:
                raise UnsupportedError("its outer loops do not match the rows")
            remaining //= size
            rows.append(replace(loop, size=size, strides=tuple(stride * remaining for stride in loop.strides)))
            iterations = upper
        if remaining > 1:
            inner.append(replace(loop, size=remaining))
    if iterations != bounds[-1]:
        raise UnsupportedError("its outer loops do not match the rows")
    if any(not any(loop.strides) for loop in inner):
        raise UnsupportedError("a loop within a row has no stride in any operand")
    accesses = tuple(_access(op, number, rows, inner) for number in range(len(op.operands)))
    return RowOp(op, tuple(rows), tuple(inner), accesses)


def _access(op: StructuredOp, number: int, rows: Sequence[Loop], inner: Sequence[Loop]) -> OperandAccess:
    """Returns the access of `op` to operand `number`."""
    value = op.operands[number]
    strides = tuple(loop.strides[number] for loop in inner)
    span = 1 + sum(stride * (loop.size - 1) for stride, loop in zip(strides, inner, strict=True))
    buffer, offset = _buffer_and_offset(value)
    row_strides = tuple(loop.strides[number] for loop in rows)
    return OperandAccess(value, buffer, offset, row_strides, strides, span, number >= op.inputs)


def _buffer_and_offset(value: ir.Value) -> tuple[ir.Value, int]:
    """Returns the buffer of `value`, and the offset of `value` in it, in elements.

    Raises `UnsupportedError` if the buffer is a part of an arena, or if the buffer or the offset is not known.
    """
    layout = layout_of(value.type)
    while isinstance(value, ir.OpResult) and value.owner.name in VIEW_OPS:
        if value.owner.name == "memref.view":
            raise UnsupportedError("its buffers already share an arena")
        value = value.owner.operands[0]
    if layout.offset is None or layout_of(value.type).offset != 0 or root_of(value) != value:
        raise UnsupportedError("the offset of an operand in its buffer is not known")
    return value, layout.offset


def row_conflict(left: RowOp, right: RowOp, bounds: Bounds) -> str | None:
    """Returns why `left` and `right` may not be interleaved row by row; `None` if they may."""
    sizes = [b // a for a, b in pairwise(bounds)]
    for a, b in _writing_pairs(left.accesses, right.accesses):
        if a.buffer != b.buffer:
            if not (is_unaliased(a.buffer) or is_unaliased(b.buffer)):
                return "two of their buffers may overlap"
        elif a.overlaps_in_other_rows(b, sizes):
            return "one may access what the other writes in another row"
    return None


def _writing_pairs(
    left: Sequence[OperandAccess], right: Sequence[OperandAccess]
) -> Iterator[tuple[OperandAccess, OperandAccess]]:
    return ((a, b) for a in left for b in right if a.written or b.written)


def row_bytes(op: RowOp) -> int:
    """Returns the bytes of the largest part of a buffer that `op` accesses in one row."""
    return max(access.span * element_bytes(access.value.type.element_type) for access in op.accesses)


# ---- stages ----------------------------------------------------------------------------------------------------------


# Returns the memref of an access, given the sizes of the loops along which it has a stride.
View = Callable[[OperandAccess, Sequence[int]], ir.Value]


@dataclass(frozen=True)
class RowStage:
    """Fused ops, which have the same loops within a row; they become one `linalg.generic`.

    Buffers in `unstored` only pass values between these ops, so that nothing is stored to them.
    """

    ops: tuple[RowOp, ...]
    unstored: frozenset[Any] = frozenset()

    @property
    def sizes(self) -> tuple[int, ...]:
        """Returns the sizes of the loops within a row."""
        return tuple(loop.size for loop in self.ops[0].inner_loops)

    @property
    def reductions(self) -> tuple[bool, ...]:
        """Returns for each loop within a row whether it is a reduction of one of the ops."""
        loops_of_ops = zip(*(op.inner_loops for op in self.ops), strict=True)
        return tuple(any(loop.reduction for loop in same_loops) for same_loops in loops_of_ops)

    def accesses(self, written: bool) -> Iterable[OperandAccess]:
        """Returns the writes of the ops, or their reads."""
        return (access for op in self.ops for access in op.accesses if access.written == written)

    def all_accesses(self) -> list[OperandAccess]:
        return [access for op in self.ops for access in op.accesses]

    def buffers(self, written: bool) -> set[ir.Value]:
        """Returns the buffers that the stage writes, or those that it reads."""
        return {access.buffer for access in self.accesses(written)}


def stages_of(ops: Sequence[RowOp], temporaries: Collection[ir.Value]) -> list[RowStage]:
    """Returns the stages for `ops`, in order.

    An element-wise op joins the later op that reads the same element of its result in the same iteration. A buffer in
    `temporaries` that only one stage of several ops uses is not stored.
    """
    stages = [RowStage((op,)) for op in ops]
    number = 0
    while number < len(stages):
        producer = next((i for i in reversed(range(number)) if _can_fuse(stages, i, number)), None)
        if producer is None:
            number += 1
            continue
        stages[number] = RowStage(stages[producer].ops + stages[number].ops)
        del stages[producer]
        number -= 1
    return [replace(stage, unstored=_private_buffers(stage, stages, temporaries)) for stage in stages]


def _can_fuse(stages: Sequence[RowStage], first: int, second: int) -> bool:
    """True if stage `first` has no reductions and may be fused with stage `second`, which reads its results.

    The stages between them must not access what `first` writes, nor write what it reads.
    """
    producer, consumer = stages[first], stages[second]
    reads, writes = producer.buffers(written=False), producer.buffers(written=True)
    if not producer.sizes or producer.sizes != consumer.sizes or any(producer.reductions):
        return False
    if not writes & consumer.buffers(written=False) or consumer.buffers(written=True) & (reads | writes):
        return False
    write_of = {access.buffer: access for access in producer.accesses(written=True)}
    shared_accesses = [access for access in consumer.all_accesses() if access.buffer in write_of]
    if not all(_accesses_same(access, write_of[access.buffer]) for access in shared_accesses):
        return False
    return not any(
        writes & (middle.buffers(written=False) | middle.buffers(written=True)) or reads & middle.buffers(written=True)
        for middle in stages[first + 1 : second]
    )


def _accesses_same(a: OperandAccess, b: OperandAccess) -> bool:
    """True if both access the same element of the same buffer in each iteration."""
    return (a.buffer, a.offset, a.row_strides, a.inner_strides) == (b.buffer, b.offset, b.row_strides, b.inner_strides)


def _private_buffers(
    stage: RowStage, stages: Sequence[RowStage], temporaries: Collection[ir.Value]
) -> frozenset[ir.Value]:
    """Returns the buffers in `temporaries` that `stage` writes and no other stage uses; none for a stage of one op."""
    if len(stage.ops) == 1:
        return frozenset()
    shared = {access.buffer for other in stages if other is not stage for access in other.all_accesses()}
    return frozenset(buffer for buffer in temporaries if buffer in stage.buffers(written=True) and buffer not in shared)


def emit_stage(e: KernelEmitter, stage: RowStage, row_indices: Sequence[Index], view: View) -> None:
    """Emits a `linalg.generic` on views of the operands, for the row with these indices."""
    inputs, outputs = _operands(stage)
    accesses = (*inputs, *outputs)
    loops = range(len(stage.sizes))
    loops_of_accesses = [[i for i in loops if access.inner_strides[i]] for access in accesses]
    maps = [ir.AffineMap.get(len(loops), 0, [ir.AffineDimExpr.get(i) for i in used]) for used in loops_of_accesses]
    values = [
        view(access, [stage.sizes[i] for i in used]) for access, used in zip(accesses, loops_of_accesses, strict=True)
    ]
    kinds = ["reduction" if is_reduction else "parallel" for is_reduction in stage.reductions]
    generic = linalg.GenericOp(
        [], values[: len(inputs)], values[len(inputs) :],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]),
    )  # fmt: skip
    location = ir.Location.current
    elements = [value.type.element_type for value in values]
    block = generic.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
    with ir.InsertionPoint(block):
        _emit_body(e, stage, row_indices, inputs, outputs, list(block.arguments))


def _operands(stage: RowStage) -> tuple[list[OperandAccess], list[OperandAccess]]:
    """Returns the accesses of a stage that read memory, and those that write memory, without duplicates."""
    inputs: list[OperandAccess] = []
    outputs: list[OperandAccess] = []
    for op in stage.ops:
        for number, access in enumerate(op.accesses):
            previous = outputs if access.written else [*inputs, *_writes_before(stage, op)]
            is_used = access.written or op.structured.reads(number)
            is_duplicate = any(_accesses_same(access, other) for other in previous)
            if is_used and access.buffer not in stage.unstored and not is_duplicate:
                (outputs if access.written else inputs).append(access)
    return inputs, outputs


def _writes_before(stage: RowStage, op: RowOp) -> list[OperandAccess]:
    """Returns the writes of the ops of `stage` that are before `op`."""
    return [access for other in stage.ops[: stage.ops.index(op)] for access in other.accesses if access.written]


def _emit_body(
    e: KernelEmitter,
    stage: RowStage,
    row_indices: Sequence[Index],
    inputs: list[OperandAccess],
    outputs: list[OperandAccess],
    arguments: list[ir.Value],
) -> None:
    """Emits the bodies of the stage's ops one after the other; `arguments` are those of `inputs` and `outputs`."""
    loaded = list(zip(inputs, arguments, strict=False))
    accumulated = list(zip(outputs, arguments[len(inputs) :], strict=True))
    computed: list[tuple[OperandAccess, Any]] = []
    for op in stage.ops:
        values: dict[Any, Any] = dict(op.structured.scalars)
        for access, argument in zip(op.accesses, op.structured.arguments, strict=True):
            if access.written:
                value = _value_of(access, accumulated)
            else:
                value = _value_of(access, computed) or _value_of(access, loaded)
            if value is not None:
                values[argument] = value
        values = clone_ops(
            op.structured.block, values, {dim: _index(e, op, row_indices, dim) for dim in op.structured.indexed}
        )
        yielded = [values.get(scalar, scalar) for scalar in op.structured.yielded]
        computed += list(zip(op.accesses[op.structured.inputs :], yielded, strict=True))
    linalg.yield_([_value_of(access, computed) for access in outputs])


def _value_of(access: OperandAccess, values: Sequence[tuple[OperandAccess, ir.Value]]) -> ir.Value | None:
    """Returns the value in `values` of the element that `access` accesses, or `None`."""
    return next((value for other, value in values if _accesses_same(other, access)), None)


def _index(e: KernelEmitter, op: RowOp, row_indices: Sequence[Index], dim: int) -> ir.Value:
    """Returns the index along `dim` of the iteration space of `op`.

    A dim may be split into row loops and an inner loop; its index is then put together from theirs.
    """
    value: Index = 0
    for index, loop in zip(row_indices, op.row_loops, strict=True):
        if dim in loop.dims:
            value = e.add(e.mul(value, loop.size), index)
    for number, loop in enumerate(op.inner_loops):
        if dim in loop.dims:
            value = e.add(e.mul(value, loop.size), linalg.IndexOp(number).result)
    return e.value(value)


class RowLoop:
    """A loop over chunks of rows around a loop over a chunk's rows; each chunk has separate temporaries.

    The constructor emits the allocations of one row per chunk, which replace the buffers in `replaced`. A chunk has
    rows of the last row loop; `outer` has the sizes of the other row loops.
    """

    def __init__(
        self, e: KernelEmitter, bounds: Bounds, stages: Sequence[RowStage], replaced: Sequence[ir.Value]
    ) -> None:
        self.e, self.stages = e, stages
        *self.outer, self.row_count = [b // a for a, b in pairwise(bounds)]
        self.rows_per_chunk = rows_in_chunk(self.row_count, max(row_bytes(op) for stage in stages for op in stage.ops))
        self.loop_sizes = [*self.outer, ceil_div(self.row_count, self.rows_per_chunk)]
        self.scratch = {buffer: self._allocate_row(buffer) for buffer in replaced}

    def _allocate_row(self, buffer: ir.Value) -> tuple[ir.Value, int, int]:
        """Allocates one row of the temporary `buffer` for each chunk.

        Returns the new buffer, the distance in elements between the rows of two chunks, and the offset in `buffer` of
        the first element that a row accesses.
        """
        accesses = [access for stage in self.stages for access in stage.all_accesses() if access.buffer == buffer]
        start = min(access.offset for access in accesses)
        extent = max(access.offset + access.span for access in accesses) - start
        element = buffer.type.element_type
        line = max(1, CACHE_LINE // element_bytes(element))
        pitch = round_up(extent, line)
        alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), CACHE_LINE)
        type_ = ir.MemRefType.get([math.prod(self.loop_sizes) * pitch], element)
        return memref.alloc(type_, [], [], alignment=alignment), pitch, start

    def emit(self, locations: Sequence[ir.Location]) -> None:
        """Emits the loops; `locations` has the location of each stage."""
        e = self.e

        def emit_chunk(indices: list[Index]) -> None:
            *outer, last = indices
            chunk_number: Index = 0  # counted over all loops
            for size, index in zip(self.loop_sizes, indices, strict=True):
                chunk_number = e.add(e.mul(chunk_number, size), index)
            for_chunk(
                e, last, self.rows_per_chunk, self.row_count,
                lambda row: self._emit_row([*outer, row], chunk_number, locations),
            )  # fmt: skip

        e.parallel(self.loop_sizes, emit_chunk, self._estimated_time())

    def _estimated_time(self) -> float:
        """Returns a rough time of all rows on one thread in nanoseconds."""
        ops = [op for stage in self.stages for op in stage.ops]
        rows = self.row_count * math.prod(self.outer)
        flop = sum(len(op.structured.block.operations) * math.prod(loop.size for loop in op.inner_loops) for op in ops)
        return estimate_nanoseconds(rows * flop, rows * sum(row_bytes(op) for op in ops))

    def _emit_row(self, row_indices: list[Index], chunk_number: Index, locations: Sequence[ir.Location]) -> None:
        """Emits all stages for one row."""
        views: dict[Hashable, ir.Value] = {}

        def view(access: OperandAccess, sizes: Sequence[int]) -> ir.Value:
            key = (access.buffer, access.offset, access.row_strides, access.inner_strides, *sizes)
            if key not in views:
                views[key] = self._view(access, sizes, row_indices, chunk_number)
            return views[key]

        for stage, location in zip(self.stages, locations, strict=True):
            with location:
                emit_stage(self.e, stage, row_indices, view)

    def _view(
        self, access: OperandAccess, sizes: Sequence[int], row_indices: list[Index], chunk_number: Index
    ) -> ir.Value:
        """Emits a view of the elements that `access` accesses in one row, with a dim per loop that has a stride."""
        e, buffer = self.e, access.buffer
        if buffer in self.scratch:
            buffer, pitch, start = self.scratch[buffer]
            offset = e.add(e.mul(chunk_number, pitch), access.offset - start)
        else:
            offset = e.dot(row_indices, access.row_strides, access.offset)
        strides = [stride for stride in access.inner_strides if stride]
        layout = f"strided<[{', '.join(map(str, strides))}], offset: ?>"
        shape = "".join(f"{size}x" for size in sizes)
        type_ = ir.Type.parse(f"memref<{shape}{buffer.type.element_type}, {layout}>")
        dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
        return memref.reinterpret_cast(type_, buffer, [e.value(offset)], [], [], [dynamic], sizes, strides)
