"""A two-layer LSTM with a head over its last step, on 32 steps, with weights from a fixed seed.

`--tiny` takes a narrow one and 4 steps instead.
"""

import argparse

import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, inputs: int, hidden: int, classes: int = 10) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, num_layers=2, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, steps: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(steps)[0][:, -1])


parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="8 inputs, 16 wide, 4 steps")
options = parser.parse_args()

torch.manual_seed(0)
model = (Tagger(8, 16) if options.tiny else Tagger(64, 256)).eval()
example_inputs = torch.randn(1, 4, 8) if options.tiny else torch.randn(1, 32, 64)

if __name__ == "__main__":
    with torch.no_grad():
        print(model(example_inputs).shape)
