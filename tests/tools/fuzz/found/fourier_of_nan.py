"""A random program: open it with `buddy-tui` to see what each pass makes of it."""

import torch

torch.manual_seed(1)


def weight(*shape):
    return torch.nn.Parameter(torch.randn(shape) * 0.5)


class RandomProgram(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = torch.fft.rfft(x0, dim=0)
        return (v0,)


example_inputs = ((torch.randn((1,))).masked_fill(torch.rand((1,)) < 0.2, float("nan")),)
model = RandomProgram().eval()
