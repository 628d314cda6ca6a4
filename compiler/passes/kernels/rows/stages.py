"""Stages of a row: ops with the same loops within a row are fused, and executed by one loop over rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from buddy.compiler.mlir.bindings import ir, linalg, memref
from buddy.compiler.mlir.walk import element_bytes
from buddy.compiler.passes.kernels.body import clone_ops
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, nanoseconds
from buddy.compiler.passes.kernels.rows.kernel import Bounds, OperandAccess, RowOp, row_bytes
from buddy.compiler.passes.kernels.structured import for_chunk, rows_in_chunk
from buddy.compiler.support.target import CACHE_LINE

# Returns the memref of an access, given the sizes of the loops along which it moves.
View = Callable[[OperandAccess, Sequence[int]], Any]


@dataclass(frozen=True)
class RowStage:
    """Ops with the same loops within a row, fused; `unstored` are buffers that need not be stored."""

    ops: tuple[RowOp, ...]
    unstored: frozenset[Any] = frozenset()

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(loop.size for loop in self.ops[0].inner)

    @property
    def reductions(self) -> tuple[bool, ...]:
        return tuple(
            any(kinds) for kinds in zip(*([loop.reduction for loop in op.inner] for op in self.ops), strict=True)
        )

    def accesses(self, written: bool) -> Iterable[OperandAccess]:
        return (access for op in self.ops for access in op.accesses if access.written == written)

    def roots(self, written: bool) -> set[Any]:
        return {access.root for access in self.accesses(written)}


def stages_of(ops: Sequence[RowOp], temporary: Iterable[Any]) -> list[RowStage]:
    """Returns the stages for `ops` in order: an element-wise op joins the op that reads its result in the same order.

    A `temporary` buffer that only one stage uses is not stored.
    """
    stages = [RowStage((op,)) for op in ops]
    number = 0
    while number < len(stages):
        before = next((i for i in reversed(range(number)) if _can_fuse(stages, i, number)), None)
        if before is None:
            number += 1
            continue
        stages[number] = RowStage(stages[before].ops + stages[number].ops)
        del stages[before]
        number -= 1
    return [replace(stage, unstored=_private_buffers(stage, stages, temporary)) for stage in stages]


def _can_fuse(stages: Sequence[RowStage], first: int, second: int) -> bool:
    """True if stage `first` may be fused with stage `second`, which reads what it writes."""
    a, b = stages[first], stages[second]
    if not a.sizes or a.sizes != b.sizes or any(a.reductions) or not a.roots(True) & b.roots(False):
        return False
    made = {access.root: access for access in a.accesses(True)}
    if any(access.root in made and not _same_place(access, made[access.root]) for access in _all(b)):
        return False
    if b.roots(True) & (a.roots(False) | a.roots(True)):
        return False
    return not any(
        a.roots(True) & (middle.roots(False) | middle.roots(True)) or a.roots(False) & middle.roots(True)
        for middle in stages[first + 1 : second]
    )


def _all(stage: RowStage) -> list[OperandAccess]:
    return [access for op in stage.ops for access in op.accesses]


def _same_place(a: OperandAccess, b: OperandAccess) -> bool:
    return (a.root, a.offset, a.rows, a.inner) == (b.root, b.offset, b.rows, b.inner)


def _private_buffers(stage: RowStage, stages: Sequence[RowStage], temporary: Iterable[Any]) -> frozenset[Any]:
    """Returns the temporary buffers that are written and read within `stage` and used by no other stage."""
    if len(stage.ops) == 1:
        return frozenset()
    others = {access.root for other in stages if other is not stage for access in _all(other)}
    return frozenset(root for root in temporary if root in stage.roots(True) and root not in others)


def emit_stage(e: KernelEmitter, stage: RowStage, rows: Sequence[Index], view: View) -> None:
    """Emits a `linalg.generic` on the memrefs of one row, for the row with indices `rows`."""
    inputs, outputs = _operands(stage)
    loops = range(len(stage.sizes))
    moving = [[i for i in loops if access.inner[i]] for access in (*inputs, *outputs)]
    maps = [ir.AffineMap.get(len(loops), 0, [ir.AffineDimExpr.get(i) for i in dims]) for dims in moving]
    values = [
        view(access, [stage.sizes[i] for i in dims]) for access, dims in zip((*inputs, *outputs), moving, strict=True)
    ]
    kinds = ["reduction" if reduction else "parallel" for reduction in stage.reductions]
    generic = linalg.GenericOp(
        [], values[: len(inputs)], values[len(inputs) :],
        ir.ArrayAttr.get([ir.AffineMapAttr.get(map_) for map_ in maps]),
        ir.ArrayAttr.get([ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]),
    )  # fmt: skip
    location = ir.Location.current
    elements = [value.type.element_type for value in values]
    block = generic.regions[0].blocks.append(*elements, arg_locs=[location] * len(elements))
    with ir.InsertionPoint(block):
        _emit_body(e, stage, rows, inputs, outputs, list(block.arguments))


def _operands(stage: RowStage) -> tuple[list[OperandAccess], list[OperandAccess]]:
    """Returns the accesses of a stage that read memory, and those that write, without duplicates."""
    inputs: list[OperandAccess] = []
    outputs: list[OperandAccess] = []
    for op in stage.ops:
        for number, access in enumerate(op.accesses):
            known = outputs if access.written else [*inputs, *_written_before(stage, op)]
            used = access.written or op.op.reads(number)
            if used and access.root not in stage.unstored and not any(_same_place(access, k) for k in known):
                (outputs if access.written else inputs).append(access)
    return inputs, outputs


def _written_before(stage: RowStage, op: RowOp) -> list[OperandAccess]:
    return [access for other in stage.ops[: stage.ops.index(op)] for access in other.accesses if access.written]


def _emit_body(
    e: KernelEmitter,
    stage: RowStage,
    rows: Sequence[Index],
    inputs: list[OperandAccess],
    outputs: list[OperandAccess],
    arguments: list[Any],
) -> None:
    read = list(zip(inputs, arguments, strict=False))
    accumulated = list(zip(outputs, arguments[len(inputs) :], strict=True))
    made: list[tuple[OperandAccess, Any]] = []
    for op in stage.ops:
        known: dict[Any, Any] = dict(op.op.scalars)
        for access, argument in zip(op.accesses, op.op.arguments, strict=True):
            value = _at(access, accumulated) if access.written else _at(access, made) or _at(access, read)
            if value is not None:
                known[argument] = value
        known = clone_ops(op.op.block, known, {dim: _index(e, op, rows, dim) for dim in op.op.indexed})
        yielded = [known.get(scalar, scalar) for scalar in op.op.yielded]
        made += list(zip(op.accesses[op.op.inputs :], yielded, strict=True))
    linalg.yield_([_at(access, made) for access in outputs])


def _at(place: OperandAccess, found: Sequence[tuple[OperandAccess, Any]]) -> Any | None:
    return next((value for access, value in found if _same_place(access, place)), None)


def _index(e: KernelEmitter, op: RowOp, rows: Sequence[Index], dim: int) -> Any:
    """Returns the index along a dim of the op's own iteration space, which rows and a loop within a row may share."""
    value: Index = 0
    for index, loop in zip(rows, op.row_loops, strict=True):
        if dim in loop.dims:
            value = e.add(e.mul(value, loop.size), index)
    for number, loop in enumerate(op.inner):
        if dim in loop.dims:
            value = e.add(e.mul(value, loop.size), linalg.IndexOp(number).result)
    return e.value(value)


class RowLoop:
    """A loop over chunks of rows around a loop over a chunk's rows; each chunk has its own temporaries."""

    def __init__(self, e: KernelEmitter, bounds: Bounds, stages: Sequence[RowStage], scratch: Sequence[Any]) -> None:
        self.e, self.stages = e, stages
        *self.outer, self.rows = [b // a for a, b in pairwise(bounds)]
        self.chunk = rows_in_chunk(self.rows, max(row_bytes(op) for stage in stages for op in stage.ops))
        self.chunks = [*self.outer, -(-self.rows // self.chunk)]
        self.scratch = {root: self._allocate_row(root) for root in scratch}

    def _allocate_row(self, root: Any) -> tuple[Any, int, int]:
        """Allocates a row of `root` per chunk.

        Returns the buffer, the distance of chunks, the first element of a row.
        """
        found = [access for stage in self.stages for op in stage.ops for access in op.accesses if access.root == root]
        start = min(access.offset for access in found)
        extent = max(access.offset + access.span for access in found) - start
        element = root.type.element_type
        line = max(1, CACHE_LINE // element_bytes(element))
        pitch = -(-extent // line) * line
        alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), CACHE_LINE)
        return (
            memref.alloc(ir.MemRefType.get([math.prod(self.chunks) * pitch], element), [], [], alignment=alignment),
            pitch,
            start,
        )

    def emit(self, locations: Sequence[Any]) -> None:
        e = self.e

        def chunk(indices: list[Index]) -> None:
            *outer, number = indices
            place: Index = 0
            for size, index in zip(self.chunks, indices, strict=True):
                place = e.add(e.mul(place, size), index)
            for_chunk(e, number, self.chunk, self.rows, lambda row: self._row([*outer, row], place, locations))

        e.parallel(self.chunks, chunk, self._work())

    def _work(self) -> float:
        """Returns a rough time of all rows on one thread in nanoseconds."""
        ops = [op for stage in self.stages for op in stage.ops]
        rows = self.rows * math.prod(self.outer)
        flop = sum(len(op.op.block.operations) * math.prod(loop.size for loop in op.inner) for op in ops)
        return nanoseconds(rows * flop, rows * sum(row_bytes(op) for op in ops))

    def _row(self, indices: list[Index], chunk: Index, locations: Sequence[Any]) -> None:
        views: dict[Any, Any] = {}

        def view(access: OperandAccess, sizes: Sequence[int]) -> Any:
            key = (access.root, access.offset, access.rows, access.inner, *sizes)
            if key not in views:
                views[key] = self._view(access, sizes, indices, chunk)
            return views[key]

        for stage, location in zip(self.stages, locations, strict=True):
            with location:
                emit_stage(self.e, stage, indices, view)

    def _view(self, access: OperandAccess, sizes: Sequence[int], indices: list[Index], chunk: Index) -> Any:
        """Returns the memref of an access in one row: a dim per loop with a stride."""
        e, base = self.e, access.root
        if base in self.scratch:
            base, pitch, start = self.scratch[base]
            offset = e.add(e.mul(chunk, pitch), access.offset - start)
        else:
            offset = e.dot(indices, access.rows, access.offset)
        strides = [stride for stride in access.inner if stride]
        mark = f"strided<[{', '.join(map(str, strides))}], offset: ?>"
        shape = "".join(f"{size}x" for size in sizes)
        type_ = ir.Type.parse(f"memref<{shape}{base.type.element_type}, {mark}>")
        dynamic = ir.ShapedType.get_dynamic_stride_or_offset()
        return memref.reinterpret_cast(type_, base, [e.value(offset)], [], [], [dynamic], sizes, strides)
