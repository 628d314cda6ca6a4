"""A Llama of 1.1 billion parameters from a config, on 64 tokens, weights from a fixed seed.

`--dtype bfloat16` builds it in half the memory; `--layers N` and `--tiny` build smaller ones. Needs `transformers`.
"""

import argparse

import torch
from transformers import LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
parser.add_argument("--layers", type=int, default=22)
parser.add_argument("--tiny", action="store_true", help="2 narrow layers")
options = parser.parse_args()

SIZES = {
    "num_hidden_layers": 2 if options.tiny else options.layers,
    "hidden_size": 64 if options.tiny else 2048,
    "intermediate_size": 128 if options.tiny else 5632,
    "num_attention_heads": 4 if options.tiny else 32,
    "num_key_value_heads": 2 if options.tiny else 4,
    "vocab_size": 1000 if options.tiny else 32000,
}

torch.manual_seed(0)
# In the element type from the start: a conversion would hold both.
torch.set_default_dtype(getattr(torch, options.dtype))
model = LlamaForCausalLM(LlamaConfig(**SIZES, use_cache=False)).eval().requires_grad_(False)
torch.set_default_dtype(torch.float32)
example_inputs = (torch.randint(SIZES["vocab_size"], (1, 64)),)

if __name__ == "__main__":
    with torch.no_grad():
        print(model(*example_inputs).logits.shape)
