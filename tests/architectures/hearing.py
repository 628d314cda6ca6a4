"""Audio models of `transformers`."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import transformers as hf

from tests.architectures.zoo import Architecture, of_config

_SPEECH = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 32,
    "conv_dim": (16, 16), "conv_kernel": (10, 3), "conv_stride": (5, 2), "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 4, "apply_spec_augment": False,
}  # fmt: skip


def samples(config: Any) -> torch.Tensor:
    return torch.randn(1, 400)


def speech(name: str, config: Any, model: Any) -> Architecture:
    return Architecture(name, "audio", of_config(partial(config, **_SPEECH), model, input_values=samples))


def _whisper() -> Any:
    return hf.WhisperConfig(
        vocab_size=99, d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, num_mel_bins=8, max_source_positions=20,
        max_target_positions=20, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip


def _spectrogram() -> Any:
    return hf.ASTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, num_mel_bins=32,
        max_length=48, patch_size=8, frequency_stride=8, time_stride=8,
    )  # fmt: skip


ARCHITECTURES = (
    speech("Wav2Vec2", hf.Wav2Vec2Config, hf.Wav2Vec2Model),
    speech("HuBERT", hf.HubertConfig, hf.HubertModel),
    Architecture("Whisper", "audio", of_config(
        _whisper, hf.WhisperForConditionalGeneration, input_features=lambda _: torch.randn(1, 8, 40),
        decoder_input_ids=lambda _: torch.randint(3, 99, (1, 5)),
    )),
    Architecture("AST", "audio", of_config(_spectrogram, hf.ASTModel, input_values=lambda _: torch.randn(1, 48, 32))),
    Architecture("EnCodec", "audio", of_config(
        partial(hf.EncodecConfig, num_filters=4, upsampling_ratios=[4, 2], hidden_size=8, codebook_size=16,
                num_lstm_layers=1, codebook_dim=8),
        hf.EncodecModel, input_values=lambda _: torch.randn(1, 1, 320),
    )),
)  # fmt: skip
