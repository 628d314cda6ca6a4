"""`libdevice-to-intrinsics`: replaces calls of NVIDIA's libdevice in kernels by LLVM intrinsics.

MLIR lowers ops of the math dialect to calls of libdevice, a part of the CUDA toolkit that is not linked here. LLVM's
code generator has instructions for the simple functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import callee_of, find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register

_LIBDEVICE_PREFIX = "__nv_"
# Functions of libdevice (for f64; those for f32 end in `f`) and the LLVM intrinsics with the same meaning:
# https://docs.nvidia.com/cuda/libdevice-users-guide, https://llvm.org/docs/LangRef.html.
_INTRINSICS = {
    "fabs": "fabs",
    "ceil": "ceil",
    "floor": "floor",
    "trunc": "trunc",
    "round": "round",
    "rint": "rint",
    "sqrt": "sqrt",
    "fma": "fma",
    "copysign": "copysign",
    "fmin": "minnum",
    "fmax": "maxnum",
}
_INTRINSICS_BY_CALLEE = {
    _LIBDEVICE_PREFIX + name + suffix: intrinsic for name, intrinsic in _INTRINSICS.items() for suffix in ("", "f")
}


@register
@dataclass(frozen=True)
class LibdeviceToIntrinsics(MlirPass):
    """Replaces calls of functions that have an intrinsic; a kernel with another call of libdevice cannot be loaded."""

    name: ClassVar[str] = "libdevice-to-intrinsics"
    summary: ClassVar[str] = "replace calls of libdevice in kernels by instructions of the device where possible"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        remaining_callees: set[str] = set()
        for op in find_ops(root, "llvm.call"):
            callee = callee_of(op)
            if not callee.startswith(_LIBDEVICE_PREFIX):
                continue
            location = op.location
            is_replaced = _replace(op, callee)
            if not is_replaced:
                remaining_callees.add(callee)
            result = "became an instruction" if is_replaced else "has no instruction, and is called from libdevice"
            context.remark(self.name, location, f"{callee} {result}")
        for op in find_ops(root, "llvm.func"):
            name = ir.StringAttr(op.attributes["sym_name"]).value
            if name.startswith(_LIBDEVICE_PREFIX) and name not in remaining_callees:
                op.erase()


def _replace(op: ir.Operation, callee: str) -> bool:
    """Replaces the call `op` of `callee` by an intrinsic; returns whether there is one for this function."""
    type_ = op.results[0].type
    with ir.InsertionPoint(op), op.location:
        if callee in _INTRINSICS_BY_CALLEE:
            new = ir.Operation.create(
                f"llvm.intr.{_INTRINSICS_BY_CALLEE[callee]}", results=[type_], operands=list(op.operands)
            )
        elif callee in (f"{_LIBDEVICE_PREFIX}rsqrt", f"{_LIBDEVICE_PREFIX}rsqrtf"):
            # 1 / sqrt(x)
            root = ir.Operation.create("llvm.intr.sqrt", results=[type_], operands=list(op.operands))
            value = ir.FloatAttr.get(type_, 1.0)
            one = ir.Operation.create("llvm.mlir.constant", results=[type_], attributes={"value": value})
            new = ir.Operation.create("llvm.fdiv", results=[type_], operands=[one.result, root.result])
        else:
            return False
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
    return True
