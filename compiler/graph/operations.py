"""The op classes, each with the ATen and prims targets that mean it, under the names that Buddy-MLIR scripts use."""

from __future__ import annotations

from buddy.compiler.graph.operation import EagerOp, ElementwiseOp, Op, OpType, ReduceOp, ReshapeFamilyOp

# ---- arithmetic ------------------------------------------------------------------------------------------------------


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


# ---- transcendental functions and activations ------------------------------------------------------------------------


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


# ---- comparison, logic, choice, casts --------------------------------------------------------------------------------


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


# ---- contractions and what is built of them --------------------------------------------------------------------------


class MatmulOp(Op):
    targets = ("mm.default",)


class IntMatmulOp(Op):
    targets = ("_int_mm.default",)


class AddMMOp(Op):
    targets = ("addmm.default",)


class TransposeMatmulFusedOp(Op):
    """`a bᵀ` of [m, k] and [n, k]."""


class TransposeAddMMFusedOp(Op):
    """`a bᵀ + c` of [m, k], [n, k] and [n]."""


class CallExternalOp(EagerOp):
    """A call of the library that torch has for the node's target; a graph pass has put it there."""

    @property
    def call_func_name(self) -> str:
        return self.target


class BatchMatmulOp(Op):
    targets = ("bmm.default",)


class BaddbmmOp(Op):
    targets = ("baddbmm.default",)


class MatVecOp(Op):
    targets = ("mv.default",)


class DotOp(Op):
    targets = ("dot.default",)


class ScaledDotProductFlashAttentionForCpuOp(Op):
    targets = ("_scaled_dot_product_flash_attention_for_cpu.default",)


class FlashAttentionForCpuPrefillOp(Op):
    """`softmax(scale * q kᵀ + mask) v`, block by block of keys; a row that is masked whole gives zeros."""

    targets = ("scaled_dot_product_attention.default",)


class GQAAttentionFusedOp(Op):
    """The same where several heads of q read one head of k and v, which are not repeated for them."""


class MaskedSoftmaxAttentionOp(Op):
    """The same as its parts have it: a row that is masked whole gives NaN (zeros if it is sent to eager by hand)."""


class Conv2dOp(Op):
    targets = ("convolution.default",)


class MaxPool2dWithIndicesOp(Op):
    targets = ("max_pool2d_with_indices.default",)


class MaxPool2dOp(Op):
    targets = ("max_pool2d.default",)


class AvgPool2dOp(Op):
    targets = ("avg_pool2d.default",)


class AdaptiveAvgPool2dOp(Op):
    targets = ("_adaptive_avg_pool2d.default",)


# ---- reductions and normalisations -----------------------------------------------------------------------------------


class SumDimOp(ReduceOp):
    targets = ("sum.dim_IntList", "sum.default")


class MeanOp(ReduceOp):
    targets = ("mean.dim", "mean.default")


class AmaxOp(ReduceOp):
    targets = ("amax.default",)


class AminOp(ReduceOp):
    targets = ("amin.default",)


class VarOp(ReduceOp):
    targets = ("var.correction",)


class CumsumOp(ReduceOp):
    targets = ("cumsum.default",)


class VarMeanOp(ReduceOp):
    targets = ("var_mean.correction",)


class SoftmaxOp(ReduceOp):
    targets = ("_softmax.default",)


class LogSoftmaxOp(ReduceOp):
    targets = ("_log_softmax.default",)


class NativeLayerNormOp(ReduceOp):
    targets = ("native_layer_norm.default",)


class BatchNormOp(ReduceOp):
    targets = ("_native_batch_norm_legit_no_training.default",)


# ---- shapes and views ------------------------------------------------------------------------------------------------


class ViewOp(ReshapeFamilyOp):
    targets = ("view.default", "_unsafe_view.default")


class ReshapeOp(ReshapeFamilyOp):
    targets = ("reshape.default",)


class UnsqueezeOp(ReshapeFamilyOp):
    targets = ("unsqueeze.default",)


class SqueezeOp(ReshapeFamilyOp):
    targets = ("squeeze.dim", "squeeze.dims", "squeeze.default")


class TOp(ReshapeFamilyOp):
    targets = ("t.default",)


class TransposeOp(ReshapeFamilyOp):
    targets = ("transpose.int",)


class PermuteOp(ReshapeFamilyOp):
    targets = ("permute.default",)


class CloneOp(ReshapeFamilyOp):
    targets = ("clone.default", "contiguous.default")


class AliasOp(ReshapeFamilyOp):
    targets = ("alias.default", "detach.default", "lift_fresh_copy.default")


class ExpandOp(ReshapeFamilyOp):
    op_type = OpType.BroadcastType
    targets = ("expand.default",)


class RepeatOp(ReshapeFamilyOp):
    op_type = OpType.BroadcastType
    targets = ("repeat.default",)


class SliceOp(ReshapeFamilyOp):
    targets = ("slice.Tensor",)


class SelectOp(ReshapeFamilyOp):
    targets = ("select.int",)


class SplitOp(ReshapeFamilyOp):
    targets = ("split.Tensor", "split_with_sizes.default")


class UnbindOp(ReshapeFamilyOp):
    targets = ("unbind.int",)


class SliceScatterOp(Op):
    targets = ("slice_scatter.default",)


class SelectScatterOp(Op):
    targets = ("select_scatter.default",)


class CopyOp(ElementwiseOp):
    targets = ("copy.default",)


class CatOp(Op):
    op_type = OpType.ConcatType
    targets = ("cat.default",)


# ---- indexing and factories ------------------------------------------------------------------------------------------


class EmbeddingOp(Op):
    targets = ("embedding.default",)


class GatherOp(Op):
    targets = ("gather.default",)


class IndexOp(Op):
    targets = ("index.Tensor",)


class TriuOp(Op):
    targets = ("triu.default",)


class TrilOp(Op):
    targets = ("tril.default",)


class FullOp(Op):
    targets = ("full.default", "full_like.default")


class ScalarTensorOp(Op):
    targets = ("scalar_tensor.default",)


class ArangeOp(Op):
    targets = ("arange.start_step", "arange.default", "arange.start", "iota.default")
