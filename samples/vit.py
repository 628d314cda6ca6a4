"""A vision transformer from its config (ViT-B/16: 12 layers, 768 wide) on one 224x224 image, fixed seed.

`--tiny` builds two narrow layers and a 32x32 image instead. Needs `pip install transformers`.
"""

import argparse

import torch
from transformers import ViTConfig, ViTModel

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--tiny", action="store_true", help="2 layers, 64 wide, a 32x32 image")
options = parser.parse_args()

TINY = {
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "image_size": 32,
    "patch_size": 8,
}

torch.manual_seed(0)
config = ViTConfig(**(TINY if options.tiny else {}))
model = ViTModel(config).eval()
example_inputs = {"pixel_values": torch.randn(1, 3, config.image_size, config.image_size)}

if __name__ == "__main__":
    with torch.no_grad():
        print(model(**example_inputs).last_hidden_state.shape)
