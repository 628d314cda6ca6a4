"""`write-in-place`: element-wise ops and copies write over an operand that nothing reads again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.bindings import ir, memref
from buddy.compiler.kernels.contraction import indexing_maps
from buddy.compiler.kernels.memory import accesses, root_of, stands_alone
from buddy.compiler.kernels.walk import collect
from buddy.compiler.passes.base import MlirPass, PassContext, register

_KINDS = ("linalg.generic", "linalg.copy", "memref.copy")
# Views that hold all of their source, element by element in the same order.
_RESHAPES = ("memref.collapse_shape", "memref.expand_shape")


@register
@dataclass(frozen=True)
class WriteInPlace(MlirPass):
    """An op reads element `i` of the operand before it writes element `i` of the result, so both may be one buffer."""

    name: ClassVar[str] = "write-in-place"
    summary: ClassVar[str] = "element-wise ops and copies write over an operand that nothing reads again"

    def run(self, root: Any, context: PassContext) -> None:
        for op in [op for op in collect(root) if op.name in _KINDS]:
            found = next((pair for pair in _pairs(op) if _may_be_one(op, *pair)), None)
            if found is None:
                continue
            operand, result = found
            _merge(root_of(operand), root_of(result))
            if op.name == "linalg.generic":
                context.remark(self.name, op.location, "the result is written over an operand")
            else:
                context.remark(self.name, op.location, "no copy: nothing else reads its source")
                op.erase()


def _pairs(op: Any) -> Iterator[tuple[Any, Any]]:
    """Operands of `op` with its only result, where the same element of both belongs to each iteration."""
    values = list(op.operands)
    if op.name != "linalg.generic":
        yield values[0], values[1]
        return
    inputs, outputs = ir.DenseI32ArrayAttr(op.attributes["operandSegmentSizes"])
    plain = all(isinstance(value.type, ir.MemRefType) for value in values)
    reduces = any("reduction" in str(kind) for kind in op.attributes["iterator_types"])
    if outputs != 1 or reduces or not plain:
        return
    maps = indexing_maps(op)
    for value, map_ in zip(values[:inputs], maps, strict=False):
        if map_ == maps[-1] and sum(root_of(other) == root_of(value) for other in values) == 1:
            yield value, values[-1]


def _may_be_one(op: Any, operand: Any, result: Any) -> bool:
    """Whether nothing but `op` uses the operand's buffer from it on, nor the result's before, and they are alike."""
    source, target = root_of(operand), root_of(result)
    if operand.type != result.type or not (_is_whole(operand) and _is_whole(result)):
        return False
    if not ir.MemRefType(operand.type).has_static_shape:
        return False  # what computes the sizes of the one need not stand before the other
    if not is_allocated(source) or not stands_alone(target) or source.owner.operation.block != op.block:
        return False
    if isinstance(target, ir.OpResult) and target.owner.operation.block != op.block:
        return False
    return all(user == op or stands_before(user, op) for user in accesses(source)) and all(
        user == op or stands_after(user, op) for user in accesses(target)
    )


def _around(user: Any, block: Any) -> Any | None:
    """`user`, or the op around it, in `block`; `None` where neither stands there."""
    while user.block != block:
        if user.name in ("func.func", "builtin.module"):
            return None
        user = user.parent.operation
    return user


def stands_before(user: Any, op: Any) -> bool:
    found = _around(user, op.block)
    return found is not None and found != op and bool(found.is_before_in_block(op))


def stands_after(user: Any, op: Any) -> bool:
    found = _around(user, op.block)
    return found is not None and found != op and bool(op.is_before_in_block(found))


def _is_whole(value: Any) -> bool:
    """Whether `value` is its buffer, or that in another shape."""
    while isinstance(value, ir.OpResult) and value.owner.name in _RESHAPES:
        value = value.owner.operands[0]
    return bool(value == root_of(value))


def is_allocated(root: Any) -> bool:
    return isinstance(root, ir.OpResult) and root.owner.name == "memref.alloc"


def _merge(source: Any, target: Any) -> None:
    """Let `target` take the place of the allocation `source`; its own allocation moves up, so that it is there."""
    allocation = source.owner.operation
    if isinstance(target, ir.OpResult):
        target.owner.operation.move_before(allocation)
    with ir.InsertionPoint(allocation), allocation.location:
        view = target
        if target.type != source.type:
            view = _reshaped(target, source.type)
    source.replace_all_uses_with(view)
    allocation.erase()


def _reshaped(value: Any, type_: Any) -> Any:
    strides, _ = type_.get_strides_and_offset()
    return memref.reinterpret_cast(type_, value, [], [], [], [0], list(type_.shape), list(strides))
