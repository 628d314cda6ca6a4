"""`tile-dynamic`: tiles ops on buffers of dynamic size to loops around ops of static size.

Later passes (kernels, vectors, packed weights) then apply as to static programs. Ops of static size are unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import arith, ir, linalg, memref, scf
from buddy.compiler.mlir.walk import collect
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.contraction import NAMED, is_contraction
from buddy.compiler.passes.kernels.structured import KINDS
from buddy.compiler.passes.kernels.tiles import (
    DynamicLoop,
    Index,
    buffers_of,
    constant,
    is_dynamic,
    loops_of,
    part,
    size_of,
    slides,
    tile,
)

# Iterations of one loop per step: vectors, a remainder of one vector each, single elements.
VECTORS = (64, 8, 1)
# With fewer elements per tile, one loop has the steps in VECTORS.
FEW = 32
# Rows of a product per step: enough to read the other factor from memory once for many multiply-adds.
ROWS = 128
# Rows of the last blocks, which are copied to padded buffers: few, since all are computed.
LAST_ROWS = 32
# Columns and steps of a product with several dynamic sizes.
SQUARE = 64


@register
@dataclass(frozen=True)
class TileDynamic(MlirPass):
    """Products with one dynamic size keep their operands; those with more use buffers of a tile."""

    name: ClassVar[str] = "tile-dynamic"
    summary: ClassVar[str] = "tile ops on buffers with ? dims to loops around ops of static size"

    def run(self, root: Any, context: PassContext) -> None:
        for op in [op for op in collect(root) if op.name == "memref.copy" and is_dynamic(op)]:
            with ir.InsertionPoint(op), op.location:
                linalg.copy(op.operands[0], outs=[op.operands[1]])
            op.erase()
        waiting = [op for op in collect(root) if op.name in KINDS | NAMED and not len(op.results) and is_dynamic(op)]
        while waiting:
            op = waiting.pop(0)
            with ir.InsertionPoint(op), op.location:
                before = constant(0).owner.operation
                try:
                    made, text = _tile_op(op)
                except UnsupportedError as reason:
                    _erase_from(before, op)
                    context.remark(self.name, op.location, f"{op.name} left to scalar loops: {reason}")
                    continue
            before.erase()
            context.remark(self.name, op.location, f"{op.name}: {text}")
            waiting += made
            op.erase()


def _erase_from(first: Any, end: Any) -> None:
    """Erases the ops from `first` up to `end`, which were emitted before the op turned out to be unsupported."""
    ops = [op.operation for op in end.block.operations]
    for op in reversed(ops[ops.index(first) : ops.index(end.operation)]):
        op.erase()


def _tile_op(op: Any) -> tuple[list[Any], str]:
    """Emits `op` in tiles; returns the ops that remain to be tiled, and the text of the remark."""
    loops = loops_of(op)
    if op.name not in NAMED and not is_contraction(op):
        return _Plain(op, loops).emit()
    return _Product(op, loops).emit()


class _Tiling:
    """Loops over tiles of `op`. The bounds of all loops are computed first."""

    def __init__(self, op: Any, loops: list[DynamicLoop]) -> None:
        self.op, self.loops, self.buffers = op, loops, buffers_of(op)
        self.sizes = [size_of(op, loop) if loop.size is None else loop.size for loop in loops]

    def starts(self, number: int, starts: Sequence[Index]) -> list[Index]:
        """Returns the offsets of operand `number` for a tile at `starts` of the loops."""
        return self._along(number, starts, 0)

    def extents(self, number: int, sizes: Sequence[Index]) -> list[Index]:
        """Returns the sizes of operand `number` in a tile of `sizes`."""
        return self._along(number, sizes, 1)

    def _along(self, number: int, values: Sequence[Index], constant_dim: int) -> list[Index]:
        rank = len(self.buffers[number].type.shape)
        found: list[Index] = list(self.buffers[number].type.shape) if constant_dim else [0] * rank
        for value, loop in zip(values, self.loops, strict=True):
            for operand, dim in loop.uses:
                if operand == number:
                    found[dim] = value
        return found

    def clone(self, operands: Sequence[Any], starts: Sequence[Index]) -> Any:
        """Clones `op` on other buffers, with `linalg.index` shifted by the tile's start."""
        clone = self.op.clone().operation
        numbers = [i for i, value in enumerate(self.op.operands) if isinstance(value.type, ir.MemRefType)]
        for i, operand in zip(numbers, operands, strict=True):
            clone.operands[i] = operand
        for inner in [inner.operation for inner in clone.regions[0].blocks[0].operations]:
            if inner.name == "linalg.index":
                _shift_index(inner, starts[int(ir.IntegerAttr(inner.attributes["dim"]).value)])
        return clone


def _shift_index(index: Any, start: Index) -> None:
    """Adds `start` to the result of a `linalg.index`."""
    if isinstance(start, int) and start == 0:
        return
    result = index.results[0]
    with ir.InsertionPoint.after(index), index.location:
        total = arith.addi(result, constant(start) if isinstance(start, int) else start)
    result.replace_all_uses_except(total, total.owner.operation)


class _Plain(_Tiling):
    """An op that is not a product: one element at a time along dynamic loops, or vectors along one of them."""

    def emit(self) -> tuple[list[Any], str]:
        whole = [loop.size is not None and (loop.static_strides or loop.size == 1) for loop in self.loops]
        blocked = self._blocked(whole)
        starts: list[Index] = [0] * len(self.loops)
        sizes = [loop.size if fits else 1 for loop, fits in zip(self.loops, whole, strict=True)]

        def level(loop: int) -> None:
            if loop == len(self.loops):
                operands = [
                    tile(value, self.starts(n, starts), self.extents(n, sizes)) for n, value in enumerate(self.buffers)
                ]
                self.clone(operands, starts)
            elif whole[loop]:
                level(loop + 1)
            else:
                for first, end, step in _blocks(self.sizes[loop], VECTORS if loop == blocked else (1,)):
                    with _Loop(first, end, step) as index:
                        starts[loop], sizes[loop] = index, step
                        level(loop + 1)

        level(0)
        shape = "x".join(str(64 if i == blocked else size) for i, size in enumerate(sizes))
        return [], f"loops around tiles of {shape}"

    def _blocked(self, whole: list[bool]) -> int | None:
        """Returns the loop to process in vectors, if the others leave few elements per tile."""
        count = 1
        for loop, fits in zip(self.loops, whole, strict=True):
            count *= loop.size if fits and loop.size is not None else 1
        if count >= FEW:
            return None
        fitting = [i for i, loop in enumerate(self.loops) if not whole[i] and loop.static_strides and loop.uses]
        return max(fitting, key=lambda i: (self._contiguous(i), i), default=None)

    def _contiguous(self, loop: int) -> int:
        """Returns the number of operands that are contiguous along `loop`."""
        uses = self.loops[loop].uses
        return sum(dim == len(self.buffers[number].type.shape) - 1 for number, dim in uses)


class _Product(_Tiling):
    """A contraction: batches and images one by one, rows (or other dynamic dims) in blocks."""

    def emit(self) -> tuple[list[Any], str]:
        moving = [i for i, loop in enumerate(self.loops) if self._steps(loop)]
        operands = [{n for n, _ in self.loops[i].uses} for i in moving]
        # One image is enough work for a kernel; a block of images would always be computed as a whole.
        inner = [] if slides(self.op) else [i for i, used in zip(moving, operands, strict=True) if len(used) < 3]
        starts: list[Index] = [0] * len(self.loops)
        sizes: list[Index] = [1 if i in moving else loop.size for i, loop in enumerate(self.loops)]
        made: list[Any] = []

        def batches(left: list[int]) -> None:
            if left:
                for first, end, step in _blocks(self.sizes[left[0]], (1,)):
                    with _Loop(first, end, step) as index:
                        starts[left[0]] = index
                        batches(left[1:])
            elif not inner:
                self._direct(starts, sizes)
            elif self._keeps_operands(inner):
                self._rows(inner[0], starts, sizes, made)
            else:
                self._squares(inner, starts, sizes, made)

        batches([i for i in moving if i not in inner])
        if not inner:
            return made, "one at a time"
        return made, "rows in blocks" if self._keeps_operands(inner) else "tiles in separate buffers"

    def _steps(self, loop: DynamicLoop) -> bool:
        return loop.size is None or not (loop.static_strides or loop.size == 1)

    def _keeps_operands(self, inner: list[int]) -> bool:
        """True if only one loop is dynamic, it is no reduction, and every tile has static strides."""
        return (
            len(inner) == 1 and self.loops[inner[0]].static_strides and 2 in {n for n, _ in self.loops[inner[0]].uses}
        )

    # ---- one dynamic size --------------------------------------------------------------------------------------------

    def _rows(self, loop: int, starts: list[Index], sizes: list[Index], made: list[Any]) -> None:
        size = self.sizes[loop]
        full = arith.muli(arith.divui(size, constant(ROWS)), constant(ROWS))
        with _Loop(constant(0), full, ROWS) as index:
            starts[loop], sizes[loop] = index, ROWS
            self._direct(starts, sizes)
        with _Loop(full, size, LAST_ROWS) as index:
            count = arith.minui(arith.subi(size, index), constant(LAST_ROWS))
            starts[loop] = index
            whole = [LAST_ROWS if i == loop else n for i, n in enumerate(sizes)]
            valid = [count if i == loop else n for i, n in enumerate(sizes)]
            used = {n for n, _ in self.loops[loop].uses}
            operands = [
                self._copy_tile(n, starts, valid, whole, made) if n in used else tile(
                    value, self.starts(n, starts), self.extents(n, whole)
                )
                for n, value in enumerate(self.buffers)
            ]  # fmt: skip
            self.clone(operands, starts)
            made.append(self._write_back(operands[2], starts, valid))

    def _direct(self, starts: list[Index], sizes: list[Index]) -> None:
        operands = [tile(value, self.starts(n, starts), self.extents(n, sizes)) for n, value in enumerate(self.buffers)]
        self.clone(operands, starts)

    # ---- several dynamic sizes ---------------------------------------------------------------------------------------

    def _squares(self, inner: list[int], starts: list[Index], sizes: list[Index], made: list[Any]) -> None:
        """Emits one tile of the result at a time, in a buffer, and adds the products of tiles of the factors to it."""
        of_sums = [i for i in inner if 2 not in {n for n, _ in self.loops[i].uses}]
        whole = [SQUARE if i in inner else n for i, n in enumerate(sizes)]
        valid = list(sizes)

        def level(left: list[int], body: Callable[[], None]) -> None:
            if not left:
                body()
                return
            loop = left[0]
            size = self.sizes[loop] if not isinstance(self.sizes[loop], int) else constant(self.sizes[loop])
            with _Loop(constant(0), size, SQUARE) as index:
                starts[loop], valid[loop] = index, arith.minui(arith.subi(size, index), constant(SQUARE))
                level(left[1:], body)

        def result() -> None:
            out = self._copy_tile(2, starts, valid, whole, made)

            def sums() -> None:
                factors = [self._copy_tile(n, starts, valid, whole, made, clear=bool(of_sums)) for n in (0, 1)]
                self.clone([*factors, out], starts)

            level(of_sums, sums)
            made.append(self._write_back(out, starts, valid))

        level([i for i in inner if i not in of_sums], result)

    # ---- tiles in separate buffers -----------------------------------------------------------------------------------

    def _copy_tile(
        self, number: int, starts: list[Index], valid: list[Index], whole: list[Index], made: list[Any],
        clear: bool = False,
    ) -> Any:  # fmt: skip
        """Returns a buffer with a tile of operand `number`, cropped to the operand; with `clear`, padded by zeros."""
        value = self.buffers[number]
        shape = self.extents(number, whole)
        alignment = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), 64)
        buffer = memref.alloc(ir.MemRefType.get(shape, value.type.element_type), [], [], alignment=alignment)
        if clear:
            zero = arith.constant(value.type.element_type, 0.0 if _is_float(value.type.element_type) else 0)
            linalg.fill(zero, outs=[buffer])
        extents = self.extents(number, valid)
        here, there = part(value, self.starts(number, starts), extents), part(buffer, [0] * len(shape), extents)
        linalg.copy(here, outs=[there])
        made.append(_writer_of(there))
        return buffer

    def _write_back(self, buffer: Any, starts: list[Index], valid: list[Index]) -> Any:
        """Emits the copy of the valid part of the result's tile back to the result; returns the op."""
        extents = self.extents(2, valid)
        target = part(self.buffers[2], self.starts(2, starts), extents)
        linalg.copy(part(buffer, [0] * len(extents), extents), outs=[target])
        return _writer_of(target)


def _is_float(element: Any) -> bool:
    return isinstance(element, ir.FloatType)


def _writer_of(view: Any) -> Any:
    """Returns the op that uses a view created for it."""
    (use,) = view.uses
    return use.owner.operation


def _blocks(size: Any, steps: Sequence[int]) -> Iterator[tuple[Any, Any, int]]:
    """Yields (first, end, step) of loops that cover as much of `size` as possible by each step, largest first."""
    if isinstance(size, int):
        size = constant(size)
    first = constant(0)
    for step in steps:
        end = size if step == 1 else arith.muli(arith.divui(size, constant(step)), constant(step))
        yield first, end, step
        first = end


class _Loop:
    """Emits `scf.for` around the code of the `with` block; returns the index."""

    def __init__(self, first: Any, end: Any, step: int) -> None:
        self._op = scf.ForOp(first, end, constant(step), [])

    def __enter__(self) -> Any:
        self._point = ir.InsertionPoint(self._op.body)
        self._point.__enter__()
        return self._op.induction_variable

    def __exit__(self, *error: object) -> None:
        if error[0] is None:
            scf.yield_([])
        self._point.__exit__(*error)
