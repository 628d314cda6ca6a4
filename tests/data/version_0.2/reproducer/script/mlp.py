"""A transformer's feed-forward block: two linear layers, a GELU between them, a residual and a layer norm."""

import torch
from torch import nn


class MLP(nn.Module):
    def __init__(self, width: int = 256, hidden: int = 1024) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden)
        self.act = nn.GELU()
        self.down = nn.Linear(hidden, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x + self.down(self.act(self.up(x))))


torch.manual_seed(0)
model = MLP().eval()
example_inputs = torch.randn(128, 256)

if __name__ == "__main__":
    with torch.no_grad():
        print(model(example_inputs).shape)
