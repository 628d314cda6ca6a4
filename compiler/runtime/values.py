"""Chooses the inputs of a run, and writes inputs and outputs to files."""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.run_report import InputChoice
from buddy.compiler.support.files import archive_too_large

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


INDEX = "index.json"
# Bytes per run to keep: values are viewed a page at a time, and the files are in the temporary folder.
LONGEST = 512 << 20
# By the bytes of an element.
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


def named_values(
    captured: CapturedGraph, results: Sequence[Any], expected: Sequence[Any]
) -> Iterator[tuple[str, str, torch.Tensor]]:
    """Yields `(which, name, tensor)` of every input, output of compiled code (`output`), and output of eager."""
    for place in input_positions(captured):
        yield "input", captured.graph.placeholders[place].stable, captured.tensors[place]
    if captured.eager is None:
        yield from (
            ("output", name, value) for name, value in zip(map(str, captured.graph.results), results, strict=True)
        )
        return
    ours = iter(results)
    for name, value in zip(map(str, captured.graph.results), expected, strict=False):
        if torch.is_tensor(value):
            yield "eager", name, value
            if (found := next(ours, None)) is not None:
                yield "output", name, found


def values_file(captured: CapturedGraph, results: Sequence[Any], expected: Sequence[Any]) -> bytes:
    """Returns a `.npz` of `input/NAME`, `output/NAME` of compiled code, and `eager/NAME`."""
    arrays = {f"{which}/{name}": as_array(tensor) for which, name, tensor in named_values(captured, results, expected)}
    data = io.BytesIO()
    np.savez_compressed(data, **arrays)
    return data.getvalue()


class ResultWriter:
    """Stores the results of a run: as `file` if requested, and in the folder `keep` unless it is ""."""

    def __init__(self, captured: CapturedGraph, wanted: bool, keep: str) -> None:
        self._captured, self._wanted, self._keep = captured, wanted, keep
        self.file = b""

    def take(self, results: Sequence[Any], expected: Sequence[Any]) -> None:
        if self._wanted:
            self.file = values_file(self._captured, results, expected)
        if self._keep:
            keep_values(Path(self._keep), self._captured, results, expected)


def keep_values(folder: Path, captured: CapturedGraph, results: Sequence[Any], expected: Sequence[Any]) -> None:
    """Writes a `.npy` of each tensor, and an index; tensors beyond `LONGEST` are only in the index."""
    entries: list[dict[str, Any]] = []
    room = LONGEST
    for number, (which, name, tensor) in enumerate(named_values(captured, results, expected)):
        size = tensor.numel() * tensor.element_size()
        file = f"{number}.npy" if size <= room else ""
        if file:
            room -= size
            np.save(folder / file, as_array(tensor))
        dtype = str(tensor.dtype).removeprefix("torch.")
        entries.append({"which": which, "name": name, "dtype": dtype, "shape": list(tensor.shape), "file": file})
    (folder / INDEX).write_text(json.dumps(entries), "utf-8")


def as_array(tensor: torch.Tensor, *, bits: bool = False) -> Any:
    """Returns the tensor as an array.

    Element types that NumPy lacks (bfloat16, 8-bit floats, complex32) become float32 or complex64, which represent the
    same numbers; with `bits`, integers with the same bits.
    """
    plain = tensor.detach().resolve_conj().resolve_neg().cpu()
    try:
        return plain.numpy()
    except TypeError:
        wider = torch.complex64 if plain.is_complex() else torch.float32
        return (plain.contiguous().view(_INTEGERS[plain.itemsize]) if bits else plain.to(wider)).numpy()
