"""Models whose compiled results are right and have to be called so, in float32 and in bfloat16: deep, wide and odd."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from tests.architectures import layers
from tests.architectures.zoo import SEED, Module, Use, all_architectures, of_config, tensors_in
from tests.models import Amplifying

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
TOKENS = 64
Make = Callable[[], tuple[Module, Use]]


@dataclass(frozen=True)
class Model:
    """`make()` gives a module in float32 and what a program does with it."""

    name: str
    make: Make

    def program(self, dtype: str) -> Callable[[], list[torch.Tensor]]:
        """A function of no arguments: the model with weights and float inputs of `dtype`, the same at every call."""
        torch.manual_seed(SEED)
        module, use = self.make()
        run = partial(_called, module.to(DTYPES[dtype]), DTYPES[dtype])
        return lambda: list(tensors_in(use(run)))


def _called(module: Module, dtype: torch.dtype, *args: Any, **kwargs: Any) -> Any:
    def cast(value: Any) -> Any:
        return value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return module(*map(cast, args), **{name: cast(value) for name, value in kwargs.items()})


# ---- models of `transformers` ----------------------------------------------------------------------------------------


def _tokens(config: Any, length: int = TOKENS) -> torch.Tensor:
    return torch.randint(3, config.vocab_size, (1, length))


def _image(config: Any) -> torch.Tensor:
    return torch.randn(1, 3, config.image_size, config.image_size)


def _of(config: str, model: str, options: dict[str, Any], **inputs: Callable[[Any], torch.Tensor]) -> Make:
    """A model of `transformers`, which is imported when it is made."""

    def make() -> tuple[Module, Use]:
        import transformers as hf

        return of_config(lambda: getattr(hf, config)(**options), getattr(hf, model), **inputs)()

    return make


def _language(config: str, model: str, length: int = TOKENS, **options: Any) -> Make:
    # Special tokens among the few that it has.
    return _of(
        config, model, {**options, "bos_token_id": 0, "eos_token_id": 0}, input_ids=partial(_tokens, length=length)
    )


def _vision(config: str, model: str, **options: Any) -> Make:
    return _of(config, model, options, pixel_values=_image)


# Weights such that each layer keeps the size of what it gets, as trained ones do: 1 / sqrt(width).
_NARROW = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.125}
_FEW = {"vocab_size": 99, "length": 16}


def _deep() -> list[Model]:
    bert = {"hidden_size": 256, "num_hidden_layers": 12, "num_attention_heads": 4, "intermediate_size": 1024}
    vit = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 3, "intermediate_size": 768}
    gpt2 = {"n_layer": 48, "n_embd": 320, "n_head": 5, "n_positions": TOKENS, "use_cache": False}
    llama = {
        "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 22, "num_attention_heads": 32,
        "num_key_value_heads": 4, "use_cache": False,
    }  # fmt: skip
    return [
        Model("ViT, 12 layers", _vision("ViTConfig", "ViTModel", **vit, image_size=64, patch_size=8)),
        Model("BERT, 12 layers", _language("BertConfig", "BertModel", **bert, vocab_size=1000)),
        Model("ResNet, 50 layers", _vision("ResNetConfig", "ResNetModel", image_size=64)),
        Model("GPT-2, 48 layers", _language("GPT2Config", "GPT2LMHeadModel", **gpt2, vocab_size=2000)),
        Model("Llama, 1.1 billion", _language("LlamaConfig", "LlamaForCausalLM", **llama, vocab_size=32000)),
    ]


def _small() -> list[Model]:
    """Those that faults are planted in, beside some of the zoo's."""
    gpt2 = {"n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 16, "initializer_range": 0.125}
    wide, heads = {"intermediate_size": 128}, {"num_key_value_heads": 2}
    bert = _language("BertConfig", "BertModel", **_NARROW, **wide, **_FEW)
    llama = _language("LlamaConfig", "LlamaForCausalLM", **_NARROW, **wide, **heads, **_FEW, use_cache=False)
    decoder = _language("GPT2Config", "GPT2LMHeadModel", **gpt2, **_FEW, use_cache=False)
    vit = _vision("ViTConfig", "ViTModel", **_NARROW, **wide, image_size=32, patch_size=8)
    return [
        Model("BERT, 2 layers", _with_vectors(bert)),
        Model(
            "GPT-2, 2 layers",
            _with_vectors(decoder),
        ),
        Model("Llama, 2 layers", _with_vectors(llama)),
        Model("ViT, 2 layers", _with_vectors(vit)),
    ]


def _with_vectors(make: Make) -> Make:
    """A model with biases, weights of norms and scales moved from the one number that all their elements start at."""

    def made() -> tuple[Module, Use]:
        module, use = make()
        with torch.no_grad():
            for parameter in module.parameters():
                if parameter.dim() == 1 or bool((parameter == parameter.flatten()[0]).all()):
                    parameter.add_(0.1 * torch.randn_like(parameter))
        return module, use

    return made


# ---- small ones of our own -------------------------------------------------------------------------------------------


class Quantised(nn.Module):
    """A layer on inputs that are rounded to 6 bits: the whole numbers are a result, too."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 48), nn.Linear(48, 24)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        whole = torch.clamp(torch.round(x * 8), -16, 15).to(torch.int8)
        return whole, self.second(nn.functional.relu(self.first(whole.to(x.dtype) / 8)))


class Choosing(nn.Module):
    """Positions, and numbers at positions: what decoders and mixtures of experts do with their scores."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.head = nn.Sequential(nn.Linear(24, 64), nn.GELU(), nn.Linear(64, 64)), nn.Linear(64, 40)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        scores = self.head(self.layers(x))
        best, places = scores.topk(4, -1)
        sharp = torch.softmax(scores * 1000, -1)
        return scores.argmax(-1), places, sharp, scores.sort(-1)[1], torch.cumsum(best, -1), torch.round(x).argmax(-1)


class Gathering(nn.Module):
    """Tables, segments, windows and whole numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.head = nn.Embedding(50, 32), nn.Linear(32, 16)

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> tuple[torch.Tensor, ...]:
        found = self.table(places)
        sums = torch.zeros_like(x[:8]).index_add(0, places[:, 0] % 8, x)
        pooled = nn.functional.avg_pool1d(found.mT, 3, 2, 1)
        halves = torch.div(places - 25, 4, rounding_mode="floor")
        lengths = torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp_min(1e-6)
        return self.head(found).logsumexp(-1), sums, pooled, halves, x / lengths, torch.copysign(x * 0, x).reciprocal()


def _own(module: Callable[[], Module], *inputs: Callable[[], torch.Tensor]) -> Make:
    def make() -> tuple[Module, Use]:
        built, given = module().eval(), [value() for value in inputs]
        return built, lambda run: run(*given)

    return make


def _places() -> torch.Tensor:
    return torch.randint(0, 50, (32, 9))


def _sixteenths(width: int) -> Callable[[], torch.Tensor]:
    """Numbers that are whole in sixteenths, so that some of them are halfway between two wholes of an eighth."""
    return lambda: torch.round(torch.randn(32, width) * 16) / 16


def _rows(width: int) -> Callable[[], torch.Tensor]:
    return lambda: torch.randn(32, width)


_ZOO = (
    "Swin", "PoolFormer", "ResNet", "U-Net", "nn.LSTM", "DenseNet", "MLP-Mixer", "VGG in training", "Super-resolution",
    "DeBERTa v2", "Gemma 2", "Mixtral", "Mamba", "T5", "ConvNeXt", "Whisper", "Wav2Vec2",
)  # fmt: skip


def _of_zoo(name: str) -> Make:
    """One of the architectures; those that need `transformers` import it when they are made."""

    def make() -> tuple[Module, Use]:
        plain = {architecture.name: architecture for architecture in layers.ARCHITECTURES}
        return (plain.get(name) or all_architectures()[name]).make()

    return make


def models() -> dict[str, Model]:
    """By name: the smallest first, the largest last. Most need `transformers` to be made."""
    own = [
        Model("quantised layers", _own(Quantised, _sixteenths(24))),
        Model("choices", _own(Choosing, _rows(24))),
        Model("gathers and windows", _own(Gathering, _rows(32), _places)),
        Model("24 layers of sines", _own(Amplifying, _rows(64))),
    ]
    zoo = {name: _of_zoo(name) for name in _ZOO}
    # Otherwise the biases of positions are 0, and the scales of layers so small that no fault in a layer shows.
    zoo |= {name: _with_vectors(zoo[name]) for name in ("Swin", "PoolFormer")}
    found = [*own, *_small(), *(Model(name, make) for name, make in zoo.items()), *_deep()]
    return {model.name: model for model in found}
