"""Calls a model with tensors of other shapes than the script's: `x=4x128` makes the argument `x` one of 4 by 128."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any

import torch

from buddy.compiler.importers.sources.program import SourceError, source_error
from buddy.compiler.importers.sources.random_inputs import dtype_of, random_tensor
from buddy.compiler.protocol.shape_words import shape_word
from buddy.compiler.runtime.choose_inputs import random_of
from buddy.compiler.runtime.torch_values import to_torch

_TODO = "give NAME=4x128, or NUMBER=4x128, of a tensor that the model is called with"


def with_shapes(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, with those in `shapes` replaced by random tensors of those shapes, distributed like the
    script's if the dtype is the same.

    Names are those of the parameters, numbers count the positional arguments from 0. Raises `SourceError`.
    """
    changed, named = list(args), dict(kwargs)
    names = _parameters(function)
    generator = torch.Generator().manual_seed(0)
    for text in shapes:
        try:
            word = shape_word(text)
        except ValueError as error:
            raise source_error(str(error), "the shapes to capture with", _TODO) from error
        name, dtype = word.name, dtype_of(word)
        place: Any = int(name) if name.isdigit() else names.index(name) if name in names else -1
        holder, key = (named, name) if name in named else (changed, place)
        value = holder[key] if name in named or 0 <= place < len(changed) else None  # type: ignore[index]
        if not isinstance(value, torch.Tensor):
            have = ", ".join(_tensors(names, args, kwargs)) or "none"
            raise source_error(f"the model has no tensor argument {name}; with {have}", "the shapes", _TODO)
        kept = not word.dtype or to_torch(dtype) == value.dtype
        made = random_of(value, word.shape, generator) if kept else random_tensor(word.shape, dtype, generator)
        holder[key] = made  # type: ignore[index]
    return tuple(changed), named


def shape_refusal(shapes: Sequence[str], error: BaseException) -> SourceError:
    """The error if the model raises `error` for other shapes."""
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    what = f"the model does not accept {' '.join(shapes)}: {type(error).__name__}: {line}"
    return source_error(what, "the shapes to capture with", "give other shapes, or none for the script's own")


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        target = function.forward if isinstance(function, torch.nn.Module) else function
        return list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return []


def _tensors(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """The tensors of a call in the form `x=4x128`."""
    pairs = [(names[k] if k < len(names) else str(k), value) for k, value in enumerate(args)]
    return [
        f"{name}={'x'.join(map(str, value.shape))}"
        for name, value in (*pairs, *kwargs.items())
        if isinstance(value, torch.Tensor)
    ]
