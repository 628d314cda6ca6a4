"""`vectorize-generics`: lowers element-wise ops, reductions, fills, copies and transposes to vector loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import enclosing_entry_block, find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.copies_to_loops import CopiesToLoops
from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.elementwise import emit_elementwise
from buddy.compiler.passes.kernels.emit import KernelEmitter
from buddy.compiler.passes.kernels.repeated import outline_duplicates
from buddy.compiler.passes.kernels.rows.reduction import emit_reduction
from buddy.compiler.passes.kernels.structured import STRUCTURED_OPS, analyse_vectorizable


@register
@dataclass(frozen=True)
class VectorizeGenerics(MlirPass):
    """Emits vector loops for supported ops; leaves others to the pass that lowers linalg to loops, with a remark.

    With `share`, equal ops that occur often first become calls of one function.
    """

    name: ClassVar[str] = "vectorize-generics"
    summary: ClassVar[str] = "lower element-wise ops, reductions, fills, copies and transposes to vector loops"

    share: bool = True

    def run(self, root: ir.Operation, context: PassContext) -> None:
        CopiesToLoops().run(root, context)
        if self.share:
            for symbol, locations in outline_duplicates(root, context.locations).items():
                text = f"{len(locations)} equal ops: calls of {symbol}"
                context.remark(self.name, context.locations.union(locations), text)
        emitters: dict[tuple[Any, bool], KernelEmitter] = {}
        for op in find_ops(root, *STRUCTURED_OPS):
            if (enclosing := enclosing_entry_block(op)) is None:
                context.remark(self.name, op.location, f"{op.name} left to scalar loops: it is not in a func.func")
                continue
            entry, is_parallel = enclosing
            emitter = emitters.setdefault((entry.owner.operation, is_parallel), KernelEmitter(entry, is_parallel))
            try:
                text = _vectorize(emitter, op, context)
            except UnsupportedError as reason:
                context.remark(self.name, op.location, f"{op.name} left to scalar loops: {reason}")
                continue
            context.remark(self.name, op.location, f"{op.name}: {text}")
            op.erase()


def _vectorize(emitter: KernelEmitter, op: ir.Operation, context: PassContext) -> str:
    """Emits `op` as vector loops; returns the text of the remark. Raises `UnsupportedError` with the reason."""
    structured = analyse_vectorizable(op, allow_loads=True, allow_reversed=True)
    if any(loop.size == 0 for loop in structured.loops):
        return "it has no elements"
    if structured.reductions:
        # Raises `UnsupportedError` if the body loads from memory or divides integers, or if a dim is reversed.
        analyse_vectorizable(op)
    emit = emit_reduction if structured.reductions else emit_elementwise
    with ir.InsertionPoint(op), op.location:
        return emit(emitter, structured, context.target)
