"""A recurrent network of two layers of 512 on 64 steps, with weights from a fixed seed."""

import argparse

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("kind", choices=("lstm", "gru", "rnn"))
parser.add_argument("--both-directions", action="store_true", help="a bidirectional network")
options = parser.parse_args()

torch.manual_seed(0)
layer = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}[options.kind]
model = layer(512, 512, num_layers=2, batch_first=True, bidirectional=options.both_directions).eval()
example_inputs = torch.randn(1, 64, 512)
