"""Chooses the inputs of a run: the script's, random ones, or those of a file. Weights do not change."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.run_report import InputChoice
from buddy.compiler.support.archives import archive_too_large

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph


class InputError(Exception):
    """The inputs do not fit the graph; `diagnostic` says which, and what would fit."""

    def __init__(self, what: str, todo: str) -> None:
        self.diagnostic = Diagnostic(what, "the inputs of the run", todo)
        super().__init__(str(self.diagnostic))


def input_positions(captured: CapturedGraph) -> list[int]:
    """Returns the positions of captured tensors that are inputs, not parameters, buffers or constants."""
    return [place for place, kind in enumerate(captured.graph.kinds) if kind is NodeType.InputNode]


def chosen_tensors(captured: CapturedGraph, choice: InputChoice) -> list[torch.Tensor]:
    """Returns the graph's tensors in placeholder order, with the inputs of `choice`. Raises `InputError`."""
    tensors, places = list(captured.tensors), input_positions(captured)
    if choice.kind == "random":
        generator = torch.Generator().manual_seed(choice.seed)
        for place in places:
            tensors[place] = random_of(tensors[place], tuple(tensors[place].shape), generator)
    elif choice.kind == "file":
        names = [captured.graph.placeholders[place].stable for place in places]
        given = _in_order(_read(choice), names)
        for place, name, value in zip(places, names, given, strict=True):
            tensors[place] = _fitting(value, tensors[place], name)
    return tensors


def random_of(tensor: torch.Tensor, shape: tuple[int, ...], generator: torch.Generator) -> torch.Tensor:
    """Returns random numbers of `shape` distributed like `tensor`: normal, or, for integers and masks, its own values.

    So an index stays valid.
    """
    same = shape == tuple(tensor.shape)
    made = torch.empty_like(tensor) if same else torch.empty(shape, dtype=tensor.dtype)
    finite = bool(tensor.isfinite().all()) if tensor.is_floating_point() else False
    if tensor.is_floating_point() and finite and tensor.numel() > 1:
        drawn = torch.randn(shape, generator=generator)
        return made.copy_(drawn * tensor.float().std() + tensor.float().mean())
    if not tensor.numel() or not made.numel():
        return made.zero_()
    picks = torch.randint(tensor.numel(), (made.numel(),), generator=generator)
    return made.copy_(tensor.reshape(-1)[picks].reshape(shape))


def _read(choice: InputChoice) -> Any:
    """Returns the contents of a `.npy`, `.npz` or `.pt`, without executing code in it."""
    data = io.BytesIO(choice.content)
    try:
        if zipfile.is_zipfile(data):
            with zipfile.ZipFile(data) as archive:
                words = archive_too_large(archive, len(choice.content))
            if words:
                raise InputError(f"{choice.title} is {words}", "give a file that contains only the tensors")
        data.seek(0)
        if choice.title.endswith((".npy", ".npz")):
            found = np.load(data, allow_pickle=False)
            return {name: found[name] for name in found.files} if isinstance(found, np.lib.npyio.NpzFile) else found
        return torch.load(data, weights_only=True, map_location="cpu")
    except InputError:
        raise
    except (ValueError, OSError, EOFError, RuntimeError, KeyError, zipfile.BadZipFile) as error:
        raise InputError(
            f"{choice.title}: {error}", "give a .npy, a .npz, or a .pt that contains only tensors"
        ) from error
    except Exception as error:
        # Unpickling raises errors of many types for a file that is invalid or contains forbidden objects.
        raise InputError(
            f"{choice.title} is not a file of tensors: {error}", "give a .npy, a .npz, or a .pt"
        ) from error


def _in_order(found: Any, names: Sequence[str]) -> list[Any]:
    """Returns the values for the inputs of these names: by name if the file has all of them, else in its own order."""
    if isinstance(found, Mapping):
        named = {str(key): value for key, value in found.items()}
        by_name = {key.removeprefix("input/"): value for key, value in named.items() if "/" not in key[6:]}
        if all(name in by_name for name in names):
            return [by_name[name] for name in names]
        values = list(found.values())
    else:
        values = list(found) if isinstance(found, (list, tuple)) else [found]
    if len(values) != len(names):
        what = f"the file has {len(values)} tensors, the graph {len(names)} inputs"
        raise InputError(what, f"give one for each of {', '.join(names) or 'none'}, in this order or by these names")
    return values


def _fitting(value: Any, like: torch.Tensor, name: str) -> torch.Tensor:
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        of = f" of {value.dtype}" if isinstance(value, np.ndarray) else ""
        what = f"{name} is {type(value).__name__}{of} in the file, not a tensor"
        raise InputError(what, "save tensors, or arrays of numbers") from error
    if tensor.shape != like.shape:
        sizes = f"{list(tensor.shape)}, and the graph was captured for {list(like.shape)}"
        raise InputError(f"{name} is {sizes}", "give that shape, or change the shape in the script")
    if tensor.is_floating_point() != like.is_floating_point() or tensor.is_complex() != like.is_complex():
        raise InputError(f"{name} is {tensor.dtype}, and the graph takes {like.dtype}", "convert it first")
    return torch.empty_like(like).copy_(tensor)
