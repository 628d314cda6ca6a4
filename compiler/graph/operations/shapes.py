"""Op classes of views, concatenation, padding, new tensors, and reading and writing by index."""

from __future__ import annotations

from buddy.compiler.graph.node import ElementwiseOp, Op, OpType, ReshapeFamilyOp


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
    targets = (
        "alias.default",
        "detach.default",
        "lift_fresh_copy.default",
        "positive.default",
        "conj_physical.default",
    )


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


class FlipOp(ReshapeFamilyOp):
    targets = ("flip.default",)


class RollOp(ReshapeFamilyOp):
    targets = ("roll.default",)


class UnfoldOp(ReshapeFamilyOp):
    targets = ("unfold.default",)


class DiagonalOp(ReshapeFamilyOp):
    targets = ("diagonal.default",)


class DiagonalScatterOp(Op):
    targets = ("diagonal_scatter.default",)


class AsStridedOp(ReshapeFamilyOp):
    """Reads the operand's elements, taken in row-major order, with the given sizes, strides and offset."""

    targets = ("as_strided.default",)


class AsStridedScatterOp(Op):
    targets = ("as_strided_scatter.default",)


class ViewDtypeOp(ReshapeFamilyOp):
    """Reinterprets the operand's bytes as elements of another type."""

    targets = ("view.dtype",)


class ViewAsRealOp(ReshapeFamilyOp):
    """Views complex numbers as pairs of floats along a new last dim."""

    takes_complex = True
    targets = ("view_as_real.default",)


class ViewAsComplexOp(ReshapeFamilyOp):
    """Views pairs of floats along the last dim as complex numbers."""

    takes_complex = True
    targets = ("view_as_complex.default",)


class ConstantPadNdOp(Op):
    targets = ("constant_pad_nd.default",)


class ReplicationPadBackwardOp(Op):
    targets = (
        "replication_pad1d_backward.default", "replication_pad2d_backward.default",
        "replication_pad3d_backward.default",
    )  # fmt: skip


class EmptyOp(Op):
    """An uninitialised tensor."""

    targets = (
        "empty.memory_format", "empty_strided.default", "empty_permuted.default", "new_empty.default",
        "new_empty_strided.default",
    )  # fmt: skip


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
