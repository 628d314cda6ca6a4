"""Results appended to a file one by one, as a line of JSON each, by processes that may be interrupted at any time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")


def read(path: Path, kind: type[Value]) -> list[Value]:
    """Returns the values in a file, empty if it does not exist; skips lines that are truncated or of another type.

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
    """Appends a value immediately; starts a new line after a truncated one. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        torn = file.read() not in (b"", b"\n")
        file.write(b"\n" * torn + msgspec.json.encode(value) + b"\n")
