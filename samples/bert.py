"""BERT-base (12 layers, 768 wide) on 128 tokens: the weights in the local Hugging Face cache, or random ones.

`--tiny` builds two narrow layers and 16 tokens instead. Needs `pip install transformers`.
"""

import argparse

import torch
from transformers import BertConfig, BertModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="2 layers, 64 wide, 16 tokens")
parser.add_argument("--batch", type=int, default=1, help="how many rows of tokens (1)")
options = parser.parse_args()

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "vocab_size": 1000,
}


def load() -> BertModel:
    """The model, its weights from a fixed seed where none are cached."""
    if not options.tiny:
        try:
            return BertModel.from_pretrained("bert-base-uncased", local_files_only=True)
        except OSError:
            print("bert-base-uncased is not in the local cache: built from its config, weights from seed 0")
    return BertModel(BertConfig(**(TINY if options.tiny else {})))


torch.manual_seed(0)
model = load().eval()
tokens = 16 if options.tiny else 128
example_inputs = {"input_ids": torch.randint(model.config.vocab_size, (options.batch, tokens))}

if __name__ == "__main__":
    with torch.no_grad():
        print(model(**example_inputs).last_hidden_state.shape)
