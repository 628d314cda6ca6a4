"""Two models, one of them cut in three where Python must know a value: four graphs, each with its own recipe."""

import torch


class Gate(torch.nn.Module):
    """Prints a statistic and goes one of two ways: TorchDynamo ends a graph at each."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(8, 16)
        self.down = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.relu(self.up(x))
        print(f"mean {h.mean().item():.4f}")
        return self.down(h) if h.sum() > 0 else -self.down(h)


class Head(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(self.norm(x), dim=-1)


torch.manual_seed(0)
gate, head = Gate(), Head()
with torch.no_grad():
    print(head(gate(torch.randn(2, 8))))
