"""`pad-in-place`: makes the generic that computes the interior of a padded tensor write it in place, without a copy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import is_used


@register
@dataclass(frozen=True)
class PadInPlace(MlirPass):
    """Makes a generic whose result is inserted into a filled tensor write to that slice of the tensor.

    Bufferization then emits no copy for the insertion. Other readers of the result read the slice.
    """

    name: ClassVar[str] = "pad-in-place"
    summary: ClassVar[str] = "make generics whose results are padded write into the padded tensor"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        redirected: set[Any] = set()
        for op in [op for op in nested_ops(root) if op.name == "tensor.insert_slice"]:
            producer = _producer(op)
            if producer is None or producer in redirected:
                context.remark(self.name, op.location, "copied into the padded tensor: no generic could write it there")
            else:
                redirected.add(producer)
                _redirect(producer, op)
                shape = "x".join(str(size) for size in op.results[0].type.shape)
                context.remark(self.name, producer.location, f"its result is computed inside the padded {shape}")


def _producer(insert: ir.Operation) -> ir.Operation | None:
    """Returns the generic whose result `insert` inserts into a filled tensor.

    Returns `None` if there is no such generic, or if it cannot write to the filled tensor instead.
    """
    source, target = insert.operands[0], insert.operands[1]
    if not target.type.has_static_shape or len(insert.operands) > 2 or len(source.type.shape) != len(target.type.shape):
        return None
    producer = _owner(source, "linalg.generic")
    if producer is None or len(producer.results) != 1 or producer.block != insert.block:
        return None
    padding_fill = _owner(target, "linalg.fill")
    if padding_fill is None or _owner(padding_fill.operands[1], "tensor.empty") is None or _count_uses(target) != 1:
        return None
    init = producer.operands[len(producer.operands) - 1]
    init_fill = _owner(init, "linalg.fill")
    empty = init if init_fill is None else init_fill.operands[1]
    if _owner(empty, "tensor.empty") is None or _count_uses(init) != 1:
        return None
    return producer if _is_available(padding_fill.operands[0], producer) else None


def _is_available(value: ir.Value, op: ir.Operation) -> bool:
    """True if `value` is defined before `op`, or is a constant, which can be moved."""
    producer = value.owner.operation if isinstance(value, ir.OpResult) else None
    if producer is None or producer.block != op.block:
        return True
    return producer.name == "arith.constant" or bool(producer.is_before_in_block(op))


def _redirect(producer: ir.Operation, insert: ir.Operation) -> None:
    """Gives `producer` the slice of the padded tensor as its destination; the padded tensor is filled before it."""
    source, target = insert.operands
    last = len(producer.operands) - 1
    init = producer.operands[last]
    init_fill = _owner(init, "linalg.fill")
    padding_fill = target.owner
    constant = _owner(padding_fill.operands[0], "arith.constant")
    if constant is not None and constant.block == producer.block and producer.is_before_in_block(constant):
        constant.move_before(producer)
    with ir.InsertionPoint(producer), padding_fill.location:
        empty = tensor.empty(list(target.type.shape), target.type.element_type)
        padded = linalg.fill(padding_fill.operands[0], outs=[empty])
        names = ("static_offsets", "static_sizes", "static_strides")
        bounds = [list(ir.DenseI64ArrayAttr(insert.attributes[name])) for name in names]
        destination = tensor.extract_slice(source.type, padded, [], [], [], *bounds)
    if init_fill is not None:
        with ir.InsertionPoint(producer), init_fill.location:
            destination = linalg.fill(init_fill.operands[0], outs=[destination])
    producer.operands[last] = destination
    insert.operands[1] = padded
    for op in (padding_fill, padding_fill.operands[1].owner, *([init_fill] if init_fill is not None else [])):
        _erase_if_unused(op)
    if init_fill is None:
        _erase_if_unused(init.owner)


def _owner(value: ir.Value, name: str) -> ir.Operation | None:
    """Returns the op named `name` that defines `value`, or `None`."""
    return value.owner.operation if isinstance(value, ir.OpResult) and value.owner.name == name else None


def _count_uses(value: ir.Value) -> int:
    return len(list(value.uses))


def _erase_if_unused(op: ir.OpView) -> None:
    if not any(map(is_used, op.results)):
        op.erase()
