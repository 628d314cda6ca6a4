"""One op on f32 tensors of the given sizes, weights and inputs from a fixed seed: `op.py matmul 512 512 512`."""

import argparse
from collections.abc import Callable

import torch
from torch import nn

Case = tuple[Callable[..., torch.Tensor], tuple[torch.Tensor, ...]]


def matmul(m: int, k: int, n: int) -> Case:
    return torch.mm, (torch.randn(m, k), torch.randn(k, n))


def linear(m: int, k: int, n: int) -> Case:
    return nn.Linear(k, n).eval(), (torch.randn(m, k),)


def conv(channels_in: int, channels: int, image: int, kernel: int, stride: int) -> Case:
    made = nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2, bias=False)
    return made.eval(), (torch.randn(1, channels_in, image, image),)


def softmax(rows: int, columns: int) -> Case:
    return nn.Softmax(-1), (torch.randn(rows, columns),)


def layer_norm(rows: int, columns: int) -> Case:
    return nn.LayerNorm(columns).eval(), (torch.randn(rows, columns),)


def gelu(rows: int, columns: int) -> Case:
    return nn.GELU(), (torch.randn(rows, columns),)


OPS: dict[str, Callable[..., Case]] = {
    function.__name__: function for function in (matmul, linear, conv, softmax, layer_norm, gelu)
}
parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("op", choices=OPS)
parser.add_argument("sizes", type=int, nargs="+")
options = parser.parse_args()

torch.manual_seed(0)
model, example_inputs = OPS[options.op](*options.sizes)
