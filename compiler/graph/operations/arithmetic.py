"""Arithmetic, transcendental functions and activations."""

from __future__ import annotations

from buddy.compiler.graph.operation import ElementwiseOp


class AddOp(ElementwiseOp):
    targets = ("add.Tensor", "add.Scalar", "add.default")


class SubOp(ElementwiseOp):
    targets = ("sub.Tensor", "sub.Scalar", "sub.default")


class RsubOp(ElementwiseOp):
    targets = ("rsub.Scalar", "rsub.Tensor")


class MulOp(ElementwiseOp):
    targets = ("mul.Tensor", "mul.Scalar", "mul.default")


class DivOp(ElementwiseOp):
    targets = ("div.Tensor", "div.Scalar", "div.default", "true_divide.Tensor")


class MaximumOp(ElementwiseOp):
    targets = ("maximum.default",)


class MinimumOp(ElementwiseOp):
    targets = ("minimum.default",)


class PowOp(ElementwiseOp):
    targets = ("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")


class NegOp(ElementwiseOp):
    targets = ("neg.default",)


class AbsOp(ElementwiseOp):
    targets = ("abs.default",)


class SquareOp(ElementwiseOp):
    targets = ("square.default",)


class ReciprocalOp(ElementwiseOp):
    targets = ("reciprocal.default",)


class SqrtOp(ElementwiseOp):
    targets = ("sqrt.default",)


class RsqrtOp(ElementwiseOp):
    targets = ("rsqrt.default",)


class ClampOp(ElementwiseOp):
    targets = ("clamp.default",)


class ClampMinOp(ElementwiseOp):
    targets = ("clamp_min.default",)


class ClampMaxOp(ElementwiseOp):
    targets = ("clamp_max.default",)


class FloorOp(ElementwiseOp):
    targets = ("floor.default",)


class CeilOp(ElementwiseOp):
    targets = ("ceil.default",)


class RoundOp(ElementwiseOp):
    targets = ("round.default",)


class TruncOp(ElementwiseOp):
    targets = ("trunc.default",)


class ExpOp(ElementwiseOp):
    targets = ("exp.default",)


class Exp2Op(ElementwiseOp):
    targets = ("exp2.default",)


class Expm1Op(ElementwiseOp):
    targets = ("expm1.default",)


class LogOp(ElementwiseOp):
    targets = ("log.default",)


class Log2Op(ElementwiseOp):
    targets = ("log2.default",)


class Log1pOp(ElementwiseOp):
    targets = ("log1p.default",)


class ErfOp(ElementwiseOp):
    targets = ("erf.default",)


class SinOp(ElementwiseOp):
    targets = ("sin.default",)


class CosOp(ElementwiseOp):
    targets = ("cos.default",)


class TanhOp(ElementwiseOp):
    targets = ("tanh.default",)


class SigmoidOp(ElementwiseOp):
    targets = ("sigmoid.default",)


class ReluOp(ElementwiseOp):
    targets = ("relu.default",)


class LeakyReluOp(ElementwiseOp):
    targets = ("leaky_relu.default",)


class HardtanhOp(ElementwiseOp):
    targets = ("hardtanh.default",)


class HardswishOp(ElementwiseOp):
    targets = ("hardswish.default",)


class HardsigmoidOp(ElementwiseOp):
    targets = ("hardsigmoid.default",)


class GeluOp(ElementwiseOp):
    targets = ("gelu.default",)


class SiluOp(ElementwiseOp):
    targets = ("silu.default",)
