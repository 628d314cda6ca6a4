"""Models to train, each with its loss and optimizer, with weights and data from a fixed seed.

`bert` and `gpt2` need transformers. `--tiny` takes narrow models on small data.
"""

import argparse
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("name", choices=("mlp", "resnet18", "gpt2", "bert", "vit", "unet"))
parser.add_argument("--tiny", action="store_true", help="narrow models, small data")
options = parser.parse_args()
tiny = options.tiny

Parts = tuple[nn.Module, Any, Callable[[Any], torch.Tensor] | None]


def classified(model: nn.Module, image: torch.Tensor, classes: int) -> Parts:
    """Returns a classifier with the labels of its batch."""
    labels = torch.randint(classes, (len(image),))
    return model, image, lambda output: nn.functional.cross_entropy(output, labels)


def mlp() -> Parts:
    layers = [nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10)]
    return classified(nn.Sequential(*layers), torch.randn(64, 256), 10)


class Residual(nn.Module):
    """Two convolutions with batch norms, and a shortcut."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU(),
            nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels),
        )  # fmt: skip
        project = nn.Sequential(nn.Conv2d(channels_in, channels, 1, stride, bias=False), nn.BatchNorm2d(channels))
        self.shortcut = project if stride != 1 or channels_in != channels else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18() -> Parts:
    width = 8 if tiny else 64
    blocks, channels = [], width
    for stage in range(4):
        for number in range(2):
            blocks.append(Residual(channels, width << stage, 2 if stage and not number else 1))
            channels = width << stage
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    model = nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))
    size = 32 if tiny else 224
    return classified(model, torch.randn(4, 3, size, size), 1000)


class Patches(nn.Module):
    """A vision transformer: patches of an image, encoder layers, and a head over their mean."""

    def __init__(self, size: int, patch: int, width: int, layers: int, heads: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.randn((size // patch) ** 2, width) / width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 1000)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.cut(image).flatten(2).mT + self.places).mean(1))


def vit() -> Parts:
    """Returns ViT-tiny: 12 layers, 192 wide, patches of 16 x 16."""
    model = Patches(32, 8, 16, 2, 2) if tiny else Patches(224, 16, 192, 12, 3)
    return classified(model, torch.randn(2, 3, 32, 32) if tiny else torch.randn(2, 3, 224, 224), 1000)


def double(channels_in: int, channels: int) -> nn.Sequential:
    """Returns two convolutions with batch norms."""
    parts = []
    for count in (channels_in, channels):
        parts += [nn.Conv2d(count, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*parts)


class UNet(nn.Module):
    """A U-Net of four levels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        sizes = [width << level for level in range(4)]
        self.down = nn.ModuleList(double(a, b) for a, b in zip([3, *sizes], sizes, strict=False))
        pairs = list(zip(sizes[1:], sizes, strict=False))[::-1]
        self.widen = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, 2) for a, b in pairs)
        self.up = nn.ModuleList(double(a, b) for a, b in pairs)
        self.head = nn.Conv2d(width, 2, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        levels = []
        for number, block in enumerate(self.down):
            x = block(nn.functional.max_pool2d(x, 2) if number else x)
            levels.append(x)
        for widen, block, level in zip(self.widen, self.up, levels[-2::-1], strict=True):
            x = block(torch.cat([widen(x), level], 1))
        return self.head(x)


def unet() -> Parts:
    size = 32 if tiny else 128
    labels = torch.randint(2, (1, size, size))
    model = UNet(4 if tiny else 32)
    return model, torch.randn(1, 3, size, size), lambda output: nn.functional.cross_entropy(output, labels)


def gpt2() -> Parts:
    """Returns GPT-2 of 4 layers, on 2 texts of 128 tokens."""
    from transformers import GPT2Config, GPT2LMHeadModel

    narrow = {"n_embd": 64, "n_head": 4, "vocab_size": 1000} if tiny else {}
    config = GPT2Config(n_layer=4, use_cache=False, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, **narrow)
    tokens = torch.randint(config.vocab_size, (2, 16 if tiny else 128))
    return GPT2LMHeadModel(config), {"input_ids": tokens, "labels": tokens}, lambda output: output.loss


def bert() -> Parts:
    """Returns BERT of 4 layers with its language-model head, on 128 tokens."""
    from transformers import BertConfig, BertForMaskedLM

    narrow = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 1000} if tiny else {}
    no_dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config = BertConfig(num_hidden_layers=4, **no_dropout, **narrow)
    tokens = torch.randint(config.vocab_size, (1, 16 if tiny else 128))
    return BertForMaskedLM(config), {"input_ids": tokens, "labels": tokens}, lambda output: output.loss


torch.manual_seed(0)
model, example_inputs, loss = globals()[options.name]()
model.train()
if options.name == "bert":
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
else:
    optimizer = torch.optim.SGD(model.parameters(), 1e-4)
