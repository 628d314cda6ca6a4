"""Op classes of elementwise arithmetic, activations, comparison, logic, selection and casts."""

from __future__ import annotations

from buddy.compiler.graph.node import ElementwiseOp


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


class DivTensorModeOp(ElementwiseOp):
    targets = ("div.Tensor_mode", "div.Scalar_mode", "floor_divide.default", "floor_divide.Scalar")


class RemainderOp(ElementwiseOp):
    targets = ("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor")


class FmodOp(ElementwiseOp):
    targets = ("fmod.Tensor", "fmod.Scalar")


class GcdOp(ElementwiseOp):
    targets = ("gcd.default",)


class LcmOp(ElementwiseOp):
    targets = ("lcm.default",)


class MaximumOp(ElementwiseOp):
    targets = ("maximum.default",)


class MinimumOp(ElementwiseOp):
    targets = ("minimum.default",)


class FmaxOp(ElementwiseOp):
    targets = ("fmax.default",)


class FminOp(ElementwiseOp):
    targets = ("fmin.default",)


class PowOp(ElementwiseOp):
    targets = ("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")


class NegOp(ElementwiseOp):
    targets = ("neg.default", "_neg_view.default")


class AbsOp(ElementwiseOp):
    targets = ("abs.default",)


class SignOp(ElementwiseOp):
    targets = ("sign.default", "sgn.default")


class CopysignOp(ElementwiseOp):
    targets = ("copysign.Tensor", "copysign.Scalar")


class NextafterOp(ElementwiseOp):
    targets = ("nextafter.default",)


class HypotOp(ElementwiseOp):
    targets = ("hypot.default",)


class LdexpOp(ElementwiseOp):
    targets = ("ldexp.Tensor",)


class FrexpOp(ElementwiseOp):
    targets = ("frexp.Tensor",)


class AngleOp(ElementwiseOp):
    targets = ("angle.default",)


class SquareOp(ElementwiseOp):
    targets = ("square.default",)


class ReciprocalOp(ElementwiseOp):
    targets = ("reciprocal.default",)


class SqrtOp(ElementwiseOp):
    targets = ("sqrt.default",)


class RsqrtOp(ElementwiseOp):
    targets = ("rsqrt.default",)


class ClampOp(ElementwiseOp):
    targets = ("clamp.default", "clamp.Tensor")


class ClampMinOp(ElementwiseOp):
    targets = ("clamp_min.default",)


class ClampMaxOp(ElementwiseOp):
    targets = ("clamp_max.default",)


class FloorOp(ElementwiseOp):
    targets = ("floor.default",)


class CeilOp(ElementwiseOp):
    targets = ("ceil.default",)


class RoundOp(ElementwiseOp):
    targets = ("round.default", "round.decimals")


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


class Log10Op(ElementwiseOp):
    targets = ("log10.default",)


class TanOp(ElementwiseOp):
    targets = ("tan.default",)


class AsinOp(ElementwiseOp):
    targets = ("asin.default",)


class AcosOp(ElementwiseOp):
    targets = ("acos.default",)


class AtanOp(ElementwiseOp):
    targets = ("atan.default",)


class SinhOp(ElementwiseOp):
    targets = ("sinh.default",)


class CoshOp(ElementwiseOp):
    targets = ("cosh.default",)


class AsinhOp(ElementwiseOp):
    targets = ("asinh.default",)


class AcoshOp(ElementwiseOp):
    targets = ("acosh.default",)


class AtanhOp(ElementwiseOp):
    targets = ("atanh.default",)


class Atan2Op(ElementwiseOp):
    targets = ("atan2.default",)


class ErfcOp(ElementwiseOp):
    targets = ("erfc.default",)


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


class EluOp(ElementwiseOp):
    targets = ("elu.default",)


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
