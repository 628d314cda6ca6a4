"""Reductions and comparisons over several element types, and functions that libm has."""

import torch


def model(x, half, count, flag):
    soft = torch.softmax(x, -1) * torch.sin(x).exp().clamp(max=3.0)
    narrow = (half @ half.mT).float().mean(0)
    whole = (count * 3 - count.flip(0)).sum(-1) + count.argmax(-1)
    either = torch.logical_xor(flag, x.sum(-1) > 0)
    return soft, torch.erf(x).amax(-1) - torch.log1p(x.abs()).var(-1), narrow, whole, either, count // 2


torch.manual_seed(0)
example_inputs = (
    torch.randn(6, 17),
    torch.randn(9, 5).bfloat16(),
    torch.randint(-9, 10, (6, 11)),
    torch.rand(6) > 0.5,
)
