"""Matrix products, and attention."""

from __future__ import annotations

from buddy.compiler.graph.operation import EagerOp, Op


class MatmulOp(Op):
    targets = ("mm.default",)


class IntMatmulOp(Op):
    targets = ("_int_mm.default",)


class GroupedMatmulOp(Op):
    """Multiplies each group of rows by its own matrix: PyTorch's op, and the fallback in `transformers`."""

    targets = ("_grouped_mm.default", "transformers.grouped_mm_fallback.default")


class AddMMOp(Op):
    targets = ("addmm.default",)


class TransposeMatmulFusedOp(Op):
    """`a bᵀ` of [m, k] and [n, k]."""


class TransposeAddMMFusedOp(Op):
    """`a bᵀ + c` of [m, k], [n, k] and [n]."""


class CallExternalOp(EagerOp):
    """A call of PyTorch's own kernel for the node's target; `replace-matmul-with-onednn` inserts it."""

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
    """`softmax(scale * q kᵀ + mask) v`, computed by blocks of keys; a fully masked row is zeros."""

    targets = ("scaled_dot_product_attention.default",)


class GQAAttentionFusedOp(Op):
    """Grouped-query attention: several heads of q read one head of k and v, which are not repeated in memory."""


class MaskedSoftmaxAttentionOp(Op):
    """Attention with the semantics of separate ops: a fully masked row is NaN.

    If the recipe runs the node in eager, the row is zeros.
    """
