"""A small transformer that learns which half of a sequence is larger: a forward and a backward graph."""

import torch
from torch import nn

TOKENS, WIDTH = 8, 16


class Block(nn.Module):
    """Attention and a feed-forward layer, each after a layer norm and with a residual."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.heads = heads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.norms[0](x)).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.norms[1](x))))


class Halves(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(1, WIDTH)
        self.places = nn.Parameter(torch.randn(TOKENS, WIDTH) / 4)
        self.blocks = nn.Sequential(Block(), Block())
        self.head = nn.Linear(WIDTH, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embed(x[..., None]) + self.places).mean(1))


torch.manual_seed(0)
model = Halves()
optimiser = torch.optim.Adam(model.parameters(), lr=0.003)
for step in range(20):
    numbers = torch.randn(32, TOKENS)
    larger = (numbers[:, : TOKENS // 2].sum(1) > numbers[:, TOKENS // 2 :].sum(1)).long()
    loss = nn.functional.cross_entropy(model(numbers), larger)
    optimiser.zero_grad()
    loss.backward()
    optimiser.step()
    print(f"step {step}: loss {loss.item():.4f}")
