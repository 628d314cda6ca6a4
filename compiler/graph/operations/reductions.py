"""Op classes of reductions, scans, normalisations, sorting and searching."""

from __future__ import annotations

from buddy.compiler.graph.node import Op, ReduceOp


class SumDimOp(ReduceOp):
    targets = ("sum.dim_IntList", "sum.default", "prims.sum.default")


class MeanOp(ReduceOp):
    targets = ("mean.dim", "mean.default")


class AmaxOp(ReduceOp):
    targets = ("amax.default", "max.default", "prims.amax.default")


class AminOp(ReduceOp):
    targets = ("amin.default", "min.default", "prims.amin.default")


class ProdOp(ReduceOp):
    targets = ("prod.default", "prod.dim_int", "prims.prod.default")


class AnyOp(ReduceOp):
    targets = ("any.default", "any.dim", "any.dims")


class HashTensorOp(ReduceOp):
    targets = ("hash_tensor.default",)


class VectorNormOp(ReduceOp):
    targets = ("linalg_vector_norm.default",)


class MaxDimOp(ReduceOp):
    targets = ("max.dim",)


class MinDimOp(ReduceOp):
    targets = ("min.dim",)


class ArgmaxOp(ReduceOp):
    targets = ("argmax.default",)


class ArgminOp(ReduceOp):
    targets = ("argmin.default",)


class VarOp(ReduceOp):
    targets = ("var.correction",)


class CumsumOp(ReduceOp):
    targets = ("cumsum.default",)


class CumprodOp(ReduceOp):
    takes_complex = True
    targets = ("cumprod.default",)


class CummaxOp(ReduceOp):
    targets = ("cummax.default",)


class CumminOp(ReduceOp):
    targets = ("cummin.default",)


class LogcumsumexpOp(ReduceOp):
    targets = ("logcumsumexp.default",)


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


class SegmentReduceOp(ReduceOp):
    targets = ("segment_reduce.default",)


class SortOp(Op):
    targets = ("sort.default", "sort.stable")


class TopkOp(Op):
    targets = ("topk.default",)


class KthvalueOp(Op):
    targets = ("kthvalue.default",)


class MedianOp(Op):
    targets = ("median.default", "median.dim")


class NanmedianOp(Op):
    targets = ("nanmedian.default", "nanmedian.dim")


class ModeOp(Op):
    targets = ("mode.default",)


class SearchsortedOp(Op):
    targets = ("searchsorted.Tensor", "searchsorted.Scalar")


class BucketizeOp(Op):
    targets = ("bucketize.Tensor", "bucketize.Scalar")


class HistcOp(Op):
    targets = ("histc.default",)
