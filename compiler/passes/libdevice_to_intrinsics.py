"""`libdevice-to-intrinsics`: replaces calls of NVIDIA's libdevice in kernels by LLVM intrinsics.

MLIR lowers ops of the math dialect to calls of libdevice, which is a part of CUDA's toolkit and not linked here. The
code generator has instructions for the simple functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import find_ops
from buddy.compiler.passes.base import MlirPass, PassContext, register

PREFIX = "__nv_"
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
_BY_NAME = {PREFIX + name + suffix: intrinsic for name, intrinsic in _INTRINSICS.items() for suffix in ("", "f")}


@register
@dataclass(frozen=True)
class LibdeviceToIntrinsics(MlirPass):
    """Calls without an intrinsic stay and get a remark: such a kernel cannot be loaded."""

    name: ClassVar[str] = "libdevice-to-intrinsics"
    summary: ClassVar[str] = "replace calls of libdevice in kernels by instructions of the device where possible"

    def run(self, root: Any, context: PassContext) -> None:
        left: set[str] = set()
        for op in find_ops(root, "llvm.call"):
            callee = _callee(op)
            if not callee.startswith(PREFIX):
                continue
            new = _replace(op, callee)
            if new is None:
                left.add(callee)
            what = "became an instruction" if new is not None else "has no instruction, and is called from libdevice"
            context.remark(self.name, (new or op).location, f"{callee} {what}")
        for op in find_ops(root, "llvm.func"):
            if _declares(op, left):
                op.erase()


def _callee(op: Any) -> str:
    """Returns the function that an op calls, "" if it calls none by name."""
    return str(ir.FlatSymbolRefAttr(op.attributes["callee"]).value) if "callee" in op.attributes else ""


def _declares(op: Any, left: set[str]) -> bool:
    """True if an op declares a libdevice function without calls."""
    name = ir.StringAttr(op.attributes["sym_name"]).value
    return name.startswith(PREFIX) and name not in left


def _replace(op: Any, callee: str) -> Any | None:
    """Returns the op that replaces a call, or `None`."""
    kind = op.results[0].type
    with ir.InsertionPoint(op), op.location:
        if callee in _BY_NAME:
            new = ir.Operation.create(f"llvm.intr.{_BY_NAME[callee]}", results=[kind], operands=list(op.operands))
        elif callee in (f"{PREFIX}rsqrt", f"{PREFIX}rsqrtf"):
            root = ir.Operation.create("llvm.intr.sqrt", results=[kind], operands=list(op.operands))
            value = ir.FloatAttr.get(kind, 1.0)
            one = ir.Operation.create("llvm.mlir.constant", results=[kind], attributes={"value": value})
            new = ir.Operation.create("llvm.fdiv", results=[kind], operands=[one.result, root.result])
        else:
            return None
    op.results[0].replace_all_uses_with(new.results[0])
    op.erase()
    return new
