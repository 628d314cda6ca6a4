"""Vision models of `transformers`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as hf

from tests.architectures.language import ids
from tests.architectures.zoo import Architecture, of_config

SIDE = 32
LAYERS = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
PATCHES = LAYERS | {"image_size": SIDE, "patch_size": 8}


def pixels(config: Any) -> torch.Tensor:
    return torch.randn(2, 3, SIDE, SIDE)


def vision(name: str, config: Any, model: Any, **options: Any) -> Architecture:
    return Architecture(name, "vision", of_config(partial(config, **options), model, pixel_values=pixels))


def _clip() -> Any:
    text = LAYERS | {"vocab_size": 99, "max_position_embeddings": 16, "eos_token_id": 98}
    return hf.CLIPConfig(text_config=text, vision_config=PATCHES, projection_dim=16)


ARCHITECTURES = (
    vision("ViT", hf.ViTConfig, hf.ViTModel, **PATCHES),
    vision("DeiT", hf.DeiTConfig, hf.DeiTModel, **PATCHES),
    vision("DINOv2", hf.Dinov2Config, hf.Dinov2Model, hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
           image_size=SIDE, patch_size=8),
    vision("BEiT", hf.BeitConfig, hf.BeitModel, **PATCHES, use_relative_position_bias=True),
    vision("Swin", hf.SwinConfig, hf.SwinModel, image_size=SIDE, patch_size=4, embed_dim=16, depths=[1, 2],
           num_heads=[2, 4], window_size=4),
    vision("ConvNeXt", hf.ConvNextConfig, hf.ConvNextModel, hidden_sizes=[8, 16], depths=[1, 2], num_stages=2),
    vision("ResNet", hf.ResNetConfig, hf.ResNetModel, embedding_size=8, hidden_sizes=[16, 32], depths=[1, 2]),
    vision("RegNet", hf.RegNetConfig, hf.RegNetModel, embedding_size=8, hidden_sizes=[16, 32], depths=[1, 1],
           groups_width=8),
    vision("MobileNetV2", hf.MobileNetV2Config, hf.MobileNetV2Model, image_size=SIDE, depth_multiplier=0.25),
    vision("SegFormer", hf.SegformerConfig, hf.SegformerModel, num_encoder_blocks=2, depths=[1, 1], sr_ratios=[4, 2],
           hidden_sizes=[16, 32], patch_sizes=[7, 3], strides=[4, 2], num_attention_heads=[1, 2], mlp_ratios=[2, 2]),
    vision("PoolFormer", hf.PoolFormerConfig, hf.PoolFormerModel, depths=[1, 1], hidden_sizes=[8, 16],
           num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1]),
    Architecture("CLIP", "vision", of_config(_clip, hf.CLIPModel, input_ids=ids, pixel_values=pixels)),
)  # fmt: skip
