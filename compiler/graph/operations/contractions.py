"""Op classes of matrix products, attention, convolutions, pools, resampling, and dense linear algebra."""

from __future__ import annotations

from buddy.compiler.graph.node import EagerOp, Op


class MatmulOp(Op):
    targets = ("mm.default",)


class IntMatmulOp(Op):
    targets = ("_int_mm.default",)


class IntegerProductOp(Op):
    """Multiplies dequantised matrices of 8-bit integers: `(a - a_zero) (b - b_zero) * (a_scale * b_scale) + addend`.

    The arguments are a, b, addend, a_scale, a_zero, b_scale, b_zero, b_scales, b_zeros. The last two are `None`, or
    replace the numbers `b_scale` and `b_zero` by an element for each column. Sums have 32 bits.
    """

    targets = ("buddy.integer_product.default",)


class IntegerConvolutionOp(Op):
    """Convolves dequantised tensors of 8-bit integers.

    The arguments are x, weight, bias, stride, padding, dilation, groups, and the scales and zero points as in
    `IntegerProductOp`, with an element for each output channel instead of each column.
    """

    targets = ("buddy.integer_convolution.default",)


class Int4MatmulOp(Op):
    """Multiplies rows [m, k] by the transpose of 4-bit weights [n, k], which have a scale for each group along k."""

    targets = ("buddy.int4_mm.default",)


class GroupedMatmulOp(Op):
    """Multiplies each group of rows by a separate matrix: PyTorch's op, and the fallback in `transformers`."""

    targets = ("_grouped_mm.default", "transformers.grouped_mm_fallback.default")


class AddMMOp(Op):
    targets = ("addmm.default",)


class TransposeMatmulFusedOp(Op):
    """`a bᵀ` for shapes [m, k] and [n, k]."""


class TransposeAddMMFusedOp(Op):
    """`a bᵀ + c` for shapes [m, k], [n, k] and [n]."""


class CallExternalOp(EagerOp):
    """A call of PyTorch's kernel for the node's target; the pass `replace-matmul-with-onednn` inserts it."""

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
    """A sum of products of three operands; each operand is unsqueezed at a separate list of dims."""

    targets = ("_trilinear.default",)


class ScaledDotProductFlashAttentionForCpuOp(Op):
    targets = ("_scaled_dot_product_flash_attention_for_cpu.default",)


class FlashAttentionForCpuPrefillOp(Op):
    """`softmax(scale * q kᵀ + mask) v`, computed in blocks of keys; a fully masked row yields zeros."""

    targets = ("scaled_dot_product_attention.default",)


class GQAAttentionFusedOp(Op):
    """Grouped-query attention: several heads of q read one head of k and v, which are not repeated in memory."""


class MaskedSoftmaxAttentionOp(Op):
    """Attention with the semantics of separate ops, from which it was fused: a fully masked row yields NaN.

    If the recipe runs the node in eager, such a row yields zeros.
    """


class CheckErrorsOp(Op):
    """Raises the error of the LAPACK routine named by the second argument if an `info` in the first is not 0."""

    has_effect = True
    targets = ("_linalg_check_errors.default",)


class MatrixOp(Op):
    """A factorisation, or an op that uses one, of a stack of real or complex matrices."""

    takes_complex = True


class LuFactorOp(MatrixOp):
    targets = ("linalg_lu_factor_ex.default",)


class LuUnpackOp(MatrixOp):
    targets = ("lu_unpack.default",)


class LuSolveOp(MatrixOp):
    targets = ("linalg_lu_solve.default",)


class CholeskyOp(MatrixOp):
    targets = ("linalg_cholesky_ex.default", "cholesky.default")


class CholeskySolveOp(MatrixOp):
    targets = ("cholesky_solve.default",)


class CholeskyInverseOp(MatrixOp):
    targets = ("cholesky_inverse.default",)


class TriangularSolveOp(MatrixOp):
    targets = ("linalg_solve_triangular.default",)


class HouseholderFactorOp(MatrixOp):
    """The R factor with Householder reflectors below its diagonal, and their coefficients tau: LAPACK's `geqrf`."""

    targets = ("geqrf.default",)


class ReflectOp(MatrixOp):
    """A product with the orthogonal matrix that the reflectors of `HouseholderFactorOp` form: LAPACK's `ormqr`."""

    targets = ("ormqr.default",)


class LdlFactorOp(MatrixOp):
    targets = ("linalg_ldl_factor_ex.default",)


class LdlSolveOp(MatrixOp):
    targets = ("linalg_ldl_solve.default",)


class SingularValuesOp(MatrixOp):
    targets = ("_linalg_svd.default",)


class SingularValuesGradientOp(MatrixOp):
    """The gradient of matrices, from the gradient of their singular values."""

    targets = ("buddy.singular_values_gradient.default",)


class SymmetricEigenvaluesOp(MatrixOp):
    targets = ("_linalg_eigh.default",)


class PseudoInverseOp(MatrixOp):
    targets = ("linalg_pinv.atol_rtol_tensor",)


class MatrixExponentialOp(MatrixOp):
    targets = ("linalg_matrix_exp.default",)


class Conv2dOp(Op):
    """Convolution in any number of spatial dims, including transposed ones."""

    targets = ("convolution.default",)


class ConvolutionBackwardOp(Op):
    targets = ("convolution_backward.default",)


class MaxPool2dWithIndicesOp(Op):
    targets = ("max_pool2d_with_indices.default",)


class MaxPool3dWithIndicesOp(Op):
    targets = ("max_pool3d_with_indices.default",)


class MaxPool2dOp(Op):
    targets = ("max_pool2d.default",)


class AdaptiveMaxPool2dOp(Op):
    targets = ("adaptive_max_pool2d.default",)


class AdaptiveMaxPool3dOp(Op):
    targets = ("adaptive_max_pool3d.default",)


class MaxPoolBackwardOp(Op):
    """The gradient of the max pools that return the indices of the maxima."""

    targets = (
        "max_pool2d_with_indices_backward.default", "max_pool3d_with_indices_backward.default",
        "adaptive_max_pool2d_backward.default", "adaptive_max_pool3d_backward.default",
        "fractional_max_pool2d_backward.default", "fractional_max_pool3d_backward.default",
    )  # fmt: skip


class AvgPool2dOp(Op):
    targets = ("avg_pool2d.default",)


class AvgPool3dOp(Op):
    targets = ("avg_pool3d.default",)


class AvgPoolBackwardOp(Op):
    targets = ("avg_pool2d_backward.default", "avg_pool3d_backward.default")


class AdaptiveAvgPool2dOp(Op):
    targets = ("_adaptive_avg_pool2d.default",)


class AdaptiveAvgPool3dOp(Op):
    targets = ("_adaptive_avg_pool3d.default",)


class AdaptiveAvgPoolBackwardOp(Op):
    targets = ("_adaptive_avg_pool2d_backward.default", "_adaptive_avg_pool3d_backward.default")


class UpsampleBackwardOp(Op):
    """The gradient of resampling: nearest, linear or cubic."""

    targets = (
        "upsample_nearest1d_backward.default", "upsample_nearest2d_backward.default",
        "upsample_nearest3d_backward.default", "_upsample_nearest_exact1d_backward.default",
        "_upsample_nearest_exact2d_backward.default", "_upsample_nearest_exact3d_backward.default",
        "upsample_linear1d_backward.default", "upsample_bilinear2d_backward.default",
        "upsample_trilinear3d_backward.default", "upsample_bicubic2d_backward.default",
    )  # fmt: skip


class LstmLayerOp(Op):
    """One direction of one LSTM layer over all steps: the output, the last hidden state and the last cell state.

    The overload `saving` also returns the gates and the cell of each step.
    """

    targets = ("buddy.lstm_layer.default", "buddy.lstm_layer.saving")


class GruLayerOp(Op):
    """One direction of one GRU layer over all steps: the output and the last hidden state.

    The overload `saving` also returns each step's gates, and its sum over the state that the reset gate multiplies.
    """

    targets = ("buddy.gru_layer.default", "buddy.gru_layer.saving")


class RnnLayerOp(Op):
    """One direction of one layer of `nn.RNN` over all steps: the output and the last hidden state."""

    targets = ("buddy.rnn_layer.default", "buddy.rnn_layer.saving")


class RecurrentBackwardOp(Op):
    """The gradients of one direction of a recurrent layer: of the sums that enter gates, and of the first states."""

    targets = (
        "buddy.lstm_layer_backward.default", "buddy.gru_layer_backward.default", "buddy.rnn_layer_backward.default",
    )  # fmt: skip
