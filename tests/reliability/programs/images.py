"""Convolutions of all sorts, pools, a batch norm and an upsampling, of odd sizes."""

import torch
from torch import nn


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.depth = nn.Conv2d(8, 8, 3, groups=8, stride=2)
        self.point = nn.Conv2d(8, 19, 1)
        self.norm = nn.BatchNorm2d(19)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.relu(self.first(x))
        x = nn.functional.hardswish(self.norm(self.point(self.depth(x))))
        wide = nn.functional.interpolate(x, scale_factor=2.0)
        return nn.functional.max_pool2d(wide, 3, stride=2), nn.functional.adaptive_avg_pool2d(x, 1).flatten(1)


torch.manual_seed(0)
model = Images().eval()
example_inputs = torch.randn(1, 3, 13, 11)
