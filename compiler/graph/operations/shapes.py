"""Shapes, views, and what is put together of parts."""

from __future__ import annotations

from buddy.compiler.graph.operation import ElementwiseOp, Op, OpType, ReshapeFamilyOp


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
