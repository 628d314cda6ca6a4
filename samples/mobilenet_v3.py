"""MobileNetV3-Small (Howard et al., 2019) on one 224x224 image, with weights from a fixed seed.

`--tiny` takes a 64x64 image and the first five blocks instead.
"""

import argparse

import torch
from torch import nn


def conv(channels_in: int, channels: int, kernel: int, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size (but for its stride), and its batch norm."""
    layer = nn.Conv2d(channels_in, channels, kernel, stride, kernel // 2, groups=groups, bias=False)
    return [layer, nn.BatchNorm2d(channels, eps=0.001)]


class SqueezeExcite(nn.Module):
    """Scales each channel by what two small layers make of all channels' means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        squeezed = max(8, (channels // 4 + 4) // 8 * 8)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scale = self.fc2(torch.relu(self.fc1(nn.functional.adaptive_avg_pool2d(x, 1))))
        return x * nn.functional.hardsigmoid(scale)


class InvertedResidual(nn.Module):
    """Widen, convolve each channel by itself, squeeze and excite, narrow."""

    def __init__(
        self, channels_in: int, kernel: int, wide: int, channels: int, excite: bool, hard: bool, stride: int
    ) -> None:
        super().__init__()
        act = nn.Hardswish if hard else nn.ReLU
        layers = [*conv(channels_in, wide, 1), act()] if wide != channels_in else []
        layers += [*conv(wide, wide, kernel, stride, groups=wide), act()]
        layers += [SqueezeExcite(wide)] if excite else []
        self.block = nn.Sequential(*layers, *conv(wide, channels, 1))
        self.residual = stride == 1 and channels_in == channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.block(x) if self.residual else self.block(x)


# Channels in, kernel, widened, channels out, squeeze-and-excite, hard-swish, stride: the paper's table 2.
BLOCKS = [
    (16, 3, 16, 16, True, False, 2), (16, 3, 72, 24, False, False, 2), (24, 3, 88, 24, False, False, 1),
    (24, 5, 96, 40, True, True, 2), (40, 5, 240, 40, True, True, 1), (40, 5, 240, 40, True, True, 1),
    (40, 5, 120, 48, True, True, 1), (48, 5, 144, 48, True, True, 1), (48, 5, 288, 96, True, True, 2),
    (96, 5, 576, 96, True, True, 1), (96, 5, 576, 96, True, True, 1),
]  # fmt: skip


class MobileNetV3Small(nn.Module):
    def __init__(self, blocks: int = len(BLOCKS), classes: int = 1000) -> None:
        super().__init__()
        last = BLOCKS[blocks - 1][3]
        self.stem = nn.Sequential(*conv(3, 16, 3, 2), nn.Hardswish())
        self.blocks = nn.ModuleList(InvertedResidual(*row) for row in BLOCKS[:blocks])
        self.head = nn.Sequential(*conv(last, 6 * last, 1), nn.Hardswish())
        self.classifier = nn.Sequential(nn.Linear(6 * last, 1024), nn.Hardswish(), nn.Linear(1024, classes))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        x = self.stem(image)
        for block in self.blocks:
            x = block(x)
        return self.classifier(self.head(x).mean((2, 3)))


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="five blocks, a 64x64 image")
options = parser.parse_args()

torch.manual_seed(0)
model = MobileNetV3Small(5 if options.tiny else len(BLOCKS)).eval()
size = 64 if options.tiny else 224
example_inputs = torch.randn(1, 3, size, size)

if __name__ == "__main__":
    with torch.no_grad():
        print(model(example_inputs).argmax(1))
