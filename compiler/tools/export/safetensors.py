"""Writes weights as a safetensors file: an 8-byte length, that much JSON, then the data, without gaps between
tensors.

The format is that of https://github.com/huggingface/safetensors ("Format" in its README). Tensors are sorted by element
size and then by name, like those of its own writer, so that each is aligned to its element's size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

_ALIGNMENT = 64  # bytes: the data begin at a cache line


class StoredTensor(NamedTuple):
    """A tensor: safetensors' name of its element type, bytes per element, its shape, and its data."""

    dtype: str
    element: int
    shape: Sequence[int]
    data: memoryview


def write(path: Path, tensors: Mapping[str, StoredTensor], metadata: Mapping[str, str]) -> None:
    """Writes `tensors` by name, and texts about them. Raises `OSError`."""
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
