"""The math registry: transcendental functions as ops of the `math` dialect on whole tensors."""

from __future__ import annotations

from buddy.compiler.graph.node import Op
from buddy.compiler.mlir.bindings import ir, math
from buddy.compiler.ops.utils import LoweringError, Registry, SymbolTable, value_of

ops_registry = Registry()


def _register_unary(name: str, op_name: str) -> None:
    """Registers the `math` op `op_name` as the lowering of the op class `name`."""

    @ops_registry.lowering(name)
    def lower(node: Op, symbol_table: SymbolTable) -> ir.Value:
        dtype = node.tensor_meta.dtype
        if not dtype.is_float or node.args[0].tensor_meta.dtype is not dtype:
            raise LoweringError(f"math.{op_name} needs the same float type for operand and result")
        if len(node.args) > 1 or any(node.kwargs.values()):
            raise LoweringError(f"math.{op_name} takes only the operand, no argument such as `decimals`")
        return getattr(math, op_name)(value_of(node.args[0], symbol_table))


for _name, _op in {
    "ExpOp": "exp", "Exp2Op": "exp2", "Expm1Op": "expm1", "LogOp": "log", "Log2Op": "log2", "Log1pOp": "log1p",
    "ErfOp": "erf", "TanhOp": "tanh", "SinOp": "sin", "CosOp": "cos", "SqrtOp": "sqrt", "RsqrtOp": "rsqrt",
    "AbsOp": "absf", "FloorOp": "floor", "CeilOp": "ceil", "RoundOp": "roundeven", "TruncOp": "trunc",
}.items():  # fmt: skip
    _register_unary(_name, _op)
