"""A recurrent network on random steps, with weights from a fixed seed: `recurrent.py LSTM --layers 2`."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("kind", choices=("LSTM", "GRU", "RNN"))
parser.add_argument("--width", type=int, default=512, help="inputs and outputs of each layer")
parser.add_argument("--layers", type=int, default=1)
parser.add_argument("--steps", type=int, default=64)
parser.add_argument("--batch", type=int, default=1)
parser.add_argument("--bidirectional", action="store_true")
options = parser.parse_args()

torch.manual_seed(0)
kind = getattr(nn, options.kind)
model = kind(options.width, options.width, options.layers, bidirectional=options.bidirectional).eval()
example_inputs = torch.randn(options.steps, options.batch, options.width)
