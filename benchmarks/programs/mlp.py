"""A classifier of three wide layers on a batch of 64, with weights from a fixed seed."""

import torch
from torch import nn

torch.manual_seed(0)
model = nn.Sequential(
    nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10), nn.LogSoftmax(-1)
).eval()
example_inputs = torch.randn(64, 784)
