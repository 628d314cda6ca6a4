"""A small Llama from a config (RMSNorm, rotary positions, grouped-query attention, SwiGLU), weights from a fixed seed.

160M parameters on 128 tokens; `--tiny` builds two narrow layers and 16 tokens instead.
Needs `pip install transformers`.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="2 layers, 64 wide, 16 tokens")
options = parser.parse_args()

SIZES = {
    "hidden_size": 64 if options.tiny else 768,
    "intermediate_size": 128 if options.tiny else 3072,
    "num_hidden_layers": 2 if options.tiny else 12,
    "num_attention_heads": 4 if options.tiny else 12,
    "num_key_value_heads": 2 if options.tiny else 4,
    "vocab_size": 1000 if options.tiny else 32000,
}

torch.manual_seed(0)
config = LlamaConfig(**SIZES, use_cache=False)
model = LlamaForCausalLM(config).eval()
example_inputs = (torch.randint(config.vocab_size, (1, 16 if options.tiny else 128)),)

if __name__ == "__main__":
    with torch.no_grad():
        print(model(*example_inputs).logits.shape)
