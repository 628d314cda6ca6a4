"""Indexing and factories."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


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
