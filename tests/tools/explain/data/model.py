"""A program that breaks its graph and compiles again: for another size, another dtype, a global, and too many modes."""

import torch

SCALE = 3


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x, mode="add"):
        y = self.linear(x) * SCALE
        print("scaled")
        if y.sum() > 0:
            y = y + 1
        return y


def step(x, mode):
    return x + 1 if mode else x


def main():
    global SCALE
    torch._dynamo.config.recompile_limit = 2
    net = torch.compile(Net().eval(), backend="eager")
    with torch.no_grad():
        net(torch.ones(2, 4))
        net(torch.ones(3, 4))
    small = torch.compile(step, backend="eager", dynamic=False)
    small(torch.ones(2), "a")
    small(torch.ones(2), "b")
    small(torch.ones(2), "c")
    cast = torch.compile(lambda x: x * SCALE, backend="eager")
    cast(torch.ones(2))
    SCALE = 4
    cast(torch.ones(2))


if __name__ == "__main__":
    main()
