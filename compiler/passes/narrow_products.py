"""`narrow-products`: multiplies bytes instead of the numbers that they were converted to.

torch-mlir lowers products of quantised tensors in three ways. For ONNX's `MatMulInteger`, it widens the operands to 32
bits, subtracts zero points, and sums in 64 bits. `ConvInteger`, and products of tensors with one scale, become named
ops that subtract zero points from each element. With scales by channel, it dequantises both operands and multiplies
floats.

With zero points z and w, `sum((a - z) * (b - w)) = sum(a * b) - z * sum(b - w) - w * sum(a)`, where only the first sum
needs a product of both operands. The other terms are the corrections below. Arithmetic of 32 bits wraps around, so
intermediate results may overflow; the whole sum does not.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, ClassVar

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir, tensor
from buddy.compiler.mlir.walk import constant_of, defining_op, nested_ops
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.convolutions import ConvolutionSetup, SlidingWindow, convolve_padded
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.passes.base import MlirPass, PassContext, register
from buddy.compiler.passes.kernels.contraction import indexing_maps
from buddy.compiler.protocol.errors import BuddyError

# ---- bytes, zero points and scales of an operand ---------------------------------------------------------------------


_INT8 = TensorDType.Int8
_UINT8 = TensorDType.UInt8
_INT32 = TensorDType.Int32
# Ops that convert an integer to a wider one, or to a float, with the type of bytes that they read.
_EXTENSIONS = {"arith.extui": _UINT8, "arith.extsi": _INT8, "arith.uitofp": _UINT8, "arith.sitofp": _INT8}
_FROM_INTEGER = ("arith.uitofp", "arith.sitofp")


class UnchangedError(BuddyError):
    """A pass leaves an op as it is; the text is the reason."""


@dataclass(frozen=True)
class QuantisationParameter:
    """A scale or a zero point: a number, a value of a scalar type, or a tensor.

    The dims of a tensor are the dims `dims` of the operand that it belongs to.
    """

    value: Any
    dtype: TensorDType = _INT32
    dims: tuple[int, ...] = ()

    @property
    def is_tensor(self) -> bool:
        return isinstance(self.value, ir.Value) and isinstance(self.value.type, ir.RankedTensorType)


_NO_ZERO, _UNIT = QuantisationParameter(0), QuantisationParameter(1.0, TensorDType.Float32)


@dataclass(frozen=True)
class QuantisedTensor:
    """A tensor whose elements are `(value - zero) * scale`; `value` has 8 bits, signed or not as `dtype` says."""

    value: ir.Value
    dtype: TensorDType
    zero: QuantisationParameter = _NO_ZERO
    scale: QuantisationParameter = _UNIT

    @property
    def has_zero(self) -> bool:
        """True if the zero point is not the number 0."""
        return isinstance(self.zero.value, ir.Value) or self.zero.value != 0


def quantised_source(value: ir.Value) -> QuantisedTensor:
    """Returns the bytes that the generics before `value` convert. Raises `UnchangedError` if these are not known."""
    owner = defining_op(value)
    if owner is None or owner.name != "linalg.generic" or not _is_elementwise(owner):
        raise UnchangedError("an operand is not made of bytes")
    if (converted := _conversion(owner)) is not None:
        return converted
    body = _Body(owner)
    subtraction = body.op_of(body.result, "arith.subi")
    if subtraction is None or not body.is_input(subtraction.operands[0], 0):
        raise UnchangedError("an operand is not made of bytes")
    inner = quantised_source(owner.operands[0])
    if inner.has_zero or inner.scale != _UNIT:
        raise UnchangedError("an operand has two zero points")
    return replace(inner, zero=body.zero_point_of(subtraction.operands[1]))


def _conversion(owner: ir.Operation) -> QuantisedTensor | None:
    """Returns the operand of the generic `owner` as a quantised tensor, if the generic dequantises it.

    It must compute `convert(extend(byte) - zero) * scale`, where all steps but the first may be missing. Returns `None`
    for another generic.
    """
    source = owner.operands[0]
    if ir.RankedTensorType(source.type).element_type != ir.IntegerType.get_signless(8):
        return None
    body, scale, zero = _Body(owner), _UNIT, _NO_ZERO
    value = body.result
    product = body.op_of(value, "arith.mulf")
    if product is not None:
        value, scale = product.operands[0], body.scale_of(product.operands[1])
    conversion = body.op_of(value, *_FROM_INTEGER)
    if conversion is not None and not body.is_input(conversion.operands[0], 0):
        value = conversion.operands[0]
    subtraction = body.op_of(value, "arith.subi")
    if subtraction is not None:
        value, zero = subtraction.operands[0], body.zero_point_of(subtraction.operands[1])
    extension = body.op_of(value, *_EXTENSIONS)
    if extension is None or not body.is_input(extension.operands[0], 0):
        return None
    return QuantisedTensor(source, _EXTENSIONS[extension.name], zero, scale)


class _Body:
    """The scalar ops of a generic, which read constants, values from outside, and an element of each operand."""

    def __init__(self, owner: ir.Operation) -> None:
        self._owner, self._maps = owner, indexing_maps(owner)
        block = owner.regions[0].blocks[0]
        self._arguments = list(block.arguments)
        self._ops = [op.operation for op in block.operations]
        self.result: ir.Value = self._ops[-1].operands[0]

    def op_of(self, value: ir.Value, *names: str) -> ir.Operation | None:
        """Returns the op in the body that computes `value` if it has one of `names`."""
        owner = defining_op(value)
        return owner if owner is not None and owner in self._ops and owner.name in names else None

    def is_input(self, value: ir.Value, number: int) -> bool:
        """True if `value` is the element of operand `number`."""
        return bool(value == self._arguments[number])

    def zero_point_of(self, value: ir.Value) -> QuantisationParameter:
        """Returns the zero point that `value` of the body is: a constant, or an element of an operand, widened or not.

        Raises `UnchangedError` for another value.
        """
        constant = constant_of(value)
        if isinstance(constant, ir.IntegerAttr):
            return QuantisationParameter(int(constant.value))
        extension = self.op_of(value, "arith.extui", "arith.extsi")
        if extension is not None:
            return self._operand_parameter(extension.operands[0], _EXTENSIONS[extension.name])
        return self._operand_parameter(value, _INT32)

    def scale_of(self, value: ir.Value) -> QuantisationParameter:
        """Returns the scale that `value` of the body is: a constant, rounded or not, or an element of an operand.

        Raises `UnchangedError` for another value.
        """
        rounding = self.op_of(value, "arith.truncf")
        constant = constant_of(value if rounding is None else rounding.operands[0])
        if isinstance(constant, ir.FloatAttr):
            return QuantisationParameter(constant.value, TensorDType.Float32)
        return self._operand_parameter(value, TensorDType.Float32)

    def _operand_parameter(self, value: ir.Value, dtype: TensorDType) -> QuantisationParameter:
        """Returns the operand of which `value` is an element, as a parameter of the first operand.

        Raises `UnchangedError` if `value` is no element of an input after the first, or depends on several dims.
        """
        number = next((i for i, argument in enumerate(self._arguments) if argument == value), -1)
        expressions = list(self._maps[number].results)
        if not 0 < number < len(self._arguments) - 1 or not all(isinstance(e, ir.AffineDimExpr) for e in expressions):
            raise UnchangedError("a scale or a zero point is computed for each element")
        operand = self._owner.operands[number]
        if is_zero(operand):
            return _NO_ZERO
        if len(expressions) > 1:
            raise UnchangedError("scales or zero points differ along several dims")
        return QuantisationParameter(operand, dtype, tuple(ir.AffineDimExpr(e).position for e in expressions))


def _is_elementwise(owner: ir.Operation) -> bool:
    """True if a generic reads its first operand, and writes its result, in the order of its loops."""
    maps = indexing_maps(owner)
    are_identities = all(map_ == ir.AffineMap.get_identity(map_.n_dims) for map_ in (maps[0], maps[-1]))
    return len(owner.results) == 1 and are_identities


def is_zero(value: ir.Value) -> bool:
    """True if `value` is the number 0, or a constant tensor of zeros."""
    constant = constant_of(value)
    if isinstance(constant, ir.DenseElementsAttr) and constant.is_splat:
        constant = constant.get_splat_value()
    return isinstance(constant, (ir.IntegerAttr, ir.FloatAttr)) and constant.value == 0


def differs_along(dims: Sequence[int], *parameters: QuantisationParameter) -> bool:
    """True if one of the parameters has a value for each index of a dim in `dims`."""
    return any(dim in parameter.dims for parameter in parameters for dim in dims)


# ---- the pass --------------------------------------------------------------------------------------------------------


_F32 = TensorDType.Float32
# The indices of both operands and of the result of each op that is narrowed.
_PRODUCTS = {
    "linalg.matmul": ("mk", "kn", "mn"),
    "linalg.batch_matmul": ("bmk", "bkn", "bmn"),
    "linalg.quantized_matmul": ("mk", "kn", "mn"),
    "linalg.quantized_batch_matmul": ("bmk", "bkn", "bmn"),
}
_CONVOLUTIONS = ("linalg.conv_2d_nchw_fchw", "linalg.conv_2d_nchw_fchw_q")
# With more products, a sum of products of bytes may need more than 32 bits.
_MAX_TERMS = (2**31 - 1) // 255**2


@register
@dataclass(frozen=True)
class NarrowProducts(MlirPass):
    """Multiplies bytes, and sums the products in 32 bits, which is exact for at most 33,025 products.

    Results that are integers have the same bits. Those that are floats are the exact sums times both scales, where sums
    of dequantised floats are rounded at each step.
    """

    name: ClassVar[str] = "narrow-products"
    summary: ClassVar[str] = "multiply bytes instead of the integers or floats that they are converted to first"

    def run(self, root: ir.Operation, context: PassContext) -> None:
        rewrites: dict[str, Callable[[ir.Operation], ir.Value]] = {
            **dict.fromkeys(_PRODUCTS, _narrow_product), **dict.fromkeys(_CONVOLUTIONS, _narrow_convolution),
        }  # fmt: skip
        for op in [op for op in nested_ops(root) if op.name in rewrites and _is_static(op)]:
            try:
                with ir.InsertionPoint(op), op.location:
                    result = rewrites[op.name](op)
            except UnchangedError as reason:
                context.remark(self.name, op.location, f"{op.name} unchanged: {reason}")
                continue
            context.remark(self.name, op.location, f"{op.name} multiplies bytes, with sums of 32 bits")
            op.results[0].replace_all_uses_with(result)
            op.erase()


def _is_static(op: ir.Operation) -> bool:
    types = [value.type for value in (*op.operands[:2], *op.results)]
    return all(isinstance(type_, ir.RankedTensorType) and type_.has_static_shape for type_ in types)


def _operands(op: ir.Operation) -> list[QuantisedTensor]:
    """Returns the operands of a product as bytes, with their zero points if these are operands of the op.

    Raises `UnchangedError` if they are not known to be made of bytes.
    """
    operands = []
    for number in range(2):
        value = op.operands[number]
        if ir.RankedTensorType(value.type).element_type != ir.IntegerType.get_signless(8):
            operands.append(quantised_source(value))
        elif len(op.operands) == 5 and not is_zero(op.operands[2 + number]):
            operands.append(QuantisedTensor(value, _INT8, QuantisationParameter(op.operands[2 + number])))
        else:
            operands.append(QuantisedTensor(value, _INT8))
    return operands


def _check_terms(count: int) -> None:
    """Raises `UnchangedError` if sums of `count` products may need more than 32 bits."""
    if count > _MAX_TERMS:
        raise UnchangedError(f"sums of {count} products of bytes may need more than 32 bits")


# ---- products of matrices --------------------------------------------------------------------------------------------


def _narrow_product(op: ir.Operation) -> ir.Value:
    """Emits the product `op` on bytes; returns its result. Raises `UnchangedError` with the reason."""
    a_dims, b_dims, out_dims = _PRODUCTS[op.name]
    a, b = _operands(op)
    a_depth, b_depth = a_dims.index("k"), b_dims.index("k")
    if differs_along([a_depth], a.zero, a.scale) or differs_along([b_depth], b.zero, b.scale):
        raise UnchangedError("scales or zero points differ along the dim that it sums over")
    depth, shape = st.shape_of(a.value)[a_depth], list(op.results[0].type.shape)
    _check_terms(depth)
    unsigned = a.dtype.is_unsigned, b.dtype.is_unsigned
    sums = st.contract(a.value, b.value, a_dims, b_dims, out_dims, _INT32, unsigned=unsigned)
    zero_points = [_aligned_to_result(operand.zero, st.shape_of(operand.value)) for operand in (a, b)]
    # The factors of each correction, one after the other: a zero point, then sums of the other operand.
    corrections = []
    if a.has_zero:
        b_sums = _sums(b, [b_depth])
        if b.has_zero:
            factors = [QuantisationParameter(b_sums), zero_points[1]]
            sums_shape = st.shape_of(b_sums)
            b_sums = _pointwise(factors, sums_shape, _INT32, lambda total, zero: total - _widened(zero) * depth)
        corrections += [zero_points[0], QuantisationParameter(b_sums)]
    if b.has_zero:
        corrections += [zero_points[1], QuantisationParameter(_sums(a, [a_depth]))]
    scales = [_aligned_to_result(operand.scale, st.shape_of(operand.value)) for operand in (a, b)]
    return _scale_and_add(op, _subtract_corrections(sums, corrections, shape), scales)


def _sums(operand: QuantisedTensor, axes: Sequence[int]) -> ir.Value:
    """Returns the sums of the bytes over the dims `axes`, which remain with size 1."""
    return st.reduce(
        [(operand.value, operand.dtype)], st.shape_of(operand.value), list(axes), 0, _INT32,
        lambda x, total: total + cast(x, _INT32), keep=True,
    )  # fmt: skip


# ---- convolutions ----------------------------------------------------------------------------------------------------


def _narrow_convolution(op: ir.Operation) -> ir.Value:
    """Emits the convolution `op` on bytes; returns its result. Raises `UnchangedError` with the reason."""
    x, weights = _operands_of_convolution(op)
    shape, kernel = list(op.results[0].type.shape), list(st.shape_of(weights.value))
    if weights.has_zero:
        raise UnchangedError("its weights have a zero point other than 0")
    if x.zero.is_tensor or x.scale.is_tensor or differs_along([1, 2, 3], weights.scale):
        raise UnchangedError("scales or zero points differ along a dim that it sums over")
    _check_terms(prod(kernel[1:]))
    stride, dilation = (tuple(ir.DenseIntElementsAttr(op.attributes[name])) for name in ("strides", "dilations"))
    window = SlidingWindow(tuple(kernel[2:]), stride, (0, 0), dilation)
    sums = convolve_padded(x.value, weights.value, ConvolutionSetup(window, 1, x.dtype, weights.dtype, _INT32), shape)
    channels, corrections = [kernel[0], 1, 1], list[QuantisationParameter]()
    if x.has_zero:
        corrections = [x.zero, QuantisationParameter(st.reshape(_sums(weights, [1, 2, 3]), channels, _INT32))]
    return _scale_and_add(
        op, _subtract_corrections(sums, corrections, shape), [x.scale, _aligned_to_result(weights.scale, channels)]
    )


def _operands_of_convolution(op: ir.Operation) -> list[QuantisedTensor]:
    """Returns the operands as bytes. An image that is padded with zeros after its conversion is padded before it."""
    pad = defining_op(op.operands[0])
    if pad is None or pad.name != "tensor.pad" or len(op.operands) == 5:
        return _operands(op)
    body = pad.regions[0].blocks[0].operations
    if len(pad.operands) != 1 or len(body) != 1 or not is_zero(body[0].operands[0]):
        raise UnchangedError("its image is padded with other numbers than 0")
    x, weights = quantised_source(pad.operands[0]), quantised_source(op.operands[1])
    if isinstance(x.zero.value, ir.Value):
        raise UnchangedError("its image is padded with a zero point that is not a constant")
    sizes, starts = list(pad.results[0].type.shape), list(ir.DenseI64ArrayAttr(pad.attributes["static_low"]))
    filled = st.filled(x.zero.value, sizes, x.dtype)
    inner = list(st.shape_of(x.value))
    padded = tensor.insert_slice(x.value, filled, [], [], [], starts, inner, [1] * len(inner))
    return [replace(x, value=padded), weights]


# ---- results ---------------------------------------------------------------------------------------------------------


def _aligned_to_result(parameter: QuantisationParameter, sizes: Sequence[int]) -> QuantisationParameter:
    """Returns a parameter that broadcasts to the result, as the operand of shape `sizes` does."""
    if not parameter.is_tensor:
        return parameter
    shape = [size if dim in parameter.dims else 1 for dim, size in enumerate(sizes)]
    return replace(parameter, value=st.reshape(parameter.value, shape, parameter.dtype))


def _subtract_corrections(
    sums: ir.Value, corrections: Sequence[QuantisationParameter], shape: Sequence[int]
) -> ir.Value:
    """Returns `sums` less the product of each pair in `corrections`: a zero point, then sums of the other operand."""

    def subtract(total: Scalar, *factors: Scalar) -> Scalar:
        for zero, other_sums in zip(factors[::2], factors[1::2], strict=True):
            total = total - other_sums * _widened(zero)
        return total

    return _pointwise([QuantisationParameter(sums), *corrections], shape, _INT32, subtract) if corrections else sums


def _scale_and_add(op: ir.Operation, total: ir.Value, scales: Sequence[QuantisationParameter]) -> ir.Value:
    """Returns the result of `op`: `total` (32 bits), times both scales if the result has floats, plus the init operand.

    The last operand of `op` is the init.
    """
    result_type, init = ir.RankedTensorType(op.results[0].type), op.operands[len(op.operands) - 1]
    shape, element, fill = list(result_type.shape), result_type.element_type, defining_op(init)
    has_init = fill is None or fill.name != "linalg.fill" or not is_zero(fill.operands[0])
    if isinstance(element, ir.FloatType):
        inits = [QuantisationParameter(init, _F32)] if has_init else []

        def scale(total: Scalar, left: Scalar | float, right: Scalar | float, *inits: Scalar) -> Scalar:
            factor = right * left if isinstance(right, Scalar) else left * right
            value = cast(total, _F32) * factor
            return value + inits[0] if inits else value

        return _pointwise([QuantisationParameter(total), *scales, *inits], shape, _F32, scale)
    loops = list(range(len(shape)))

    def widen(total: ir.Value, out: ir.Value) -> list[ir.Value]:
        wide = total if total.type == element else arith.extsi(element, total)
        return [arith.addi(wide, out) if has_init else wide]

    if not has_init and ir.RankedTensorType(total.type).element_type == element:
        return total
    return st.generic([total], [loops], [init], [loops], [st.PARALLEL] * len(loops), widen)[0]


def _pointwise(
    operands: Sequence[QuantisationParameter], shape: Sequence[int], dtype: TensorDType, body: Callable[..., Scalar]
) -> ir.Value:
    """Emits `structured.pointwise` on `operands`: numbers, scalars, and at least one tensor.

    `body` gets for each operand its element, its scalar, or its number.
    """

    def scalar_body(*elements: Scalar) -> Scalar:
        tensor_elements = iter(elements)

        def value_of(operand: QuantisationParameter) -> Scalar | float:
            if operand.is_tensor:
                return next(tensor_elements)
            is_scalar = isinstance(operand.value, ir.Value)
            number: float = operand.value
            return Scalar(operand.value, operand.dtype) if is_scalar else number

        return body(*map(value_of, operands))

    tensors = [(operand.value, operand.dtype) for operand in operands if operand.is_tensor]
    return st.pointwise(tensors, shape, dtype, scalar_body)


def _widened(value: Scalar | int) -> Scalar | int:
    """Returns a zero point as a scalar of 32 bits; a number as it is."""
    return cast(value, _INT32) if isinstance(value, Scalar) else value
