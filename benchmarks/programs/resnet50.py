"""ResNet-50 (He et al., 2015, the stride in the 3x3) on one 224x224 image, with weights from a fixed seed."""

import torch
from torch import nn

STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))


def conv(channels_in: int, channels: int, kernel: int, stride: int = 1) -> nn.Sequential:
    made = nn.Conv2d(channels_in, channels, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(made, nn.BatchNorm2d(channels))


class Bottleneck(nn.Module):
    def __init__(self, channels_in: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = conv(channels_in, width, 1)
        self.spatial = conv(width, width, 3, stride)
        self.expand = conv(width, 4 * width, 1)
        changes = stride != 1 or channels_in != 4 * width
        self.project = conv(channels_in, 4 * width, 1, stride) if changes else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = torch.relu(self.spatial(torch.relu(self.reduce(x))))
        return torch.relu(self.expand(inner) + self.project(x))


def stages() -> nn.Sequential:
    blocks, channels = [], 64
    for width, count, stride in STAGES:
        for number in range(count):
            blocks.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*blocks)


class ResNet50(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, 64, 7, 2)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        self.blocks = stages()
        self.fc = nn.Linear(2048, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.fc(self.blocks(self.pool(torch.relu(self.stem(image)))).mean((2, 3)))


torch.manual_seed(0)
model = ResNet50().eval()
example_inputs = torch.randn(1, 3, 224, 224)
