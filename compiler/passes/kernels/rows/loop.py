"""Emits the loop over rows that executes the stages of each row."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.mlir.memory import element_bytes
from buddy.compiler.passes.kernels.chunks import for_chunk, rows_in_chunk
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, nanoseconds
from buddy.compiler.passes.kernels.rows.kernel import Bounds, OperandAccess, row_bytes
from buddy.compiler.passes.kernels.rows.stages import RowStage, emit_stage
from buddy.compiler.support.target import CACHE_LINE


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
