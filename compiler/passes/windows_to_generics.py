"""`windows-to-generics`: converts named convolutions and pools to generics, and pads to insertions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir, linalg, tensor
from buddy.compiler.mlir.walk import clone_body, collect
from buddy.compiler.passes.base import MlirPass, PassContext, register

_WINDOWS = ("linalg.conv_", "linalg.depthwise_conv_", "linalg.pooling_")


@register
@dataclass(frozen=True)
class WindowsToGenerics(MlirPass):
    """Layouts, fusion and kernels then handle one form of each, independent of the dialect of origin."""

    name: ClassVar[str] = "windows-to-generics"
    summary: ClassVar[str] = "named convolutions and pools become generics, and tensor.pad a slice of a filled tensor"

    def run(self, root: Any, context: PassContext) -> None:
        for op in [op for op in collect(root) if op.name.startswith(_WINDOWS) or op.name == "tensor.pad"]:
            if not len(op.results) or not all(_is_static(value.type) for value in (*op.operands, *op.results)):
                context.remark(self.name, op.location, f"{op.name} unchanged: its tensors have dynamic sizes")
                continue
            with ir.InsertionPoint(op), op.location:
                made = _filled(op) if op.name == "tensor.pad" else _generic(op)
            if made is not None:
                context.remark(self.name, op.location, f"{op.name} became {made.owner.name}")
                op.results[0].replace_all_uses_with(made)
                op.erase()
            else:
                context.remark(self.name, op.location, f"{op.name} unchanged: it pads with more than one value")


def _is_static(type_: Any) -> bool:
    """True for a tensor of static shape; the widths of a pad may still be index operands."""
    return isinstance(type_, ir.RankedTensorType) and type_.has_static_shape


def _generic(op: Any) -> Any:
    """Returns the generic with the loops and the body of a named op."""
    maps = list(linalg.get_indexing_maps(op))
    parallel = {e.position for e in ir.AffineMapAttr(maps[-1]).value.results}
    kinds = ["parallel" if i in parallel else "reduction" for i in range(ir.AffineMapAttr(maps[0]).value.n_dims)]
    iterators = [ir.Attribute.parse(f"#linalg.iterator_type<{kind}>") for kind in kinds]
    *inputs, out = op.operands
    made = linalg.GenericOp([op.results[0].type], inputs, [out], ir.ArrayAttr.get(maps), ir.ArrayAttr.get(iterators))
    elements = [value.type.element_type for value in op.operands]
    block = made.regions[0].blocks.append(*elements, arg_locs=[op.location] * len(elements))
    inner = op.regions[0].blocks[0]
    with ir.InsertionPoint(block):
        linalg.yield_(clone_body(inner, dict(zip(inner.arguments, block.arguments, strict=True))))
    return made.results[0]


def _filled(op: Any) -> Any | None:
    """Returns a `tensor.pad` as an insertion into a filled tensor, or `None` if the padding value varies."""
    body = op.regions[0].blocks[0]
    fill = body.operations[0].operands[0]
    starts = list(ir.DenseI64ArrayAttr(op.attributes["static_low"]))
    varies = isinstance(fill, ir.BlockArgument) and fill.owner == body
    if len(body.operations) > 1 or varies or len(op.operands) > 1:
        return None
    source, result = op.operands[0], op.results[0]
    filled = linalg.fill(fill, outs=[tensor.empty(list(result.type.shape), result.type.element_type)])
    return tensor.insert_slice(source, filled, [], [], [], starts, list(source.type.shape), [1] * len(starts))
