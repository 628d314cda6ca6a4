"""BERT of 4 layers on six lengths of text, with weights from a fixed seed; `--tiny` takes narrow layers.

Needs `pip install transformers`.
"""

import argparse

import torch
from transformers import BertConfig, BertModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="64 wide, short texts")
options = parser.parse_args()

TINY = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000}
LENGTHS = (6, 5, 8, 7, 9, 12) if options.tiny else (96, 64, 128, 80, 112, 160)

torch.manual_seed(0)
model = BertModel(BertConfig(num_hidden_layers=4, **(TINY if options.tiny else {}))).eval()
example_inputs = [{"input_ids": torch.randint(model.config.vocab_size, (1, length))} for length in LENGTHS]
