"""Language models of `transformers`: encoders, decoders with a cache, both, mixtures of experts, state space."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers as hf

from tests.architectures.zoo import Architecture, Module, Use, of_config

TOKENS, NEW_TOKENS = 7, 2
WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 99}
TALL = WIDE | {"intermediate_size": 48, "max_position_embeddings": 64}
GROUPED = TALL | {"num_key_value_heads": 2}
EXPERTS = GROUPED | {"moe_intermediate_size": 24, "num_experts": 4, "num_experts_per_tok": 2}


def ids(config: Any, length: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, 99, (2, length))


def encoder(name: str, config: Any, model: Any, **options: Any) -> Architecture:
    return Architecture(name, "encoder", of_config(partial(config, **options), model, input_ids=ids))


def decoder(name: str, config: Any, model: Any, kind: str = "decoder", **options: Any) -> Architecture:
    """Reads a prompt into its cache, then as many tokens, each the likeliest, one by one."""

    def make() -> tuple[Module, Use]:
        built = model(config(**options)).eval()
        prompt = ids(built.config)
        return built, lambda run: _decoded(run, prompt)

    return Architecture(name, kind, make)


def _decoded(run: Callable[..., Any], prompt: torch.Tensor) -> list[torch.Tensor]:
    found = run(input_ids=prompt, use_cache=True)
    logits = [found.logits]
    for _ in range(NEW_TOKENS):
        cache = {"past_key_values": found.past_key_values}
        found = run(input_ids=logits[-1][:, -1:].argmax(-1), use_cache=True, **cache)
        logits.append(found.logits)
    return logits


def recurrent(name: str, config: Any, model: Any, **options: Any) -> Architecture:
    """A state-space model, which reads the whole text at once."""
    return Architecture(name, "state space", of_config(partial(config, **options), model, input_ids=ids))


def translator(name: str, config: Any, model: Any, **options: Any) -> Architecture:
    """An encoder-decoder."""
    make = of_config(partial(config, **options), model, input_ids=ids, decoder_input_ids=partial(ids, length=4))
    return Architecture(name, "encoder-decoder", make)


_SEQ2SEQ = {
    "vocab_size": 99, "d_model": 32, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
    "decoder_attention_heads": 4, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 64,
}  # fmt: skip
_T5 = {"vocab_size": 99, "d_model": 32, "d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
_STATE = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}

ARCHITECTURES = (
    encoder("BERT", hf.BertConfig, hf.BertModel, **TALL),
    encoder("RoBERTa", hf.RobertaConfig, hf.RobertaModel, **TALL),
    encoder("DistilBERT", hf.DistilBertConfig, hf.DistilBertModel, dim=32, hidden_dim=48, n_layers=2, n_heads=4,
            vocab_size=99),
    encoder("ALBERT", hf.AlbertConfig, hf.AlbertModel, **TALL, embedding_size=16),
    encoder("ELECTRA", hf.ElectraConfig, hf.ElectraModel, **TALL, embedding_size=16),
    encoder("MPNet", hf.MPNetConfig, hf.MPNetModel, **TALL),
    encoder("DeBERTa v2", hf.DebertaV2Config, hf.DebertaV2Model, **TALL, relative_attention=True,
            pos_att_type=["p2c", "c2p"], position_buckets=8),
    encoder("ModernBERT", hf.ModernBertConfig, hf.ModernBertModel, **TALL, pad_token_id=0),
    encoder("FNet", hf.FNetConfig, hf.FNetModel, **{k: v for k, v in TALL.items() if k != "num_attention_heads"}),
    encoder("ConvBERT", hf.ConvBertConfig, hf.ConvBertModel, **TALL, embedding_size=16),
    decoder("GPT-2", hf.GPT2Config, hf.GPT2LMHeadModel, n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64),
    decoder("GPT-NeoX", hf.GPTNeoXConfig, hf.GPTNeoXForCausalLM, **TALL),
    decoder("GPT-J", hf.GPTJConfig, hf.GPTJForCausalLM, n_embd=32, n_layer=2, n_head=4, vocab_size=99, n_positions=64,
            rotary_dim=4),
    decoder("OPT", hf.OPTConfig, hf.OPTForCausalLM, **WIDE, ffn_dim=48, max_position_embeddings=64,
            word_embed_proj_dim=32),
    decoder("BLOOM", hf.BloomConfig, hf.BloomForCausalLM, vocab_size=99, hidden_size=32, n_layer=2, n_head=4),
    decoder("Llama", hf.LlamaConfig, hf.LlamaForCausalLM, **GROUPED),
    decoder("Mistral", hf.MistralConfig, hf.MistralForCausalLM, **GROUPED, sliding_window=4),
    decoder("Qwen2", hf.Qwen2Config, hf.Qwen2ForCausalLM, **GROUPED),
    decoder("Qwen3", hf.Qwen3Config, hf.Qwen3ForCausalLM, **GROUPED, head_dim=8),
    decoder("Gemma", hf.GemmaConfig, hf.GemmaForCausalLM, **GROUPED, head_dim=8),
    decoder("Gemma 2", hf.Gemma2Config, hf.Gemma2ForCausalLM, **GROUPED, head_dim=8, sliding_window=4),
    decoder("Phi", hf.PhiConfig, hf.PhiForCausalLM, **GROUPED),
    decoder("Falcon", hf.FalconConfig, hf.FalconForCausalLM, **WIDE),
    decoder("StableLM", hf.StableLmConfig, hf.StableLmForCausalLM, **GROUPED),
    decoder("Cohere", hf.CohereConfig, hf.CohereForCausalLM, **GROUPED),
    decoder("Mixtral", hf.MixtralConfig, hf.MixtralForCausalLM, "mixture of experts", **GROUPED, num_local_experts=4),
    decoder("Qwen3 MoE", hf.Qwen3MoeConfig, hf.Qwen3MoeForCausalLM, "mixture of experts", **EXPERTS, head_dim=8),
    decoder("OLMoE", hf.OlmoeConfig, hf.OlmoeForCausalLM, "mixture of experts", **GROUPED, num_experts=4,
            num_experts_per_tok=2),
    recurrent("Mamba", hf.MambaConfig, hf.MambaForCausalLM, **_STATE),
    recurrent("Mamba 2", hf.Mamba2Config, hf.Mamba2ForCausalLM, **_STATE, num_heads=8, head_dim=8, n_groups=2,
              chunk_size=4),
    recurrent("RWKV", hf.RwkvConfig, hf.RwkvForCausalLM, vocab_size=99, hidden_size=32, num_hidden_layers=2),
    translator("T5", hf.T5Config, hf.T5ForConditionalGeneration, **_T5),
    translator("BART", hf.BartConfig, hf.BartForConditionalGeneration, **_SEQ2SEQ),
    translator("Pegasus", hf.PegasusConfig, hf.PegasusForConditionalGeneration, **_SEQ2SEQ),
    translator("Marian", hf.MarianConfig, hf.MarianMTModel, **_SEQ2SEQ, pad_token_id=0, decoder_start_token_id=0),
)  # fmt: skip
