"""Comparison, logic, choice and casts."""

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
    targets = ("bitwise_and.Tensor", "bitwise_and.Scalar")


class BitwiseOrOp(ElementwiseOp):
    targets = ("bitwise_or.Tensor", "bitwise_or.Scalar")


class BitwiseXorOp(ElementwiseOp):
    targets = ("bitwise_xor.Tensor", "bitwise_xor.Scalar")


class BitwiseNotOp(ElementwiseOp):
    targets = ("bitwise_not.default",)


class IsNanOp(ElementwiseOp):
    targets = ("isnan.default",)


class WhereOp(ElementwiseOp):
    targets = ("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")


class MaskedFillOp(ElementwiseOp):
    targets = ("masked_fill.Scalar", "masked_fill.Tensor")


class ConvertElementTypeOp(ElementwiseOp):
    targets = ("_to_copy.default", "convert_element_type.default")
