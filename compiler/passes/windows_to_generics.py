"""`windows-to-generics`: converts named convolutions and pools to generics, pads to insertions into filled tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.mlir.walk import clone_body, nested_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register

# Prefixes of the named ops that have a window.
_WINDOW_OPS = ("linalg.conv_", "linalg.depthwise_conv_", "linalg.pooling_")


@register
@dataclass(frozen=True)
class WindowsToGenerics(MlirPass):
    """Gives convolutions and pads of all dialects one form, for the passes for layouts, fusion and kernels."""

    name: ClassVar[str] = "windows-to-generics"
    summary: ClassVar[str] = "convert convolutions and pools to generics, and tensor.pad to a slice of a filled tensor"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        for op in [op for op in nested_ops(root) if op.name.startswith(_WINDOW_OPS) or op.name == "tensor.pad"]:
            if not len(op.results) or not all(_is_static_tensor(v.type) for v in (*op.operands, *op.results)):
                reason = "an operand or its result is not a tensor of static shape"
                context.remark(self.name, op.location, f"{op.name} unchanged: {reason}")
                continue
            with ir.InsertionPoint(op), op.location:
                new = _emit_insertion(op) if op.name == "tensor.pad" else _emit_generic(op)
            if new is not None:
                context.remark(self.name, op.location, f"{op.name} became {new.owner.name}")
                op.results[0].replace_all_uses_with(new)
                op.erase()
            else:
                context.remark(self.name, op.location, f"{op.name} unchanged: it pads with more than one value")


def _is_static_tensor(type_: ir.Type) -> bool:
    return isinstance(type_, ir.RankedTensorType) and type_.has_static_shape


def _emit_generic(op: ir.Operation) -> ir.Value:
    """Emits the generic with the loops and the body of a named op; returns its result."""
    maps = list(linalg.get_indexing_maps(op))
    parallel = {e.position for e in ir.AffineMapAttr(maps[-1]).value.results}
    kinds = ["parallel" if i in parallel else "reduction" for i in range(ir.AffineMapAttr(maps[0]).value.n_dims)]
    iterators = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
    *inputs, out = op.operands
    generic = linalg.GenericOp([op.results[0].type], inputs, [out], ir.ArrayAttr.get(maps), ir.ArrayAttr.get(iterators))
    elements = [value.type.element_type for value in op.operands]
    block = generic.regions[0].blocks.append(*elements, arg_locs=[op.location] * len(elements))
    body = op.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        linalg.yield_(clone_body(body, dict(zip(body.arguments, block.arguments, strict=True))))
    return generic.results[0]


def _emit_insertion(op: ir.Operation) -> ir.Value | None:
    """Emits a `tensor.pad` as an insertion into a filled tensor; returns its result.

    Returns `None` if the padding value depends on the position, or if a width of the padding is an operand.
    """
    body = op.regions[0].blocks[0]
    value = body.operations[0].operands[0]  # of `tensor.yield`, if that is the only op
    starts = list(ir.DenseI64ArrayAttr(op.attributes["static_low"]))
    is_index = isinstance(value, ir.BlockArgument) and value.owner == body
    if len(body.operations) > 1 or is_index or len(op.operands) > 1:
        return None
    source, result = op.operands[0], op.results[0]
    filled = linalg.fill(value, outs=[tensor.empty(list(result.type.shape), result.type.element_type)])
    return tensor.insert_slice(source, filled, [], [], [], starts, list(source.type.shape), [1] * len(starts))
