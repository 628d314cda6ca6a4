"""`tile-dynamic`: tiles ops on buffers of dynamic size to loops around ops of static size.

Later passes (kernels, vectorization, packed weights) then apply as they do to programs with static shapes. Ops of
static size are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeVar

from buddy.compiler.mlir.bindings import arith, ir, linalg, memref, scf
from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.contraction import NAMED_CONTRACTIONS, is_contraction
from buddy.compiler.passes.kernels.emit import Index
from buddy.compiler.passes.kernels.structured import STRUCTURED_OPS
from buddy.compiler.passes.kernels.tiles import (
    DynamicLoop,
    buffers_of,
    constant,
    dynamic_loops_of,
    has_window,
    is_dynamic,
    size_of,
    subview,
    tile,
)

# Steps of the loops that a dynamic loop becomes, one after the other: several vectors, one vector, one element.
_VECTOR_STEPS = (64, 8, 1)
# If the static loops give a tile fewer elements than this, some vectors, one dynamic loop has the steps in
# _VECTOR_STEPS.
_MIN_TILE_ELEMENTS = 32
# Rows of a contraction per block, in loops one after the other. The first have enough rows to read the other input from
# memory once for many multiply-adds; each loop leaves fewer rows than its step to the next one.
_BLOCK_ROWS = (128, 32, 8)
# Size of a tile along each dynamic loop of a contraction with several dynamic sizes, an estimate: three tiles of f32
# take 48 KiB, and larger ones are padded more.
_TILE_SIZE = 64

_Size = TypeVar("_Size", int, Index)  # `int` where all sizes are static, otherwise `Index`


@register
@dataclass(frozen=True)
class TileDynamic(MlirPass):
    """Tiles ops on views of their operands; contractions with several dynamic sizes on copies of tiles."""

    name: ClassVar[str] = "tile-dynamic"
    summary: ClassVar[str] = "tile ops on buffers with ? dims to loops around ops of static size"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in [op for op in nested_ops(root) if op.name == "memref.copy" and is_dynamic(op)]:
            with ir.InsertionPoint(op), op.location:
                linalg.copy(op.operands[0], outs=[op.operands[1]])
            op.erase()
        pending = [
            op
            for op in nested_ops(root)
            if op.name in STRUCTURED_OPS | NAMED_CONTRACTIONS and not len(op.results) and is_dynamic(op)
        ]
        while pending:
            op = pending.pop(0)
            with ir.InsertionPoint(op), op.location:
                marker = constant(0).owner.operation  # is before all ops that `_tile_op` emits
                try:
                    new_ops, text = _tile_op(op)
                except UnsupportedError as reason:
                    _erase_range(marker, op)
                    context.remark(self.name, op.location, f"{op.name} left to scalar loops: {reason}")
                    continue
            marker.erase()
            context.remark(self.name, op.location, f"{op.name}: {text}")
            pending += new_ops
            op.erase()


def _erase_range(first: ir.Operation, end: ir.Operation) -> None:
    """Erases the ops from `first` up to `end`, which were emitted before the op turned out to be unsupported."""
    ops = [op.operation for op in end.block.operations]
    for op in reversed(ops[ops.index(first) : ops.index(end.operation)]):
        op.erase()


def _tile_op(op: ir.Operation) -> tuple[list[ir.Operation], str]:
    """Emits `op` in tiles; returns the new ops that may have dynamic sizes, and the text of the remark."""
    loops = dynamic_loops_of(op)
    if op.name not in NAMED_CONTRACTIONS and not is_contraction(op):
        return _PlainTiling(op, loops).emit()
    return _ContractionTiling(op, loops).emit()


class _Tiling:
    """Emits loops over tiles of `op`. The constructor emits the computation of the number of iterations of each loop.

    The methods describe a tile by `starts` and `sizes`, which have one entry per loop of `op`: the first iteration, and
    the number of iterations.
    """

    def __init__(self, op: ir.Operation, loops: list[DynamicLoop]) -> None:
        self.op, self.loops, self.buffers = op, loops, buffers_of(op)
        self.sizes = [size_of(op, loop) if loop.size is None else loop.size for loop in loops]

    def operand_starts(self, number: int, starts: Sequence[Index]) -> list[Index]:
        """Returns the offset in each dim of operand `number` for a tile at `starts`."""
        return self._values_of_dims(number, starts, [0] * len(self.buffers[number].type.shape))

    def operand_sizes(self, number: int, sizes: Sequence[_Size]) -> list[_Size]:
        """Returns the size of each dim of operand `number` in a tile of `sizes`."""
        return self._values_of_dims(number, sizes, list(self.buffers[number].type.shape))

    def _values_of_dims(self, number: int, loop_values: Sequence[_Size], defaults: list[_Size]) -> list[_Size]:
        """Returns for each dim of operand `number` the value of its loop, or its default if no loop indexes it."""
        values = list(defaults)
        for value, loop in zip(loop_values, self.loops, strict=True):
            for operand, dim in loop.uses:
                if operand == number:
                    values[dim] = value
        return values

    def tile_of(self, number: int, starts: Sequence[Index], sizes: Sequence[int]) -> ir.Value:
        """Returns a view of operand `number` for a tile at `starts` of `sizes`."""
        return tile(self.buffers[number], self.operand_starts(number, starts), self.operand_sizes(number, sizes))

    def emit_on_views(self, starts: Sequence[Index], sizes: Sequence[int]) -> None:
        """Emits `op` on views of its operands, for a tile at `starts` of `sizes`."""
        self.clone([self.tile_of(number, starts, sizes) for number in range(len(self.buffers))], starts)

    def clone(self, operands: Sequence[ir.Value], starts: Sequence[Index]) -> ir.Operation:
        """Clones `op` on other buffers, with `linalg.index` shifted by the tile's start."""
        clone = self.op.clone().operation
        numbers = [i for i, value in enumerate(self.op.operands) if isinstance(value.type, ir.MemRefType)]
        for i, operand in zip(numbers, operands, strict=True):
            clone.operands[i] = operand
        for inner in [inner.operation for inner in clone.regions[0].blocks[0].operations]:
            if inner.name == "linalg.index":
                _shift_index(inner, starts[int(ir.IntegerAttr(inner.attributes["dim"]).value)])
        return clone


def _shift_index(index: ir.Operation, start: Index) -> None:
    """Adds `start` to the result of a `linalg.index`."""
    if isinstance(start, int) and start == 0:
        return
    result = index.results[0]
    with ir.InsertionPoint.after(index), index.location:
        total = arith.addi(result, constant(start) if isinstance(start, int) else start)
    result.replace_all_uses_except(total, total.owner.operation)


class _PlainTiling(_Tiling):
    """Tiles an op that is not a contraction: one element along each dynamic loop, or vectors along one of them."""

    def emit(self) -> tuple[list[ir.Operation], str]:
        """Emits the op in tiles; returns the ops and the text that `_tile_op` returns."""
        untiled = [not _must_tile(loop) for loop in self.loops]
        vector_loop = self._choose_vector_loop(untiled)
        starts: list[Index] = [0] * len(self.loops)
        sizes = [1 if loop.size is None or _must_tile(loop) else loop.size for loop in self.loops]

        def emit_loop(loop: int) -> None:
            if loop == len(self.loops):
                self.emit_on_views(starts, sizes)
            elif untiled[loop]:
                emit_loop(loop + 1)
            else:
                for first, end, step in _blocks(self.sizes[loop], _VECTOR_STEPS if loop == vector_loop else (1,)):
                    with _Loop(first, end, step) as index:
                        starts[loop], sizes[loop] = index, step
                        emit_loop(loop + 1)

        emit_loop(0)
        shape = "x".join(str(_VECTOR_STEPS[0] if i == vector_loop else size) for i, size in enumerate(sizes))
        return [], f"loops around tiles of {shape}"

    def _choose_vector_loop(self, untiled: list[bool]) -> int | None:
        """Returns the number of the loop to process in vectors, or `None`.

        No loop is processed in vectors if a tile has enough elements anyway, or if no loop is suitable.
        """
        elements = 1
        for loop, is_untiled in zip(self.loops, untiled, strict=True):
            elements *= loop.size if is_untiled and loop.size is not None else 1
        if elements >= _MIN_TILE_ELEMENTS:
            return None
        suitable = [i for i, loop in enumerate(self.loops) if not untiled[i] and loop.static_strides and loop.uses]
        return max(suitable, key=lambda i: (self._count_contiguous(i), i), default=None)

    def _count_contiguous(self, loop: int) -> int:
        """Returns the number of operands that are contiguous along loop number `loop`."""
        uses = self.loops[loop].uses
        return sum(dim == len(self.buffers[number].type.shape) - 1 for number, dim in uses)


class _ContractionTiling(_Tiling):
    """Tiles a contraction, whose operands 0 and 1 are the inputs, and whose operand 2 is the result.

    Dynamic batch dims, and images of a convolution, are processed one at a time; other dynamic dims in blocks.
    """

    def emit(self) -> tuple[list[ir.Operation], str]:
        """Emits the op in tiles; returns the ops and the text that `_tile_op` returns."""
        tiled = [i for i, loop in enumerate(self.loops) if _must_tile(loop)]
        # A loop that indexes all three operands is a batch. The loops of a convolution are not blocked: one image is
        # enough work for a kernel, and the padding of a block of images would be computed too.
        blocked = [] if has_window(self.op) else [i for i in tiled if len(self._operands_of(i)) < 3]
        starts: list[Index] = [0] * len(self.loops)
        sizes = [1 if loop.size is None or _must_tile(loop) else loop.size for loop in self.loops]
        new_ops: list[ir.Operation] = []

        def emit_batches(batch_loops: list[int]) -> None:
            if batch_loops:
                for first, end, step in _blocks(self.sizes[batch_loops[0]], (1,)):
                    with _Loop(first, end, step) as index:
                        starts[batch_loops[0]] = index
                        emit_batches(batch_loops[1:])
            elif not blocked:
                self.emit_on_views(starts, sizes)
            elif self._is_blocked_by_rows(blocked):
                self._emit_row_blocks(blocked[0], starts, sizes, new_ops)
            else:
                self._emit_copied_tiles(blocked, starts, sizes, new_ops)

        emit_batches([i for i in tiled if i not in blocked])
        if not blocked:
            return new_ops, "one at a time"
        return new_ops, "rows in blocks" if self._is_blocked_by_rows(blocked) else "tiles in separate buffers"

    def _operands_of(self, loop: int) -> set[int]:
        """Returns the numbers of the operands that loop number `loop` indexes."""
        return {number for number, _ in self.loops[loop].uses}

    def _is_blocked_by_rows(self, blocked: list[int]) -> bool:
        """True if only one loop is blocked, it is not a reduction, and its operands have static strides along it."""
        return len(blocked) == 1 and self.loops[blocked[0]].static_strides and 2 in self._operands_of(blocked[0])

    # ---- one dynamic size --------------------------------------------------------------------------------------------

    def _emit_row_blocks(self, loop: int, starts: list[Index], sizes: list[int], new_ops: list[ir.Operation]) -> None:
        """Emits blocks of rows on views of the operands, and the last rows, fewer than a block, on padded copies.

        Sets the entries of `starts` and `sizes` for `loop`, and adds the copies to `new_ops`.
        """
        size = self.sizes[loop]
        assert not isinstance(size, int)
        first: ir.Value = constant(0)
        for rows in _BLOCK_ROWS:
            end = arith.muli(arith.divui(size, constant(rows)), constant(rows))
            with _Loop(first, end, rows) as index:
                starts[loop], sizes[loop] = index, rows
                self.emit_on_views(starts, sizes)
            first = end
        last_block = _BLOCK_ROWS[-1]
        with _Loop(first, size, last_block) as index:
            starts[loop] = index
            padded = [last_block if i == loop else n for i, n in enumerate(sizes)]
            valid: list[Index] = [arith.subi(size, index) if i == loop else n for i, n in enumerate(sizes)]
            operands = [
                self._copy_tile(number, starts, valid, padded, new_ops)
                if number in self._operands_of(loop)
                else self.tile_of(number, starts, padded)
                for number in range(len(self.buffers))
            ]
            self.clone(operands, starts)
            new_ops.append(self._write_back(operands[2], starts, valid))

    # ---- several dynamic sizes ---------------------------------------------------------------------------------------

    def _emit_copied_tiles(
        self, blocked: list[int], starts: list[Index], sizes: list[int], new_ops: list[ir.Operation]
    ) -> None:
        """Emits one tile of the result at a time, in a buffer, and adds the products of tiles of the inputs to it.

        Tiles are parts of the `blocked` loops. Sets their entries of `starts`, and adds the copies to `new_ops`.
        """
        reductions = [i for i in blocked if 2 not in self._operands_of(i)]
        padded = [_TILE_SIZE if i in blocked else n for i, n in enumerate(sizes)]
        valid: list[Index] = list(sizes)

        def emit_loops(loops: list[int], emit_body: Callable[[], None]) -> None:
            if not loops:
                emit_body()
                return
            loop = loops[0]
            size = self.sizes[loop]
            size = constant(size) if isinstance(size, int) else size
            with _Loop(constant(0), size, _TILE_SIZE) as index:
                starts[loop], valid[loop] = index, arith.minui(arith.subi(size, index), constant(_TILE_SIZE))
                emit_loops(loops[1:], emit_body)

        def emit_result_tile() -> None:
            result = self._copy_tile(2, starts, valid, padded, new_ops)

            def emit_products() -> None:
                inputs = [
                    self._copy_tile(number, starts, valid, padded, new_ops, zero_padding=bool(reductions))
                    for number in (0, 1)
                ]
                self.clone([*inputs, result], starts)

            emit_loops(reductions, emit_products)
            new_ops.append(self._write_back(result, starts, valid))

        emit_loops([i for i in blocked if i not in reductions], emit_result_tile)

    # ---- tiles in separate buffers -----------------------------------------------------------------------------------

    def _copy_tile(
        self, number: int, starts: list[Index], valid: list[Index], padded: list[int], new_ops: list[ir.Operation],
        zero_padding: bool = False,
    ) -> ir.Value:  # fmt: skip
        """Returns a buffer of the size `padded` with the part `valid` of a tile of operand `number`.

        The padding is undefined unless `zero_padding`. The copy is added to `new_ops`.
        """
        value = self.buffers[number]
        shape = self.operand_sizes(number, padded)
        alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
        buffer = memref.alloc(ir.MemRefType.get(shape, value.type.element_type), [], [], alignment=alignment)
        if zero_padding:
            zero = arith.constant(value.type.element_type, 0.0 if _is_float(value.type.element_type) else 0)
            linalg.fill(zero, outs=[buffer])
        valid_sizes = self.operand_sizes(number, valid)
        source = subview(value, self.operand_starts(number, starts), valid_sizes)
        target = subview(buffer, [0] * len(shape), valid_sizes)
        linalg.copy(source, outs=[target])
        new_ops.append(_only_user(target))
        return buffer

    def _write_back(self, buffer: ir.Value, starts: list[Index], valid: list[Index]) -> ir.Operation:
        """Emits a copy of the valid part of `buffer`, a tile of the result, to the result; returns the op."""
        valid_sizes = self.operand_sizes(2, valid)
        target = subview(self.buffers[2], self.operand_starts(2, starts), valid_sizes)
        linalg.copy(subview(buffer, [0] * len(valid_sizes), valid_sizes), outs=[target])
        return _only_user(target)


def _must_tile(loop: DynamicLoop) -> bool:
    """True if a tile of static sizes and strides cannot have all iterations of `loop`."""
    return loop.size is None or not (loop.static_strides or loop.size == 1)


def _is_float(element: ir.Type) -> bool:
    return isinstance(element, ir.FloatType)


def _only_user(view: ir.Value) -> ir.Operation:
    """Returns the only op that uses `view`."""
    (use,) = view.uses
    return use.owner.operation


def _blocks(size: Index, steps: Sequence[int]) -> Iterator[tuple[ir.Value, ir.Value, int]]:
    """Yields (first, end, step) of consecutive loops over `size` iterations, one for each of `steps`.

    Each loop covers as many of the remaining iterations as its step divides; the last step is 1.
    """
    if isinstance(size, int):
        size = constant(size)
    first = constant(0)
    for step in steps:
        end = size if step == 1 else arith.muli(arith.divui(size, constant(step)), constant(step))
        yield first, end, step
        first = end


class _Loop:
    """Emits `scf.for` around the ops that the `with` block emits; `as` binds its induction variable."""

    def __init__(self, first: ir.Value, end: ir.Value, step: int) -> None:
        self._op = scf.ForOp(first, end, constant(step), [])

    def __enter__(self) -> ir.Value:
        self._point = ir.InsertionPoint(self._op.body)
        self._point.__enter__()
        index: ir.Value = self._op.induction_variable
        return index

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            scf.yield_([])
        self._point.__exit__(*error)
