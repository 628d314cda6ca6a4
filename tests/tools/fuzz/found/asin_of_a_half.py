"""A random program: open it with `buddy-tui` to see what each pass makes of it."""

import torch

torch.manual_seed(0)


def weight(*shape):
    return torch.nn.Parameter(torch.randn(shape) * 0.5)


class RandomProgram(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = torch.asin(x0)
        return (v0,)


example_inputs = (((torch.randn(())).masked_fill(torch.rand(()) < 0.2, float("nan"))).to(torch.float16),)
model = RandomProgram().eval()
