"""LeNet-5 on one 28x28 digit, with weights from a fixed seed."""

import torch
from torch import nn


class LeNet(nn.Module):
    def __init__(self, classes: int = 10) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2),
        )  # fmt: skip
        self.classifier = nn.Sequential(
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, classes)
        )

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.classifier(self.features(image).flatten(1))


torch.manual_seed(0)
model = LeNet().eval()
example_inputs = torch.randn(1, 1, 28, 28)

if __name__ == "__main__":
    with torch.no_grad():
        print(model(example_inputs).softmax(1))
