"""A random program: open it with `buddy-tui` to see what each pass makes of it."""

import torch

torch.manual_seed(1)


def weight(*shape):
    return torch.nn.Parameter(torch.randn(shape) * 0.5)


class RandomProgram(torch.nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x0):
        v0 = torch.nn.functional.instance_norm(x0.float()[None])
        v1 = v0.all()
        return (v1,)


example_inputs = ((torch.randint(-9, 10, (8, 4), dtype=torch.int64))[..., ::2],)
model = RandomProgram().eval()
