"""Weights in a safetensors file: an 8-byte length, that much JSON, then the data, without gaps between tensors.

The format is that of https://github.com/huggingface/safetensors ("Format" in its README). Tensors come by size of
element and then by name, as its own writer has them, so that each lies on a multiple of its element's size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_ALIGNMENT = 64  # bytes: the data begin at a cache line


class Entry(NamedTuple):
    """A tensor: safetensors' word for its element type, bytes an element, its shape, and its data."""

    dtype: str
    element: int
    shape: Sequence[int]
    data: memoryview


def write(path: Path, tensors: Mapping[str, Entry], metadata: Mapping[str, str]) -> None:
    """Write `tensors` by name, and texts about them. Raises `OSError` where that cannot be done."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element, tensors[name].dtype, name))
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    offset = 0
    for name in order:
        found = tensors[name]
        end = offset + found.data.nbytes
        header[name] = {"dtype": found.dtype, "shape": list(found.shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in order:
            file.write(tensors[name].data)
