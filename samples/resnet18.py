"""ResNet-18 (He et al., 2015) on one 224x224 image, with weights from a fixed seed.

`--tiny` takes an eighth of the channels and a 64x64 image instead.
"""

import argparse
from itertools import pairwise

import torch
from torch import nn


class BasicBlock(nn.Module):
    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.downsample = None
        if stride != 1 or channels_in != channels:
            project = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.downsample = nn.Sequential(project, nn.BatchNorm2d(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(x)) + shortcut)


class ResNet18(nn.Module):
    def __init__(self, width: int = 64, classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.pool = nn.MaxPool2d(3, stride=2, padding=1)
        sizes = [width, width, 2 * width, 4 * width, 8 * width]
        self.layers = nn.ModuleList(
            nn.Sequential(BasicBlock(a, b, 1 if a == b else 2), BasicBlock(b, b, 1)) for a, b in pairwise(sizes)
        )
        self.fc = nn.Linear(8 * width, classes)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.bn1(self.conv1(image))))
        for layer in self.layers:
            x = layer(x)
        return self.fc(x.mean((2, 3)))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="an eighth of the channels, a 64x64 image")
parser.add_argument("--batch", type=int, default=1, help="how many images (1)")
options = parser.parse_args()

torch.manual_seed(0)
model = ResNet18(8 if options.tiny else 64).eval()
size = 64 if options.tiny else 224
example_inputs = torch.randn(options.batch, 3, size, size)

if __name__ == "__main__":
    with torch.no_grad():
        print(model(example_inputs).argmax(1))
