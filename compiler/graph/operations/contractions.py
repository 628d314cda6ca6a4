"""Matrix products, and attention."""

from __future__ import annotations

from buddy.compiler.graph.operation import EagerOp, Op


class MatmulOp(Op):
    targets = ("mm.default",)


class IntMatmulOp(Op):
    targets = ("_int_mm.default",)


class GroupedMatmulOp(Op):
    """Multiplies each group of rows by its own matrix, for PyTorch's and transformers' ops."""

    targets = ("_grouped_mm.default", "transformers.grouped_mm_fallback.default")


class AddMMOp(Op):
    targets = ("addmm.default",)


class TransposeMatmulFusedOp(Op):
    """`a bᵀ` of [m, k] and [n, k]."""


class TransposeAddMMFusedOp(Op):
    """`a bᵀ + c` of [m, k], [n, k] and [n]."""


class CallExternalOp(EagerOp):
    """A call of torch's library for the node's target; a graph pass inserts it."""

    @property
    def call_func_name(self) -> str:
        return self.target


class BatchMatmulOp(Op):
    targets = ("bmm.default",)


class BaddbmmOp(Op):
    targets = ("baddbmm.default",)


class AddBatchMatmulOp(Op):
    """`beta * addend + alpha * sum(a[i] @ b[i])`."""

    targets = ("addbmm.default",)


class AddMatVecOp(Op):
    targets = ("addmv.default",)


class MatVecOp(Op):
    targets = ("mv.default",)


class DotOp(Op):
    targets = ("dot.default",)


class TrilinearOp(Op):
    """A sum of products of three operands, each broadcast along its own dims."""

    targets = ("_trilinear.default",)


class ScaledDotProductFlashAttentionForCpuOp(Op):
    targets = ("_scaled_dot_product_flash_attention_for_cpu.default",)


class FlashAttentionForCpuPrefillOp(Op):
    """`softmax(scale * q kᵀ + mask) v` by blocks of keys; a fully masked row results in zeros."""

    targets = ("scaled_dot_product_attention.default",)


class GQAAttentionFusedOp(Op):
    """The same for several heads of q per head of k and v, which are not repeated."""


class MaskedSoftmaxAttentionOp(Op):
    """The same with the semantics of separate ops: a fully masked row results in NaN.

    If the node runs in eager by choice, the row results in zeros.
    """
