"""`fill-borders`: fills only the border of a buffer whose interior the next access overwrites."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, memref
from buddy.compiler.mlir.walk import VIEW_OPS, is_unaliased, nested_ops, root_of
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import is_used
from buddy.compiler.passes.kernels.contraction import indexing_maps


@register
@dataclass(frozen=True)
class FillBorders(MlirPass):
    """Replaces the fill of a padded buffer by fills of its border.

    Also erases copies of a buffer onto itself, which remain if bufferization inserts a result in place.
    """

    name: ClassVar[str] = "fill-borders"
    summary: ClassVar[str] = "fill only the border of a padded buffer whose interior is written next"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in nested_ops(root):
            if op.name == "memref.copy" and op.operands[0] == op.operands[1]:
                op.erase()
        for fill, view in [pair for block in _blocks(root) for pair in _find_padded_fills(block)]:
            count = _fill_around(fill, view)
            context.remark(self.name, fill.location, f"filled in {count} strips around the part that is written next")
            fill.erase()


def _blocks(root: ir.Operation) -> list[ir.Block]:
    """Returns the blocks below `root`, without the bodies of linalg ops, which compute scalars."""
    owners = [op for op in (root, *nested_ops(root)) if not op.name.startswith("linalg.")]
    return [block for op in owners for region in op.regions for block in region.blocks]


def _find_padded_fills(block: ir.Block) -> list[tuple[ir.Operation, ir.Operation]]:
    """Returns (fill, subview) for each fill of a whole buffer if the next access overwrites a static subview of it."""
    padded_fills: list[tuple[Any, Any]] = []
    fills: dict[Any, Any] = {}  # by buffer, until the next access to the buffer
    for op in [op.operation for op in block.operations]:
        if len(op.regions) and not op.name.startswith("linalg."):
            fills.clear()  # accesses in the regions of `op` are not analysed
        if op.name in VIEW_OPS:
            continue
        accessed = [root for root in dict.fromkeys(map(root_of, op.operands)) if root in fills]
        if accessed and _overwrites_last_operand(op):
            fill = fills.get(root_of(op.operands[len(op.operands) - 1]))
            view = _overwritten_view(op, fill) if fill is not None else None
            if view is not None:
                padded_fills.append((fill, view))
        for root in accessed:
            del fills[root]
        if op.name == "linalg.fill" and not len(op.results) and is_unaliased(op.operands[1]):
            fills[op.operands[1]] = op
    return padded_fills


def _overwritten_view(writer: ir.Operation, fill: ir.Operation) -> ir.Operation | None:
    """Returns the static subview of `fill`'s buffer that `writer` overwrites.

    Returns `None` if the last operand of `writer` is not such a view, or if `writer` reads the buffer.
    """
    buffer = fill.operands[1]
    *inputs, target = writer.operands
    if any(root_of(value) == buffer for value in inputs) or not isinstance(target, ir.OpResult):
        return None
    view = target.owner.operation
    if view.name != "memref.subview" or view.operands[0] != buffer or len(view.operands) > 1:
        return None
    strides = ir.DenseI64ArrayAttr(view.attributes["static_strides"])
    has_same_rank = len(target.type.shape) == len(buffer.type.shape)
    return view if has_same_rank and all(stride == 1 for stride in strides) else None


def _overwrites_last_operand(op: ir.Operation) -> bool:
    """True if `op` writes every element of its last operand and reads none of them."""
    if op.name in ("linalg.fill", "linalg.copy", "memref.copy"):
        return True
    if op.name != "linalg.generic" or int(ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])[1]) != 1:
        return False
    arguments = op.regions[0].blocks[0].arguments
    is_read = is_used(arguments[len(arguments) - 1])
    return not is_read and indexing_maps(op)[-1].is_permutation


def _fill_around(fill: ir.Operation, view: ir.Operation) -> int:
    """Emits fills of the strips around `view`; returns the number of strips."""
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
    """Yields offsets and sizes of disjoint boxes that cover `shape` except the box at `offsets` of `sizes`."""
    for dim, (full_size, offset, size) in enumerate(zip(shape, offsets, sizes, strict=True)):
        inner_starts = [0] * (len(shape) - dim - 1)
        for start, extent in ((0, offset), (offset + size, full_size - offset - size)):
            if extent:
                yield [*offsets[:dim], start, *inner_starts], [*sizes[:dim], extent, *shape[dim + 1 :]]
