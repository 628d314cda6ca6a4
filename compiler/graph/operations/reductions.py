"""Reductions and normalisations."""

from __future__ import annotations

from buddy.compiler.graph.operation import ReduceOp


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
