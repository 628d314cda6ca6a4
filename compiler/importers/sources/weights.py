"""Files of `torch.save`: weights, which are not a program; or a whole module, which must be a trusted pickle."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch

from buddy.compiler.importers.sources.modules import captured_module
from buddy.compiler.importers.sources.opening import Opening
from buddy.compiler.importers.sources.pickles import read_weights
from buddy.compiler.importers.sources.program import CapturedProgram, SourceError, source_error

_SHOWN = 4


def load(opening: Opening) -> CapturedProgram:
    """The program of a pickled module that the user trusts. Raises `SourceError`, also for weights alone."""
    found = read_weights(opening.path, opening.title, opening.trusts)
    if isinstance(found, torch.nn.Module):
        return captured_module(opening, found.eval())
    raise _only_weights(opening.title, found)


def _only_weights(title: str, found: Any) -> SourceError:
    tensors = list(_tensors("", found))
    if not tensors:
        what = f"{title} holds a {type(found).__name__}, which is neither weights nor a program"
        return source_error(what, title, "open the script that uses it")
    count = sum(tensor.numel() for _, tensor in tensors)
    shown = ", ".join(f"{name or 'a tensor'} {_told(tensor)}" for name, tensor in tensors[:_SHOWN])
    more = f" and {len(tensors) - _SHOWN} more" if len(tensors) > _SHOWN else ""
    what = f"{title} contains weights but no program: {len(tensors)} tensors, {count:,} numbers ({shown}{more})"
    return source_error(what, title, "open the script that defines the model and loads them")


def _tensors(name: str, value: Any) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in nested dicts and lists, with their paths."""
    if isinstance(value, torch.Tensor):
        yield name, value
    elif isinstance(value, Mapping):
        for key, item in value.items():
            yield from _tensors(f"{name}.{key}".lstrip("."), item)
    elif isinstance(value, (list, tuple)):
        for place, item in enumerate(value):
            yield from _tensors(f"{name}.{place}".lstrip("."), item)


def _told(tensor: torch.Tensor) -> str:
    return f"{'x'.join(map(str, tensor.shape)) or 'scalar'} {str(tensor.dtype).removeprefix('torch.')}"
