"""Convolutions, pools, resampling, and their gradients."""

from __future__ import annotations

from buddy.compiler.graph.operation import Op


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
    """The gradient of the pools that return the positions of their maxima."""

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
