"""A random program: open it with `buddy-tui` to see what each pass makes of it."""

import torch

torch.manual_seed(0)


def weight(*shape):
    return torch.nn.Parameter(torch.randn(shape) * 0.5)


class RandomProgram(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = x0.narrow(0, 0, 3)
        v1 = v0.as_strided((2, 2), (1, 0))
        v0.zero_()
        v2 = torch.neg(v1)
        return (v2,)


example_inputs = ((torch.randn((6,)))[..., ::2],)
model = RandomProgram().eval()
