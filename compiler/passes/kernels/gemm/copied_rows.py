"""Copies A before it is multiplied: to rows that are contiguous along K, and to wider elements."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.passes.kernels.access import Loop, row_major_strides
from buddy.compiler.passes.kernels.contraction import Contraction, byte_width
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, estimate_nanoseconds, round_up
from buddy.compiler.passes.kernels.matrix_copies import PanelCopy
from buddy.compiler.support.target import CACHE_LINE

# Rows, and vectors of each row, in a block of A that one iteration copies: enough work, and enough blocks for threads.
_ROWS, _VECTORS = 32, 8


def copy_rows(
    e: KernelEmitter, a: ir.Value, contraction: Contraction, lanes: int, element: ir.Type, rows: int, multiple: int,
    convert: Callable[[ir.Value], ir.Value],
) -> tuple[ir.Value, Contraction]:  # fmt: skip
    """Emits a copy of the flat memref `a`, the operand A of `contraction`, which has one loop over K.

    The copy has elements of type `element`, to which `convert` converts scalars and vectors of A. It has `rows` rows
    for each iteration of the outer loops, of which those that A lacks are zeros. Zeros fill up each row to a `multiple`
    of elements. Returns the copy, which the caller frees, and the contraction that reads it instead of A.
    """
    c, (k,) = contraction, contraction.k
    outer = [loop for loop in c.outer if loop.used[0]]
    row_elements = round_up(k.size, multiple)
    strides = row_major_strides([loop.size for loop in outer], rows * row_elements)
    size = math.prod(loop.size for loop in outer) * rows * row_elements
    target = memref.alloc(ir.MemRefType.get([size], element), [], [], alignment=CACHE_LINE)
    sizes = [*(loop.size for loop in outer), c.m.size, k.size]
    blocks = [*(1 for _ in outer), _ROWS, round_up(_VECTORS * lanes, multiple)]

    def copy_block(numbers: list[Index], active: list[int]) -> None:
        *outer_numbers, row_block, k_block = numbers
        *_, active_rows, active_steps = active
        indices = [*outer_numbers, e.mul(row_block, blocks[-2]), e.mul(k_block, blocks[-1])]
        start = e.dot(indices, [loop.strides[0] for loop in (*outer, c.m, k)])
        target_start = e.dot(indices, [*strides, row_elements, 1])
        width = round_up(active_steps, multiple)
        copier = PanelCopy(
            e, a, c.m.strides[0], k.strides[0], target, row_elements, width, lanes, convert=convert
        )  # fmt: skip
        copier.copy(start, target_start, 0, active_rows, active_steps)

    moved_bytes = size * (byte_width(c.input_elements[0]) + element.width // 8)
    e.parallel_blocks(sizes, blocks, copy_block, estimate_nanoseconds(moved=moved_bytes))
    if rows > c.m.size:
        _fill_rows(e, target, lanes, outer, strides, c.m.size * row_elements, rows * row_elements)
    copied_strides = iter(strides)
    new_outer = tuple(_copied(loop, next(copied_strides) if loop.used[0] else 0) for loop in c.outer)
    return target, replace(c, outer=new_outer, m=_copied(c.m, row_elements), k=(_copied(k, 1),))


def _copied(loop: Loop, stride: int) -> Loop:
    """Returns `loop` with `stride` as its stride of A."""
    return replace(loop, strides=(stride, *loop.strides[1:]))


def _fill_rows(
    e: KernelEmitter, target: ir.Value, lanes: int, outer: Sequence[Loop], strides: Sequence[int], first: int, last: int
) -> None:
    """Stores zeros from offset `first` to `last`, for each iteration of the outer loops; `lanes` divides both."""
    zero = e.zero(ir.VectorType.get([lanes], target.type.element_type))

    def fill(indices: list[Index]) -> None:
        start = e.dot(indices, strides)

        def store(offset: Index) -> None:
            e.store(zero, target, offset)

        e.for_each(e.add(start, first), e.add(start, last), lanes, store)

    e.nest([loop.size for loop in outer], fill)
