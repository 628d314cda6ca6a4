"""`TosaTensor`: Python expressions on it emit TOSA ops, after a check that the op accepts the element type.

The pass `tosa-validate` checks the same types; the tests run this pass on all IR that the TOSA registry emits.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Union

import numpy as np

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.graph.types import TensorDType as T
from buddy.compiler.mlir.bindings import ir, tosa
from buddy.compiler.ops.utils import LoweringError, constant_attribute, tensor_type

HALVES = (T.Float16, T.BFloat16)
FLOATS = (*HALVES, T.Float32)
INTEGERS = (T.Int32, T.Int64)
NUMBERS = (*FLOATS, *INTEGERS)
# TOSA's 8-bit integers are signed; ops that only move or combine bits also accept PyTorch's unsigned bytes.
BITS = (T.UInt8, T.Int8, T.Int16, *INTEGERS)
ANY = (T.Bool, *BITS, *FLOATS)

# The element types that each op accepts; an op that is not listed accepts `ANY`.
_ACCEPTED_TYPES: dict[str, tuple[T, ...]] = {
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
    """Raises `LoweringError` if `tosa.<op>` does not accept `dtype`."""
    if dtype not in _ACCEPTED_TYPES.get(op, ANY):
        raise LoweringError(f"no {dtype.value} {op}")


Number = bool | int | float
Operand = Union["TosaTensor", Number]


@dataclass(frozen=True, eq=False)
class TosaTensor:
    """An MLIR tensor with its element type, which also has the signedness.

    Python operators emit TOSA ops on tensors of the same rank, and broadcast unit dims.
    """

    value: ir.Value
    dtype: TensorDType

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(ir.RankedTensorType(self.value.type).shape)

    def like(self, operand: Operand) -> TosaTensor:
        """Returns `operand` as a tensor of this rank and element type."""
        if isinstance(operand, TosaTensor):
            return cast(operand, self.dtype)
        return splat(operand, [1] * len(self.shape), self.dtype)

    def __add__(self, other: Operand) -> TosaTensor:
        return binary("add", self, other)

    def __sub__(self, other: Operand) -> TosaTensor:
        return binary("sub", self, other)

    def __mul__(self, other: Operand) -> TosaTensor:
        return binary("mul", self, other)

    def __radd__(self, other: Operand) -> TosaTensor:
        return binary("add", self.like(other), self)

    def __rsub__(self, other: Operand) -> TosaTensor:
        return binary("sub", self.like(other), self)

    def __rmul__(self, other: Operand) -> TosaTensor:
        return binary("mul", self.like(other), self)

    def __neg__(self) -> TosaTensor:
        if self.dtype is TensorDType.Int64:
            # The bindings' passes lower `tosa.negate` of i64 to invalid IR.
            return self.like(0) - self
        require("negate", self.dtype)
        zero = splat(0, [1], self.dtype).value
        return TosaTensor(tosa.negate(self.value.type, self.value, zero, zero), self.dtype)

    def __gt__(self, other: Operand) -> TosaTensor:
        return binary("greater", self, other)

    def __ge__(self, other: Operand) -> TosaTensor:
        return binary("greater_equal", self, other)

    def __lt__(self, other: Operand) -> TosaTensor:
        return binary("greater", self.like(other), self)

    def __le__(self, other: Operand) -> TosaTensor:
        return binary("greater_equal", self.like(other), self)


# ---- constants -------------------------------------------------------------------------------------------------------


def splat(value: Number, shape: Sequence[int], dtype: TensorDType) -> TosaTensor:
    """Returns a constant tensor whose elements are all `value`."""
    require("const", dtype)
    result_type = tensor_type(shape, dtype)
    values = ir.DenseElementsAttr.get_splat(result_type, constant_attribute(value, dtype))
    return TosaTensor(tosa.const(values, results=[result_type]), dtype)


def dense(values: Sequence[Number], shape: Sequence[int], dtype: TensorDType) -> TosaTensor:
    """Returns a constant tensor of row-major `values`."""
    require("const", dtype)
    result_type = tensor_type(shape, dtype)
    attributes = [constant_attribute(value, dtype) for value in values]
    return TosaTensor(tosa.const(ir.DenseElementsAttr.get(attributes, result_type), results=[result_type]), dtype)


def shape_value(sizes: Sequence[int]) -> ir.Value:
    """Returns a `tosa.const_shape`, which ops take as an operand for sizes, starts or multiples."""
    shape_type = ir.Type.parse(f"!tosa.shape<{len(sizes)}>")
    values = np.array(sizes, dtype=np.int64)
    return tosa.const_shape(shape_type, ir.DenseIntElementsAttr.get(values, type=ir.IndexType.get()))


def is_exact(value: Number, dtype: TensorDType) -> bool:
    """True if the 16-bit float type `dtype` represents `value` exactly."""
    if dtype is TensorDType.Float16:
        # NumPy warns of an overflow beyond 65504, the largest float16.
        return bool(np.isnan(value)) or float(np.float16(np.clip(value, -65504, 65504))) == value or np.isinf(value)
    # A bfloat16 is the upper half of an f32.
    bits = struct.unpack("<I", struct.pack("<f", float(np.float32(value))))[0]
    return bool(np.isnan(value)) or (float(np.float32(value)) == value and bits & 0xFFFF == 0)


def round_to(value: Number, dtype: TensorDType) -> Number:
    """Rounds `value` to the 16-bit float type `dtype`, ties to even."""
    if dtype is TensorDType.Float16:
        with np.errstate(over="ignore"):
            return float(np.float16(value))
    bits = struct.unpack("<I", np.float32(value).tobytes())[0]
    if not np.isfinite(np.float32(value)):
        return value
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return float(struct.unpack("<f", struct.pack("<I", bits))[0])


# ---- element-wise ----------------------------------------------------------------------------------------------------

# Ops that return bools.
_COMPARISONS = ("equal", "greater", "greater_equal")


def binary(op: str, a: TosaTensor, other: Operand) -> TosaTensor:
    """Emits `tosa.<op>` on two tensors of the same rank and type, or on a tensor and a number."""
    b = a.like(other)
    require(op, a.dtype)
    shape = broadcast_shape(a.shape, b.shape)
    dtype = TensorDType.Bool if op in _COMPARISONS else a.dtype
    result_type = tensor_type(shape, dtype)
    if op == "equal":
        return TosaTensor(tosa.equal(a.value, b.value, results=[result_type]), dtype)
    # The third operand of `tosa.mul` is a shift.
    shift = [splat(0, [1], TensorDType.Int8).value] if op == "mul" else []
    return TosaTensor(getattr(tosa, op)(result_type, a.value, b.value, *shift), dtype)


def broadcast_shape(a: Sequence[int], b: Sequence[int]) -> list[int]:
    """Returns the broadcast shape of two shapes of the same rank."""
    return [y if x == 1 else x for x, y in zip(a, b, strict=True)]


def unary(op: str, x: TosaTensor) -> TosaTensor:
    """Emits `tosa.<op>`, whose result has the type of `x`."""
    require(op, x.dtype)
    return TosaTensor(getattr(tosa, op)(x.value.type, x.value), x.dtype)


def clamp(x: TosaTensor, low: Number | None, high: Number | None) -> TosaTensor:
    """Returns `min(max(x, low), high)`; NaN stays NaN. Emits one `tosa.clamp` if the type and the bounds allow it."""
    if x.dtype.is_float:
        low, high = -np.inf if low is None else low, np.inf if high is None else high
        if low <= high:
            require("clamp", x.dtype)
            bounds = constant_attribute(low, x.dtype), constant_attribute(high, x.dtype)
            return TosaTensor(tosa.clamp(x.value.type, x.value, *bounds), x.dtype)
    x = x if low is None else binary("maximum", x, low)
    return x if high is None else binary("minimum", x, high)


def select(condition: TosaTensor, if_true: TosaTensor, if_false: TosaTensor) -> TosaTensor:
    """Returns the elements of `if_true` where `condition` holds, else those of `if_false`; all have the same rank."""
    dtype = if_true.dtype
    require("select", dtype)
    shape = broadcast_shape(condition.shape, broadcast_shape(if_true.shape, if_false.shape))
    return TosaTensor(tosa.select(tensor_type(shape, dtype), condition.value, if_true.value, if_false.value), dtype)


def logical_not(x: TosaTensor) -> TosaTensor:
    """Returns the negation of bools."""
    return unary("logical_not", x)


def is_equal(x: TosaTensor, other: Operand) -> TosaTensor:
    """Compares for equality; NaN equals no number. Compares bools by xor, because `tosa.equal` takes only numbers."""
    if x.dtype is TensorDType.Bool:
        return logical_not(binary("logical_xor", x, other))
    return binary("equal", x, other)


def truncate(x: TosaTensor) -> TosaTensor:
    """Rounds towards zero; keeps the sign of zero, infinities and NaN."""
    return select(x < 0, unary("ceil", x), unary("floor", x))


# ---- casts -----------------------------------------------------------------------------------------------------------


def cast(x: TosaTensor, dtype: TensorDType) -> TosaTensor:
    """Casts `x` with PyTorch's semantics, by one or several `tosa.cast`.

    Raises `LoweringError` for a cast from or to f64 or a complex type, and for one between a float type and i64.
    """
    if x.dtype is dtype:
        return x
    if TensorDType.Float64 in (x.dtype, dtype) or {x.dtype, dtype} & {TensorDType.Complex64, TensorDType.Complex128}:
        raise LoweringError(f"no {x.dtype.value} to {dtype.value} cast")
    if x.dtype is TensorDType.UInt8 and dtype is not TensorDType.Bool:
        return cast(_bytes_to_i32(x), dtype)
    if TensorDType.Int64 in (x.dtype, dtype) and (x.dtype.is_float or dtype.is_float):
        raise LoweringError(f"no {x.dtype.value} to {dtype.value} cast")
    intermediate = _intermediate_type(x.dtype, dtype)
    return _direct_cast(x, dtype) if intermediate is None else cast(cast(x, intermediate), dtype)


def _intermediate_type(old: TensorDType, new: TensorDType) -> TensorDType | None:
    """Returns the intermediate type of a cast that `tosa.cast` does not do in one step; `None` if it does."""
    through_f32 = (*HALVES, TensorDType.Bool)
    if (old in HALVES and new in through_f32) or (old in through_f32 and new in HALVES):
        return TensorDType.Float32
    narrow = (TensorDType.UInt8, TensorDType.Int8, TensorDType.Int16)
    # Floats are cast to narrow integers through i32, because `tosa.cast` saturates where PyTorch keeps the low bits.
    if (old.is_float and new in narrow) or (old in narrow and new is TensorDType.Int64):
        return TensorDType.Int32
    if old is TensorDType.Int64 and new in narrow:
        return TensorDType.Int32
    return None


def _direct_cast(x: TosaTensor, dtype: TensorDType) -> TosaTensor:
    """Casts by one `tosa.cast`, except that floats become integers rounded towards zero."""
    if x.dtype.is_float and dtype.is_integer:
        x = truncate(x)
    if {x.dtype, dtype} == {TensorDType.UInt8, TensorDType.Int8}:
        return TosaTensor(x.value, dtype)
    return TosaTensor(tosa.cast(tensor_type(x.shape, dtype), x.value), dtype)


def _bytes_to_i32(x: TosaTensor) -> TosaTensor:
    """Casts unsigned bytes to i32; clears the upper bits, because TOSA sign-extends."""
    wide = TosaTensor(tosa.cast(tensor_type(x.shape, TensorDType.Int32), x.value), TensorDType.Int32)
    return binary("bitwise_and", wide, 255)


def widen(x: TosaTensor) -> TosaTensor:
    """Casts 16-bit floats to f32, for sequences of ops that compute in f32 and round once, as in PyTorch."""
    return cast(x, TensorDType.Float32) if x.dtype in HALVES else x


# ---- shapes ----------------------------------------------------------------------------------------------------------


def reshape(x: TosaTensor, sizes: Sequence[int]) -> TosaTensor:
    """Returns `x` in the shape `sizes`, with the elements in row-major order."""
    require("reshape", x.dtype)
    if x.shape == tuple(sizes):
        return x
    return TosaTensor(tosa.reshape(x.value, shape_value(sizes), results=[tensor_type(sizes, x.dtype)]), x.dtype)


def transpose(x: TosaTensor, order: Sequence[int]) -> TosaTensor:
    """Transposes: result dim `i` is dim `order[i]` of `x`."""
    require("transpose", x.dtype)
    if list(order) == sorted(order):
        return x
    result_type = tensor_type([x.shape[dim] for dim in order], x.dtype)
    return TosaTensor(tosa.transpose(result_type, x.value, ir.DenseI32ArrayAttr.get(list(order))), x.dtype)


def expand_to(x: TosaTensor, shape: Sequence[int]) -> TosaTensor:
    """Returns `x` broadcast to `shape`: adds leading dims, and repeats unit dims."""
    x = reshape(x, [1] * (len(shape) - len(x.shape)) + list(x.shape))
    return tile(x, [new // old for new, old in zip(shape, x.shape, strict=True)])


def tile(x: TosaTensor, multiples: Sequence[int]) -> TosaTensor:
    """Returns `x` repeated `multiples[i]` times along each dim `i`."""
    require("tile", x.dtype)
    if all(multiple == 1 for multiple in multiples):
        return x
    result_type = tensor_type([size * multiple for size, multiple in zip(x.shape, multiples, strict=True)], x.dtype)
    return TosaTensor(tosa.tile(result_type, x.value, shape_value(multiples)), x.dtype)


def slice_(x: TosaTensor, starts: Sequence[int], sizes: Sequence[int]) -> TosaTensor:
    """Returns the slice of `x` that begins at index `starts[i]` of each dim `i`."""
    require("slice", x.dtype)
    if x.shape == tuple(sizes):
        return x
    result_type = tensor_type(sizes, x.dtype)
    return TosaTensor(tosa.slice(result_type, x.value, shape_value(starts), shape_value(sizes)), x.dtype)


def slice_dim(x: TosaTensor, dim: int, start: int, size: int) -> TosaTensor:
    """Returns the slice of `size` elements of one dim from `start` on."""
    starts, sizes = [0] * len(x.shape), list(x.shape)
    starts[dim], sizes[dim] = start, size
    return slice_(x, starts, sizes)


def pad(x: TosaTensor, before: Sequence[int], after: Sequence[int], fill: Number) -> TosaTensor:
    """Returns `x` with `before[i]` and `after[i]` elements `fill` added at the ends of each dim `i`."""
    require("pad", x.dtype)
    if not any(before) and not any(after):
        return x
    result_type = tensor_type([b + n + a for b, n, a in zip(before, x.shape, after, strict=True)], x.dtype)
    pairs = [n for pair in zip(before, after, strict=True) for n in pair]
    return TosaTensor(tosa.pad(result_type, x.value, shape_value(pairs), splat(fill, [1], x.dtype).value), x.dtype)


def concatenate(tensors: Sequence[TosaTensor], dim: int) -> TosaTensor:
    """Concatenates tensors, none of which is empty, along `dim`."""
    first = tensors[0]
    require("concat", first.dtype)
    if len(tensors) == 1:
        return first
    shape = list(first.shape)
    shape[dim] = sum(tensor.shape[dim] for tensor in tensors)
    values = [tensor.value for tensor in tensors]
    return TosaTensor(tosa.concat(values, axis_attribute(dim), results=[tensor_type(shape, first.dtype)]), first.dtype)


def axis_attribute(axis: int) -> ir.Attribute:
    """Returns the attribute by which TOSA ops take an axis."""
    return ir.IntegerAttr.get(ir.IntegerType.get_signless(32), axis)


# ---- reductions, products, gathers -----------------------------------------------------------------------------------


def reduce(op: str, x: TosaTensor, axes: Sequence[int]) -> TosaTensor:
    """Emits `tosa.<op>` for one axis after another; the axes remain as unit dims."""
    require(op, x.dtype)
    for axis in axes:
        shape = [1 if i == axis else size for i, size in enumerate(x.shape)]
        x = TosaTensor(getattr(tosa, op)(x.value, axis_attribute(axis), results=[tensor_type(shape, x.dtype)]), x.dtype)
    return x


def matmul(a: TosaTensor, b: TosaTensor) -> TosaTensor:
    """Returns `a @ b` of [batch, rows, depth] and [batch, depth, columns], in the accumulator type.

    The accumulator type is f32, or i32 for 8-bit integers.
    """
    require("matmul", a.dtype)
    (batch, rows, _), columns = a.shape, b.shape[2]
    zero = splat(0, [1], a.dtype).value
    accumulator = TensorDType.Float32 if a.dtype.is_float else TensorDType.Int32
    result_type = tensor_type([batch, rows, columns], accumulator)
    return TosaTensor(tosa.matmul(result_type, a.value, b.value, zero, zero), accumulator)


def gather(values: TosaTensor, indices: TosaTensor) -> TosaTensor:
    """Returns `result[n, w, c] = values[n, indices[n, w], c]`; indices are i32 or i64 and count from the front."""
    require("gather", values.dtype)
    if indices.dtype not in (TensorDType.Int32, TensorDType.Int64):
        indices = cast(indices, TensorDType.Int32)
    if values.dtype is TensorDType.Int64:
        indices = cast(indices, TensorDType.Int64)
    result_type = tensor_type([values.shape[0], indices.shape[1], values.shape[2]], values.dtype)
    return TosaTensor(tosa.gather(result_type, values.value, indices.value), values.dtype)
