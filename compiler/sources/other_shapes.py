"""Calls with tensors of other shapes than the script's: `x=4x128` makes the argument `x` one of 4 by 128."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Any

import torch

from buddy.compiler.runner.choose_inputs import random_of
from buddy.compiler.sources.program import SourceError, source_error

_SHAPE = re.compile(r"(\w+)=(\d+(?:x\d+)*)")
_TODO = "say NAME=4x128, or NUMBER=4x128, of a tensor that the model is called with"


def with_shapes(
    function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], shapes: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments, those that `shapes` names as random tensors of those shapes, distributed as the script's are.

    Names are those of the parameters, numbers count the positional arguments from 0. Raises `SourceError`.
    """
    changed, named = list(args), dict(kwargs)
    names = _parameters(function)
    generator = torch.Generator().manual_seed(0)
    for text in shapes:
        found = _SHAPE.fullmatch(text.strip())
        if found is None:
            raise source_error(f"{text!r} is no shape", "the shapes to capture with", _TODO)
        name, shape = found[1], tuple(map(int, found[2].split("x")))
        place: Any = int(name) if name.isdigit() else names.index(name) if name in names else -1
        holder, key = (named, name) if name in named else (changed, place)
        value = holder[key] if name in named or 0 <= place < len(changed) else None  # type: ignore[index]
        if not isinstance(value, torch.Tensor):
            have = ", ".join(_tensors(names, args, kwargs)) or "none"
            raise source_error(f"the model is called with no tensor {name}; with {have}", "the shapes", _TODO)
        holder[key] = random_of(value, shape, generator)  # type: ignore[index]
    return tuple(changed), named


def refused(shapes: Sequence[str], error: BaseException) -> SourceError:
    """What to say where the model raises `error` for other shapes."""
    line = next((line for line in str(error).splitlines() if line.strip()), "")
    what = f"the model does not take {' '.join(shapes)}: {type(error).__name__}: {line}"
    return source_error(what, "the shapes to capture with", "give others, or none for the script's own")


def _parameters(function: Callable[..., Any]) -> list[str]:
    try:
        target = function.forward if isinstance(function, torch.nn.Module) else function
        return list(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return []


def _tensors(names: Sequence[str], args: Sequence[Any], kwargs: dict[str, Any]) -> list[str]:
    """The tensors of a call as `x=4x128`."""
    pairs = [(names[k] if k < len(names) else str(k), value) for k, value in enumerate(args)]
    return [
        f"{name}={'x'.join(map(str, value.shape))}"
        for name, value in (*pairs, *kwargs.items())
        if isinstance(value, torch.Tensor)
    ]
