"""A small Llama from a config (RMSNorm, rotary positions, grouped-query attention, SwiGLU), weights from a fixed seed.

160M parameters on 128 tokens; with `--decode`, one more token on a key-value cache of those 128. `--tiny` builds two
narrow layers and 16 tokens instead.
Needs `pip install transformers`.
"""

import argparse

import torch
from torch import nn
from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="2 layers, 64 wide, 16 tokens")
parser.add_argument("--decode", action="store_true", help="one token on a key-value cache instead of the prefill")
options = parser.parse_args()


class Decode(nn.Module):
    """One step of decoding, with the cache as plain tensors: 2 x [layers, batch, key-value heads, tokens, width]."""

    def __init__(self, lm: nn.Module) -> None:
        super().__init__()
        self.lm = lm

    def forward(self, token: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        cache = DynamicCache()
        for layer, (key, value) in enumerate(zip(keys, values, strict=True)):
            cache.update(key, value, layer)
        output = self.lm(input_ids=token, past_key_values=cache, use_cache=True)
        new = [(layer.keys[:, :, -1:], layer.values[:, :, -1:]) for layer in cache.layers]
        return output.logits, torch.stack([k for k, _ in new]), torch.stack([v for _, v in new])


SIZES = {
    "hidden_size": 64 if options.tiny else 768,
    "intermediate_size": 128 if options.tiny else 3072,
    "num_hidden_layers": 2 if options.tiny else 12,
    "num_attention_heads": 4 if options.tiny else 12,
    "num_key_value_heads": 2 if options.tiny else 4,
    "vocab_size": 1000 if options.tiny else 32000,
}

torch.manual_seed(0)
config = LlamaConfig(**SIZES, use_cache=options.decode)
lm = LlamaForCausalLM(config).eval()
tokens = 16 if options.tiny else 128
if options.decode:
    model: nn.Module = Decode(lm).eval()
    past = (config.num_hidden_layers, 1, config.num_key_value_heads, tokens, config.head_dim)
    example_inputs = (torch.randint(config.vocab_size, (1, 1)), torch.randn(past), torch.randn(past))
else:
    model = lm
    example_inputs = (torch.randint(config.vocab_size, (1, tokens)),)

if __name__ == "__main__":
    with torch.no_grad():
        output = model(*example_inputs)
    print((output[0] if options.decode else output.logits).shape)
