"""Architectures to try the compiler on: each built from its config with random weights, and a program that calls it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

SEED = 0
Module = torch.nn.Module
# What a program does with a model, or with what stands in for it: the tensors it gets out.
Use = Callable[[Callable[..., Any]], Any]


@dataclass(frozen=True)
class Architecture:
    """`make()` gives a module in the mode it is to run in, and `use(model)` its results, in any nest of containers."""

    name: str
    kind: str
    make: Callable[[], tuple[Module, Use]]

    def built(self) -> tuple[Module, Use]:
        """The module and its use, the same at every call."""
        torch.manual_seed(SEED)
        return self.make()


def all_architectures() -> dict[str, Architecture]:
    """By name. Needs `transformers`."""
    from tests.architectures import hearing, language, layers, seeing

    found = (*language.ARCHITECTURES, *seeing.ARCHITECTURES, *hearing.ARCHITECTURES, *layers.ARCHITECTURES)
    return {architecture.name: architecture for architecture in found}


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """The tensors among results: in tuples, lists, mappings and model outputs; caches are left out."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif hasattr(value, "items"):
        for item in value.values():
            yield from tensors_in(item)


def of_config(config: Any, model: Any, **inputs: Callable[[Any], torch.Tensor]) -> Callable[[], tuple[Module, Use]]:
    """A model of `transformers` in evaluation, called once on `inputs`, which are made from its config."""

    def make() -> tuple[Module, Use]:
        built = model(config()).eval()
        given = {name: value(built.config) for name, value in inputs.items()}
        return built, lambda run: run(**given)

    return make
