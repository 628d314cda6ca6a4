"""A function compiled through `torch.compile(..., backend="buddy")`, compared with the same function in eager."""

import torch


def f(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    scores = x @ weight
    return torch.softmax(scores, dim=-1) * torch.sigmoid(scores)


compiled = torch.compile(f, backend="buddy", options={"fallback": "error"})

torch.manual_seed(0)
x, weight = torch.randn(64, 96), torch.randn(96, 128)
result = compiled(x, weight)
print("largest difference from eager:", float((result - f(x, weight)).abs().max()))
