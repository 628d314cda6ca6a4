"""Finds the bytes, zero points and scales from which generics compute the values of an operand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import constant_of, defining_op
from buddy.compiler.passes.kernels.contraction import indexing_maps
from buddy.compiler.protocol.errors import BuddyError

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
            return self._argument(extension.operands[0], _EXTENSIONS[extension.name])
        return self._argument(value, _INT32)

    def scale_of(self, value: ir.Value) -> QuantisationParameter:
        """Returns the scale that `value` of the body is: a constant, rounded or not, or an element of an operand.

        Raises `UnchangedError` for another value.
        """
        rounding = self.op_of(value, "arith.truncf")
        constant = constant_of(value if rounding is None else rounding.operands[0])
        if isinstance(constant, ir.FloatAttr):
            return QuantisationParameter(constant.value, TensorDType.Float32)
        return self._argument(value, TensorDType.Float32)

    def _argument(self, value: ir.Value, dtype: TensorDType) -> QuantisationParameter:
        """Returns the operand of which `value` is an element; its dims are those of the first operand.

        Raises `UnchangedError` if `value` is not an element of another input, or depends on several dims.
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
