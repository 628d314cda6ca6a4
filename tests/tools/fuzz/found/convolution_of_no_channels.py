"""A random program: open it with `buddy-tui` to see what each pass makes of it."""

import torch

torch.manual_seed(0)


def weight(*shape):
    return torch.nn.Parameter(torch.randn(shape) * 0.5)


class RandomProgram(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w0 = weight(1, 0, 3, 3)
        self.w1 = weight(1)

    def forward(self, x0, x1, x2):
        v2 = torch.nn.functional.conv2d(x2[None].float(), self.w0, self.w1, padding=1)
        return (v2,)


example_inputs = (
    torch.randint(-9, 10, (), dtype=torch.int64),
    torch.randint(-9, 10, (), dtype=torch.int64),
    torch.randn((0, 1, 1)),
)
model = RandomProgram().eval()
