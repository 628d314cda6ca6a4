"""Whisper from its config (tiny: 4 + 4 layers, 384 wide): thirty seconds of sound, and four decoded tokens.

Weights from a fixed seed. `--tiny` builds two narrow layers instead. Needs `pip install transformers`.
"""

import argparse

import torch
from transformers import WhisperConfig, WhisperModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="2 layers, 64 wide, a fifth of a second of sound")
options = parser.parse_args()

positions = 20 if options.tiny else 1500
SIZES = {
    "d_model": 64 if options.tiny else 384,
    "encoder_layers": 2 if options.tiny else 4,
    "decoder_layers": 2 if options.tiny else 4,
    "encoder_attention_heads": 4 if options.tiny else 6,
    "decoder_attention_heads": 4 if options.tiny else 6,
    "encoder_ffn_dim": 128 if options.tiny else 1536,
    "decoder_ffn_dim": 128 if options.tiny else 1536,
    "max_source_positions": positions,
}

torch.manual_seed(0)
config = WhisperConfig(**SIZES, use_cache=False)
model = WhisperModel(config).eval()
example_inputs = {
    "input_features": torch.randn(1, config.num_mel_bins, 2 * positions),
    "decoder_input_ids": torch.tensor([[1, 2, 3, 4]]),
}

if __name__ == "__main__":
    with torch.no_grad():
        print(model(**example_inputs).last_hidden_state.shape)
