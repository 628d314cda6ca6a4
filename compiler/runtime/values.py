"""Writes the inputs and outputs of a run to files: a `.npz` for users, or a folder that the engine reads pages from."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from buddy.compiler.runtime.choose_inputs import input_positions

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

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
