"""The element types that each TOSA op accepts: the tables of the TOSA 1.1 specification, including all extensions.

`tosa-validate` in the bindings checks the same tables; the tests run it on everything that this registry emits.
"""

from __future__ import annotations

from buddy.compiler.graph.types import TensorDType as T
from buddy.compiler.ops.utils import LoweringError

HALVES = (T.Float16, T.BFloat16)
FLOATS = (*HALVES, T.Float32)
INTEGERS = (T.Int32, T.Int64)
NUMBERS = (*FLOATS, *INTEGERS)
# TOSA's 8-bit numbers are signed; ops that only move bits accept PyTorch's unsigned bytes too.
BITS = (T.UInt8, T.Int8, T.Int16, *INTEGERS)
ANY = (T.Bool, *BITS, *FLOATS)

_BY_OP: dict[str, tuple[T, ...]] = {
    **dict.fromkeys(("add", "sub", "mul", "abs", "maximum", "minimum", "equal", "greater", "greater_equal"), NUMBERS),
    **dict.fromkeys(
        ("ceil", "floor", "exp", "log", "rsqrt", "reciprocal", "tanh", "sigmoid", "erf", "sin", "cos", "pow"), FLOATS
    ),
    **dict.fromkeys(("logical_and", "logical_or", "logical_xor", "logical_not", "reduce_any", "reduce_all"), (T.Bool,)),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"), BITS),
    **dict.fromkeys(("clamp", "max_pool2d"), (*FLOATS, T.Int8, T.Int16)),
    **dict.fromkeys(("reduce_max", "reduce_min"), (*NUMBERS, T.Int8, T.Int16)),
    **dict.fromkeys(("conv2d", "conv3d", "depthwise_conv2d", "avg_pool2d"), FLOATS),
    # On 8 and 16 bits it saturates, where in PyTorch the negative of the lowest number is itself.
    "negate": (*FLOATS, T.Int32),
    "intdiv": INTEGERS,
    "reduce_sum": NUMBERS,
    "reduce_product": FLOATS,
    "matmul": (*FLOATS, T.Int8),
    "argmax": (*FLOATS, T.Int8, T.Int16, T.Int32, T.Int64),
}  # fmt: skip


def require(op: str, dtype: T) -> None:
    """Raises `LoweringError` if `tosa.<op>` does not accept `dtype`; ops that only move elements accept all types."""
    if dtype not in _BY_OP.get(op, ANY):
        raise LoweringError(f"no {dtype.value} {op}")
