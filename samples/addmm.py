"""A matrix product with a bias: what a linear layer comes down to."""

import torch


def model(bias: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return torch.addmm(bias, x, weight)


def example_inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    return torch.randn(64), torch.randn(16, 32), torch.randn(32, 64)


if __name__ == "__main__":
    print(model(*example_inputs()).shape)
