"""Comparisons, logical and bitwise ops, selection by a mask, and casts."""

from __future__ import annotations

from buddy.compiler.graph.operation import ElementwiseOp


class EqualOp(ElementwiseOp):
    targets = ("eq.Tensor", "eq.Scalar")


class NeOp(ElementwiseOp):
    targets = ("ne.Tensor", "ne.Scalar")


class LtOp(ElementwiseOp):
    targets = ("lt.Tensor", "lt.Scalar")


class LeOp(ElementwiseOp):
    targets = ("le.Tensor", "le.Scalar")


class GtOp(ElementwiseOp):
    targets = ("gt.Tensor", "gt.Scalar")


class GeOp(ElementwiseOp):
    targets = ("ge.Tensor", "ge.Scalar")


class LogicalAndOp(ElementwiseOp):
    targets = ("logical_and.default",)


class LogicalOrOp(ElementwiseOp):
    targets = ("logical_or.default",)


class LogicalXorOp(ElementwiseOp):
    targets = ("logical_xor.default",)


class LogicalNotOp(ElementwiseOp):
    targets = ("logical_not.default",)


class BitwiseAndOp(ElementwiseOp):
    targets = ("bitwise_and.Tensor", "bitwise_and.Scalar", "bitwise_and.Scalar_Tensor")


class BitwiseOrOp(ElementwiseOp):
    targets = ("bitwise_or.Tensor", "bitwise_or.Scalar", "bitwise_or.Scalar_Tensor")


class BitwiseXorOp(ElementwiseOp):
    targets = ("bitwise_xor.Tensor", "bitwise_xor.Scalar", "bitwise_xor.Scalar_Tensor")


class BitwiseNotOp(ElementwiseOp):
    targets = ("bitwise_not.default",)


class BitwiseLeftShiftOp(ElementwiseOp):
    targets = (
        "bitwise_left_shift.Tensor",
        "bitwise_left_shift.Tensor_Scalar",
        "bitwise_left_shift.Scalar_Tensor",
        "__lshift__.Tensor",
        "__lshift__.Scalar",
    )


class BitwiseRightShiftOp(ElementwiseOp):
    targets = (
        "bitwise_right_shift.Tensor",
        "bitwise_right_shift.Tensor_Scalar",
        "bitwise_right_shift.Scalar_Tensor",
        "__rshift__.Tensor",
        "__rshift__.Scalar",
    )


class IsNanOp(ElementwiseOp):
    targets = ("isnan.default",)


class IsInfOp(ElementwiseOp):
    targets = ("isinf.default",)


class SignbitOp(ElementwiseOp):
    targets = ("signbit.default",)


class WhereOp(ElementwiseOp):
    targets = ("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")


class MaskedFillOp(ElementwiseOp):
    targets = ("masked_fill.Scalar", "masked_fill.Tensor")


class ConvertElementTypeOp(ElementwiseOp):
    targets = ("_to_copy.default", "convert_element_type.default")
