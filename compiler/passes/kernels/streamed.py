"""Marks the entry's arguments whose weights kernels read in place, so that the runner prepares their memory."""

from __future__ import annotations

from buddy.compiler.codegen.calling_convention import STREAMED
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.passes.kernels.weights import PackedWeights, Place


def mark_streamed(weights: PackedWeights, place: Place) -> None:
    """Marks the arguments of the entry that the parameter at `place` comes from."""
    name, number = place
    function = weights.functions[name]
    if not function.public:
        for call in function.calls:
            above = weights.parameter(call.operands[number])
            assert above is not None, "a parameter is a parameter in every caller"
            mark_streamed(weights, above)
        return
    flags = list(ir.ArrayAttr(function.op.attributes["arg_attrs"]))
    known = {named.name: named.attr for named in ir.DictAttr(flags[number])}
    flags[number] = ir.DictAttr.get({**known, STREAMED: ir.UnitAttr.get()})
    function.op.attributes["arg_attrs"] = ir.ArrayAttr.get(flags)
