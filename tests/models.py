"""Small models with the shapes of real ones: repeated blocks of a dozen nodes."""

from __future__ import annotations

import torch
from torch import nn

DEPTH, WIDTH = 24, 64


class Block(nn.Module):
    """A normalised feed-forward block with its residual: eight nodes, the least that the partition takes out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = nn.functional.gelu(self.up(self.norm(x)))
        return x + self.down(hidden)


class Stack(nn.Module):
    """Equal blocks in a module list, between two layers of their own."""

    def __init__(self, width: int = 8, blocks: int = 3) -> None:
        super().__init__()
        self.embed = nn.Linear(4, width)
        self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
        self.head = nn.Linear(width, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return torch.softmax(self.head(x), -1)


class Amplifying(nn.Module):
    """Layers each of which makes a small difference larger, as those of an untrained deep network do."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(DEPTH))
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.sin(3 * layer(x))
        return self.norm(x)


def stack(blocks: int = 3) -> tuple[nn.Module, torch.Tensor]:
    """The model with fixed weights, and an input for it."""
    torch.manual_seed(0)
    return Stack(blocks=blocks).eval(), torch.randn(5, 4)
