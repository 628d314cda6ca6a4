"""A module built by hand with the builders of MLIR's Python bindings: a layer, relu(x @ weight + bias), on tensors.

As a script it runs the layer and compares it with NumPy. `buddy-tui samples/bindings/build_module.py` opens `module`
at the phase that it is at.
"""

import numpy as np
from mlir.dialects import arith, func, linalg, tensor
from running import Compiled

from mlir import ir

ROWS, DEPTH, COLUMNS = 16, 32, 8


def build() -> ir.Module:
    """Ops created inside `with` go to the current insertion point, with the current location."""
    f32 = ir.F32Type.get()
    shapes = [ROWS, DEPTH], [DEPTH, COLUMNS], [COLUMNS]
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):

        @func.FuncOp.from_py_func(*(ir.RankedTensorType.get(shape, f32) for shape in shapes))
        def layer(x: ir.Value, weight: ir.Value, bias: ir.Value) -> ir.Value:
            zero = arith.constant(f32, 0.0)
            # A product adds to its output, so the output starts with zeros.
            zeros = linalg.fill(zero, outs=[tensor.empty([ROWS, COLUMNS], f32)])
            product = linalg.matmul(x, weight, outs=[zeros])
            return biased_relu(product, bias, zero)

    return module


def biased_relu(product: ir.Value, bias: ir.Value, zero: ir.Value) -> ir.Value:
    """One generic op: its maps say which element of each operand the iteration (i, j) reads and writes."""
    i, j = ir.AffineDimExpr.get(0), ir.AffineDimExpr.get(1)
    every, by_column = ir.AffineMap.get(2, 0, [i, j]), ir.AffineMap.get(2, 0, [j])
    result = tensor.empty([ROWS, COLUMNS], ir.F32Type.get())

    @linalg.generic([product, bias], [result], [every, by_column, every], ["parallel"] * 2)
    def body(element: ir.Value, offset: ir.Value, _old: ir.Value) -> ir.Value:
        return arith.maximumf(arith.addf(element, offset), zero)

    return body


def reference(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    return np.maximum(x @ weight + bias, 0)


with ir.Context(), ir.Location.unknown():
    module = build()

random = np.random.default_rng(0)
example_inputs = tuple(
    random.standard_normal(shape, np.float32) for shape in ((ROWS, DEPTH), (DEPTH, COLUMNS), (COLUMNS,))
)

if __name__ == "__main__":
    print(module)
    result = np.empty((ROWS, COLUMNS), np.float32)
    Compiled(module)("layer", *example_inputs, result)
    print("largest difference from NumPy:", abs(result - reference(*example_inputs)).max())
