"""Three equal layers, which become one function, that are called on slices and write into a cache."""

import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(12), nn.Linear(12, 36), nn.Linear(12, 12)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(-1, (3, 4)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(mixed.transpose(1, 2).flatten(2))


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(31, 12)
        self.layers = nn.ModuleList(Layer() for _ in range(3))

    def forward(self, tokens: torch.Tensor, cache: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        cache = torch.cat([cache[:, 1:], x[:, -1:]], 1)
        return torch.nn.functional.linear(x, self.embed.weight), cache


torch.manual_seed(0)
model = Layers().eval()
example_inputs = (torch.randint(0, 31, (1, 9)), torch.zeros(1, 4, 12))
