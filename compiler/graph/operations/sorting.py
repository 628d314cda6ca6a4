"""Sorting, searching, and ops that use sorted rows."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


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
