"""A pass written in Python, run by MLIR's pass manager among its own: divisions by a constant power of two become
products with its reciprocal, which is exact.

As a script it prints the module before and after, and runs both: the results are the same bits.
"""

import math

import numpy as np
from mlir.dialects import arith, func
from mlir.passmanager import PassManager
from running import Compiled

from mlir import ir

SHAPE = (8, 32)


def build() -> ir.Module:
    f32 = ir.F32Type.get()
    kind = ir.RankedTensorType.get(SHAPE, f32)

    def splat(value: float) -> ir.Value:
        return arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, ir.FloatAttr.get(f32, value)))

    module = ir.Module.create()
    with ir.InsertionPoint(module.body):

        @func.FuncOp.from_py_func(kind)
        def scaled(x: ir.Value) -> ir.Value:
            # The first divisor is a power of two, the second is not: a product would round differently.
            return arith.divf(arith.divf(x, splat(8.0)), splat(3.0))

    return module


class ExactReciprocals:
    """Any callable can be a pass: its argument is the operation that it runs on."""

    def __init__(self) -> None:
        self.replaced = 0

    def __call__(self, root: ir.Operation, _pass: object) -> None:
        found = []

        def visit(op: ir.Operation) -> ir.WalkResult:
            if op.name == "arith.divf" and self._power_of_two(op.operands[1]) is not None:
                found.append(op)
            return ir.WalkResult.ADVANCE

        root.walk(visit)
        # The IR must not change during the walk.
        for op in found:
            self._replace(op)

    def _power_of_two(self, value: ir.Value) -> float | None:
        """The number that fills `value`, if it is a constant and a power of two whose reciprocal is a normal number."""
        made_by = value.owner
        if not isinstance(made_by, ir.Operation | ir.OpView) or made_by.name != "arith.constant":
            return None
        constant = made_by.attributes["value"]
        if not isinstance(constant, ir.DenseFPElementsAttr) or not constant.is_splat:
            return None
        number = constant.get_splat_value().value
        mantissa, exponent = math.frexp(abs(number))
        return number if mantissa == 0.5 and abs(exponent) < 120 else None

    def _replace(self, op: ir.Operation) -> None:
        divisor = self._power_of_two(op.operands[1])
        kind = op.operands[1].type
        with ir.InsertionPoint(op), op.location:
            value = ir.FloatAttr.get(kind.element_type, 1 / divisor)
            reciprocal = arith.constant(kind, ir.DenseElementsAttr.get_splat(kind, value))
            product = arith.mulf(op.operands[0], reciprocal)
        op.results[0].replace_all_uses_with(product)
        op.erase()
        self.replaced += 1


def reference(x: np.ndarray) -> np.ndarray:
    return x / np.float32(8) / np.float32(3)


exact_reciprocals = ExactReciprocals()
with ir.Context(), ir.Location.unknown():
    before, module = build(), build()
    passes = PassManager("builtin.module")
    passes.add(exact_reciprocals, "exact-reciprocals")
    passes.add("cse, canonicalize")
    passes.run(module.operation)

example_inputs = (np.random.default_rng(0).standard_normal(SHAPE, np.float32),)

if __name__ == "__main__":
    print(before)
    print(module)
    results = []
    for each in (before, module):
        results.append(np.empty(SHAPE, np.float32))
        Compiled(each)("scaled", *example_inputs, results[-1])
    same = all((result == reference(*example_inputs)).all() for result in results)
    print(f"{exact_reciprocals.replaced} division replaced; the same bits as NumPy: {same}")
