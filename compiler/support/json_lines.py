"""JSON Lines files: results appended one per line, by processes that may be interrupted at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")


def read(path: Path, kind: type[Value]) -> list[Value]:
    """Returns the values of type `kind` in a file; skips truncated lines and other types. A missing file is empty.

    Raises `OSError`.
    """
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError:
            continue
    return found


def append(path: Path, value: Any) -> None:
    """Appends a value; starts a new line if the last one is truncated. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        truncated = file.read() not in (b"", b"\n")
        file.write(b"\n" * truncated + msgspec.json.encode(value) + b"\n")
