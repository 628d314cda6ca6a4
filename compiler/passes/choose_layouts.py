"""`choose-layouts`: keeps tensors between convolutions in channels-last layout, in which channels are contiguous."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.access import is_used
from buddy.compiler.passes.layouts.generics import (
    FunctionSignatures,
    is_convolution,
    relayout_convolution,
    relayout_generic,
)
from buddy.compiler.passes.layouts.values import RELAYOUTS, Order, ValueLayouts


@register
@dataclass(frozen=True)
class ChooseLayouts(MlirPass):
    """Converts convolutions to channels last, and propagates the layout to the ops that depend on them.

    Two kinds of convolutions keep their layout if no operand has another one: a matrix product (a window of one
    element) that no other convolution depends on, and the gradient of weights in groups of few channels. A convolution
    in groups of several channels that no other convolution depends on has its channels last within each group. Only the
    memory layout changes, not the values.
    """

    name: ClassVar[str] = "choose-layouts"
    summary: ClassVar[str] = "convert convolutions, and the ops between them, to tensors with channels last"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        if any(map(_has_dynamic_shape, nested_ops(root))):
            context.remark(self.name, root.location, "layout unchanged: some sizes are dynamic")
            return
        signatures = FunctionSignatures(root)
        for function in signatures.functions():
            block = function.regions[0].blocks[0]
            ops = [op.operation for op in block.operations]
            if any(is_convolution(op) or signatures.calls_changed_function(op) for op in ops):
                self._relayout_block(block, signatures, context)
                if changed := signatures.absorb_transposes(function):
                    text = f"arguments and results in another layout: {changed}"
                    context.remark(self.name, function.location, text)
                    _erase_unused(block)

    def _relayout_block(self, block: ir.Block, signatures: FunctionSignatures, context: PassContext) -> None:
        """Rewrites the ops of `block`, a function's body, to the layouts that its convolutions need."""

        def remark_transpose(value: ir.Value, order: Order) -> None:
            text = "x".join(str(size) for size in value.type.shape)
            context.remark(self.name, value.location, f"{text} transposed to the order {order}")

        layouts = ValueLayouts(remark_transpose)
        _erase_unused(block)
        for op in [op.operation for op in block.operations]:
            if is_convolution(op):
                is_changed = relayout_convolution(op, layouts)
                text = "convolution with channels last" if is_changed else "convolution in the layout of its operands"
                context.remark(self.name, op.location, text)
            elif signatures.calls_changed_function(op):
                signatures.relayout_call(op, layouts)
            elif any(layouts.is_tracked(value) for value in op.operands if _is_tensor(value)):
                _propagate(op, layouts)
            _restore_operands(nested_ops(op), layouts)
        _erase_unused(block)


def _has_dynamic_shape(op: ir.Operation) -> bool:
    return any(_is_tensor(value) and not value.type.has_static_shape for value in op.results)


def _propagate(op: ir.Operation, layouts: ValueLayouts) -> None:
    """Rewrites `op` to the layouts of its operands, or converts the operands back to the original layout."""
    is_permuted = any(layouts.is_permuted(value) for value in op.operands if _is_tensor(value))
    if not is_permuted and op.name != "linalg.transpose":
        if op.name in RELAYOUTS or op.name == "linalg.generic":
            # The results depend on a convolution too.
            for result in op.results:
                layouts.track(result, layouts.order_of(result))
        return
    with ir.InsertionPoint(op), op.location:
        if op.name in RELAYOUTS and RELAYOUTS[op.name](op, layouts):
            return
    if op.name == "linalg.generic" and op.results and all(_is_tensor(value) for value in op.operands):
        relayout_generic(op, layouts)
    else:
        _restore_operands([op], layouts)


def _restore_operands(ops: list[ir.Operation], layouts: ValueLayouts) -> None:
    """Converts the operands of `ops` back to the original layout."""
    for op in ops:
        for number, value in enumerate(op.operands):
            if _is_tensor(value) and layouts.is_permuted(value):
                op.operands[number] = layouts.in_original_order(value)


def _is_tensor(value: ir.Value) -> bool:
    return isinstance(value.type, ir.RankedTensorType)


def _erase_unused(block: ir.Block) -> None:
    """Erases ops of pure dialects whose results have no uses."""
    for op in reversed([op.operation for op in block.operations]):
        is_pure = op.name.startswith(("linalg.", "tensor.", "arith.", "math."))
        if is_pure and len(op.results) and not any(map(is_used, op.results)):
            op.erase()
