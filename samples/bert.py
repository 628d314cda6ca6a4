"""BERT from its config (bert-base: 12 layers, 768 wide) on 128 tokens, with weights from a fixed seed.

`--tiny` builds two narrow layers and 16 tokens instead. Needs `pip install transformers`.
"""

import argparse

import torch
from transformers import BertConfig, BertModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="2 layers, 64 wide, 16 tokens")
options = parser.parse_args()

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}

torch.manual_seed(0)
config = BertConfig(**(TINY if options.tiny else {}))
model = BertModel(config).eval()
tokens = 16 if options.tiny else 128
example_inputs = {"input_ids": torch.randint(config.vocab_size, (1, tokens))}

if __name__ == "__main__":
    with torch.no_grad():
        print(model(**example_inputs).last_hidden_state.shape)
