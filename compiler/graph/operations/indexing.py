"""Reading and writing by index, and factories."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


class EmbeddingOp(Op):
    targets = ("embedding.default",)


class GatherOp(Op):
    targets = ("gather.default",)


class IndexOp(Op):
    targets = ("index.Tensor",)


class EmbeddingBagOp(Op):
    targets = ("_embedding_bag_forward_only.default", "_embedding_bag.default")


class NonzeroStaticOp(Op):
    targets = ("nonzero_static.default",)


class RepeatInterleaveOp(Op):
    targets = ("repeat_interleave.Tensor",)


class IndexSelectOp(Op):
    targets = ("index_select.default",)


class IndexPutOp(Op):
    targets = ("index_put.default",)


class IndexReduceOp(Op):
    targets = ("index_reduce.default",)


class PutOp(Op):
    targets = ("put.default",)


class ScatterOp(Op):
    targets = ("scatter.src", "scatter.value", "scatter.reduce", "scatter.value_reduce")


class ScatterAddOp(Op):
    targets = ("scatter_add.default",)


class ScatterReduceOp(Op):
    targets = ("scatter_reduce.two",)


class MaskedScatterOp(Op):
    targets = ("masked_scatter.default",)


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
