"""`fill-borders`: fills only the border of a buffer whose interior the next access overwrites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, memref
from buddy.compiler.mlir.walk import VIEWS, collect, is_unaliased, root_of
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.contraction import indexing_maps


@register
@dataclass(frozen=True)
class FillBorders(MlirPass):
    """Also erases copies of a buffer onto itself, which remain after a result was inserted in place."""

    name: ClassVar[str] = "fill-borders"
    summary: ClassVar[str] = "fill only the border of a padded buffer whose interior is written next"

    def run(self, root: Any, context: PassContext) -> None:
        for op in collect(root):
            if op.name == "memref.copy" and op.operands[0] == op.operands[1]:
                op.erase()
        for fill, view in [found for block in _blocks(root) for found in _find_padded_fills(block)]:
            count = _fill_around(fill, view)
            context.remark(self.name, fill.location, f"filled in {count} strips around the part that is written next")
            fill.erase()


def _blocks(root: Any) -> list[Any]:
    """Returns the blocks below `root` that contain ops on buffers, not scalars."""
    owners = [op for op in (root, *collect(root)) if not op.name.startswith("linalg.")]
    return [block for op in owners for region in op.regions for block in region.blocks]


def _find_padded_fills(block: Any) -> list[tuple[Any, Any]]:
    """Returns fills of whole buffers, each with the static subview that the next access to the buffer overwrites."""
    found: list[tuple[Any, Any]] = []
    waiting: dict[Any, Any] = {}  # fills of buffers without a later access
    for op in [op.operation for op in block.operations]:
        if len(op.regions) and not op.name.startswith("linalg."):
            waiting.clear()  # accesses inside of it are not analysed
        if op.name in VIEWS:
            continue
        touched = [root for root in dict.fromkeys(map(root_of, op.operands)) if root in waiting]
        if touched and _overwrites_its_last(op):
            fill = waiting.get(root_of(op.operands[len(op.operands) - 1]))
            view = _view_of(op, fill) if fill is not None else None
            if view is not None:
                found.append((fill, view))
        for root in touched:
            del waiting[root]
        if op.name == "linalg.fill" and not len(op.results) and is_unaliased(op.operands[1]):
            waiting[op.operands[1]] = op
    return found


def _view_of(writer: Any, fill: Any) -> Any | None:
    """Returns the static subview of `fill`'s buffer that `writer` overwrites, if it reads nothing of the buffer."""
    buffer = fill.operands[1]
    *inputs, target = writer.operands
    if any(root_of(value) == buffer for value in inputs) or not isinstance(target, ir.OpResult):
        return None
    view = target.owner.operation
    if view.name != "memref.subview" or view.operands[0] != buffer or len(view.operands) > 1:
        return None
    steps = ir.DenseI64ArrayAttr(view.attributes["static_strides"])
    return view if len(target.type.shape) == len(buffer.type.shape) and all(step == 1 for step in steps) else None


def _overwrites_its_last(op: Any) -> bool:
    """True if `op` writes every element of its last operand without reading any."""
    if op.name in ("linalg.fill", "linalg.copy", "memref.copy"):
        return True
    if op.name != "linalg.generic" or int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[1]) != 1:
        return False
    arguments = op.regions[0].blocks[0].arguments
    read = any(True for _ in arguments[len(arguments) - 1].uses)
    return not read and indexing_maps(op)[-1].is_permutation


def _fill_around(fill: Any, view: Any) -> int:
    """Fills the area around `view`; returns the number of strips."""
    value, buffer = fill.operands
    offsets, sizes = (list(ir.DenseI64ArrayAttr(view.attributes[f"static_{name}"])) for name in ("offsets", "sizes"))
    strips = list(_strips(list(buffer.type.shape), offsets, sizes))
    with ir.InsertionPoint(fill), fill.location:
        for starts, extents in strips:
            strip = memref.subview(buffer, starts, extents, [1] * len(starts))
            linalg.fill(value, outs=[strip])
    return len(strips)


def _strips(
    shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]
) -> Iterator[tuple[list[int], list[int]]]:
    """Yields offsets and sizes of disjoint boxes that cover `shape` except one box."""
    for dim, (full, offset, size) in enumerate(zip(shape, offsets, sizes, strict=True)):
        rest = [0] * (len(shape) - dim - 1)
        for start, extent in ((0, offset), (offset + size, full - offset - size)):
            if extent:
                yield [*offsets[:dim], start, *rest], [*sizes[:dim], extent, *shape[dim + 1 :]]
