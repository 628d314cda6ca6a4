"""`pad-in-place`: computes the interior of a padded tensor in place, without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.mlir.walk import collect
from buddy.compiler.passes.base import MlirPass, PassContext, register


@register
@dataclass(frozen=True)
class PadInPlace(MlirPass):
    """A generic whose result is inserted into a filled tensor gets that slice of the tensor as its destination.

    Bufferization then makes no copy for the insertion. Other readers of the result read the slice.
    """

    name: ClassVar[str] = "pad-in-place"
    summary: ClassVar[str] = "generics whose results get padded write directly to the padded tensor"

    def run(self, root: Any, context: PassContext) -> None:
        taken: set[Any] = set()
        for op in [op for op in collect(root) if op.name == "tensor.insert_slice"]:
            made = _maker(op)
            if made is None or made in taken:
                context.remark(self.name, op.location, "copied into the padded tensor: no generic could write it there")
            else:
                taken.add(made)
                _write_there(made, op)
                size = "x".join(str(size) for size in op.results[0].type.shape)
                context.remark(self.name, made.location, f"its result is computed inside the padded {size}")


def _maker(insert: Any) -> Any | None:
    """Returns the generic whose result `insert` puts into a filled tensor, if it can write there instead."""
    source, target = insert.operands[0], insert.operands[1]
    if not target.type.has_static_shape or len(insert.operands) > 2 or len(source.type.shape) != len(target.type.shape):
        return None
    maker = _owner(source, "linalg.generic")
    if maker is None or len(maker.results) != 1 or maker.block != insert.block:
        return None
    fill = _owner(target, "linalg.fill")
    if fill is None or _owner(fill.operands[1], "tensor.empty") is None or _uses(target) != 1:
        return None
    start = maker.operands[len(maker.operands) - 1]
    filled = _owner(start, "linalg.fill")
    empty = start if filled is None else filled.operands[1]
    if _owner(empty, "tensor.empty") is None or _uses(start) != 1:
        return None
    return maker if _known_at(fill.operands[0], maker) else None


def _known_at(value: Any, op: Any) -> bool:
    """True if `value` is available before `op`, or is a constant, which can be moved."""
    maker = value.owner.operation if isinstance(value, ir.OpResult) else None
    if maker is None or maker.block != op.block:
        return True
    return maker.name == "arith.constant" or bool(maker.is_before_in_block(op))


def _write_there(maker: Any, insert: Any) -> None:
    """Gives `maker` the slice of the padded tensor as its destination; the filled tensor moves in front of it."""
    source, target = insert.operands
    last = len(maker.operands) - 1
    start = maker.operands[last]
    filled = _owner(start, "linalg.fill")
    fill = target.owner
    value = _owner(fill.operands[0], "arith.constant")
    if value is not None and value.block == maker.block and maker.is_before_in_block(value):
        value.move_before(maker)
    with ir.InsertionPoint(maker), fill.location:
        empty = tensor.empty(list(target.type.shape), target.type.element_type)
        padded = linalg.fill(fill.operands[0], outs=[empty])
        bounds = [list(ir.DenseI64ArrayAttr(insert.attributes[f"static_{name}"])) for name in _BOUNDS]
        slot = tensor.extract_slice(source.type, padded, [], [], [], *bounds)
    if filled is not None:
        with ir.InsertionPoint(maker), filled.location:
            slot = linalg.fill(filled.operands[0], outs=[slot])
    maker.operands[last] = slot
    insert.operands[1] = padded
    for op in (fill, fill.operands[1].owner, *([filled] if filled is not None else [])):
        _erase_unused(op)
    if filled is None:
        _erase_unused(start.owner)


_BOUNDS = ("offsets", "sizes", "strides")


def _owner(value: Any, name: str) -> Any | None:
    """Returns the op named `name` that defines `value`, or `None`."""
    return value.owner.operation if isinstance(value, ir.OpResult) and value.owner.name == name else None


def _uses(value: Any) -> int:
    return len(list(value.uses))


def _erase_unused(op: Any) -> None:
    if not any(_uses(result) for result in op.results):
        op.erase()
