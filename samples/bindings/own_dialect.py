"""A dialect defined in Python, and the patterns that lower it: activations as ops with a parameter each.

The bindings turn the classes into IRDL, MLIR's own language for dialects, and load that: ops of the dialect verify,
print and parse like any others. As a script it prints the module before and after, runs it and compares it with NumPy.
The workbench opens `module`, in which the dialect has been lowered.
"""

from typing import TypeVar

import numpy as np
from mlir.dialects import arith, ext, func, math
from mlir.passmanager import PassManager
from mlir.rewrite import RewritePatternSet, apply_patterns_and_fold_greedily
from running import Compiled

from mlir import ir

SHAPE = (4, 64)


class Act(ext.Dialect, name="act"):
    """Activations of whole tensors."""


# One variable for operand and result: the op verifies only if their types are equal.
T = TypeVar("T", bound=ir.RankedTensorType)


class LeakyRelu(Act.Operation, name="leaky_relu"):
    """`x` where it is positive, else `slope * x`."""

    x: ext.Operand[T]
    slope: ir.FloatAttr
    y: ext.Result[T]


class Swish(Act.Operation, name="swish"):
    """`x * sigmoid(beta * x)`."""

    x: ext.Operand[T]
    beta: ir.FloatAttr
    y: ext.Result[T]


# ---- a program ------------------------------------------------------------------------------------------------------


def build() -> ir.Module:
    f32 = ir.F32Type.get()
    kind = ir.RankedTensorType.get(SHAPE, f32)
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):

        @func.FuncOp.from_py_func(kind)
        def activations(x: ir.Value) -> ir.Value:
            leaky = LeakyRelu(x, ir.FloatAttr.get(f32, 0.125), y=kind)
            return Swish(leaky.y, ir.FloatAttr.get(f32, 1.5), y=kind).y

    return module


# ---- its lowering ---------------------------------------------------------------------------------------------------


def splat(kind: ir.Type, value: ir.Attribute) -> ir.Value:
    return arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, value))


def number(kind: ir.Type, value: float) -> ir.Value:
    return splat(kind, ir.FloatAttr.get(kind.element_type, value))


def lower_leaky_relu(op: LeakyRelu, rewriter: object) -> None:
    """A pattern replaces one op; the replacement is inserted at `rewriter.ip`."""
    kind = op.x.type
    with rewriter.ip, op.location:
        positive = arith.cmpf(arith.CmpFPredicate.OGT, op.x, number(kind, 0.0))
        leaked = arith.mulf(op.x, splat(kind, op.slope))
        found = arith.select(positive, op.x, leaked)
    rewriter.replace_op(op.operation, [found])


def lower_swish(op: Swish, rewriter: object) -> None:
    kind = op.x.type
    with rewriter.ip, op.location:
        power = math.exp(arith.negf(arith.mulf(op.x, splat(kind, op.beta))))
        found = arith.divf(op.x, arith.addf(number(kind, 1.0), power))
    rewriter.replace_op(op.operation, [found])


def lower_act(op: ir.Operation, _pass: object) -> None:
    """A pass: every op of the dialect becomes arithmetic on tensors."""
    patterns = RewritePatternSet()
    patterns.add(LeakyRelu, lower_leaky_relu)
    patterns.add(Swish, lower_swish)
    apply_patterns_and_fold_greedily(op, patterns.freeze())


def reference(x: np.ndarray) -> np.ndarray:
    leaky = np.where(x > 0, x, np.float32(0.125) * x)
    return leaky / (1 + np.exp(np.float32(-1.5) * leaky))


with ir.Context(), ir.Location.unknown():
    Act.load()
    module = build()
    before = str(module)
    passes = PassManager("builtin.module")
    passes.add(lower_act)
    passes.run(module.operation)

example_inputs = (np.random.default_rng(0).standard_normal(SHAPE, np.float32),)

if __name__ == "__main__":
    print(before)
    print(module)
    result = np.empty(SHAPE, np.float32)
    Compiled(module)("activations", *example_inputs, result)
    print("largest difference from NumPy:", abs(result - reference(*example_inputs)).max())
