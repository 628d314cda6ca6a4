"""Convolution of 3x3 windows in bfloat16 by Winograd's algorithm, as compiled code may compute it, in PyTorch.

Transformed tiles and weights are rounded to bfloat16, so the result differs from that of a direct convolution of the
same operands by more than roundings of sums. Tiles have 2x2 results: F(2x2, 3x3) of Lavin and Gray, "Fast algorithms
for convolutional neural networks", 2015.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from buddy.compiler.graph.node import Op

# The matrices B^T, G and A^T of the paper, by which tiles, weights and products are multiplied from both sides.
_INPUT_TRANSFORM = [[1.0, 0.0, -1.0, 0.0], [0.0, 1.0, 1.0, 0.0], [0.0, -1.0, 1.0, 0.0], [0.0, 1.0, 0.0, -1.0]]
_WEIGHT_TRANSFORM = [[1.0, 0.0, 0.0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0.0, 0.0, 1.0]]
_OUTPUT_TRANSFORM = [[1.0, 1.0, 1.0, 0.0], [0.0, 1.0, -1.0, -1.0]]


def can_use_winograd(op: Op, operand: Callable[[Op, int], torch.Tensor]) -> bool:
    """Returns whether the algorithm can compute `op`: a convolution of images by 3x3 windows, without stride or groups.

    `operand(op, index)` is the value of an operand of `op`.
    """
    if op.target != "convolution.default" or operand(op, 1).shape[2:] != (3, 3):
        return False
    stride, dilation, is_transposed, groups = op.args[3], op.args[5], op.args[6], op.args[8]
    is_plain = all(step == 1 for step in (*stride, *dilation))
    return is_plain and not is_transposed and groups == 1


def convolve(x: torch.Tensor, weight: torch.Tensor, padding: Sequence[int]) -> torch.Tensor:
    """Returns the convolution of [N, C, H, W] and [O, C, 3, 3] in double precision, without a bias.

    `padding` has one size for both dims or one for each. Operands, transformed tiles and transformed weights are
    rounded to bfloat16.
    """
    input_transform, weight_transform, output_transform = (
        torch.tensor(matrix, dtype=torch.float64) for matrix in (_INPUT_TRANSFORM, _WEIGHT_TRANSFORM, _OUTPUT_TRANSFORM)
    )
    padding = [int(size) for size in padding] * (2 // len(padding))
    height, width = (size + 2 * pad - 2 for size, pad in zip(x.shape[2:], padding, strict=True))
    rows, columns = -(-height // 2), -(-width // 2)
    end_padding = [
        2 * tiles + 2 - size - pad for tiles, size, pad in zip((rows, columns), x.shape[2:], padding, strict=True)
    ]
    padded = torch.nn.functional.pad(_rounded(x), (padding[1], end_padding[1], padding[0], end_padding[0]))
    tiles = padded.unfold(2, 4, 2).unfold(3, 4, 2)
    inputs = _rounded(torch.einsum("ij,nchwjk,lk->nchwil", input_transform, tiles, input_transform))
    weights = _rounded(torch.einsum("ij,ocjk,lk->ocil", weight_transform, _rounded(weight), weight_transform))
    products = torch.einsum("ocil,nchwil->nohwil", weights, inputs)
    results = torch.einsum("pi,nohwil,ql->nohpwq", output_transform, products, output_transform)
    return results.flatten(4, 5).flatten(2, 3)[:, :, :height, :width]


def _rounded(value: torch.Tensor) -> torch.Tensor:
    """Returns `value` rounded to bfloat16, in double precision."""
    return value.bfloat16().double()
