"""GPT-2 from its config (124M: 12 layers, 768 wide, with its language-model head), weights from a fixed seed.

Runs the prefill of 128 tokens; with `--decode`, one more token on a key-value cache of those 128. `--tiny` builds two
narrow layers and 16 tokens instead. Needs `pip install transformers`.
"""

import argparse

import torch
from torch import nn
from transformers import DynamicCache, GPT2Config, GPT2LMHeadModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="2 layers, 64 wide, 16 tokens")
parser.add_argument("--decode", action="store_true", help="one token on a key-value cache instead of the prefill")
parser.add_argument("--batch", type=int, default=1, help="how many rows of tokens in the prefill (1)")
parser.add_argument("--tokens", type=int, default=0, help="how many tokens in each row (128, or 16 with --tiny)")
options = parser.parse_args()


class Decode(nn.Module):
    """One step of decoding, with the cache as plain tensors: 2 x [layers, batch, heads, tokens, width]."""

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


TINY = {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 1000, "n_positions": 64}

torch.manual_seed(0)
config = GPT2Config(**(TINY if options.tiny else {}), use_cache=options.decode)
lm = GPT2LMHeadModel(config).eval()
tokens = options.tokens or (16 if options.tiny else 128)
if options.decode:
    model: nn.Module = Decode(lm).eval()
    past = (config.n_layer, 1, config.n_head, tokens, config.n_embd // config.n_head)
    example_inputs = (torch.randint(config.vocab_size, (1, 1)), torch.randn(past), torch.randn(past))
else:
    model = lm
    example_inputs = (torch.randint(config.vocab_size, (options.batch, tokens)),)

if __name__ == "__main__":
    with torch.no_grad():
        output = model(*example_inputs)
    print((output[0] if options.decode else output.logits).shape)
