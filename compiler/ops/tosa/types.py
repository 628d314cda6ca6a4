"""The element types that each TOSA op accepts, from the tables of the TOSA 1.1 specification with all extensions.

`tosa-validate` in the bindings checks the same tables; the tests run it on all IR that this registry emits.
"""

from __future__ import annotations

from buddy.compiler.graph.types import TensorDType as T
from buddy.compiler.ops.utils import LoweringError

HALVES = (T.Float16, T.BFloat16)
FLOATS = (*HALVES, T.Float32)
INTEGERS = (T.Int32, T.Int64)
NUMBERS = (*FLOATS, *INTEGERS)
# TOSA's 8-bit integers are signed; ops that only move or combine bits accept PyTorch's unsigned bytes too.
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
    # Not i8 and i16, for which TOSA saturates: in PyTorch the negative of the lowest integer is itself.
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
