"""Products of matrices, and attention."""

from __future__ import annotations

from buddy.compiler.graph.operation import EagerOp, Op


class MatmulOp(Op):
    targets = ("mm.default",)


class IntMatmulOp(Op):
    targets = ("_int_mm.default",)


class GroupedMatmulOp(Op):
    """Each group of rows by a matrix of its own, in PyTorch's words and in those of transformers."""

    targets = ("_grouped_mm.default", "transformers.grouped_mm_fallback.default")


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
    """A sum of products of three operands, broadcast along dims of their own."""

    targets = ("_trilinear.default",)


class ScaledDotProductFlashAttentionForCpuOp(Op):
    targets = ("_scaled_dot_product_flash_attention_for_cpu.default",)


class FlashAttentionForCpuPrefillOp(Op):
    """`softmax(scale * q kᵀ + mask) v`, block by block of keys; a row that is masked whole gives zeros."""

    targets = ("scaled_dot_product_attention.default",)


class GQAAttentionFusedOp(Op):
    """The same where several heads of q read one head of k and v, which are not repeated for them."""


class MaskedSoftmaxAttentionOp(Op):
    """The same as its parts have it: a row that is masked whole gives NaN (zeros if it is sent to eager by hand)."""
