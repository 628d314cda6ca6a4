"""Results that are added to a file one by one, a line of JSON each, by what may be interrupted at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

Value = TypeVar("Value")


def read(path: Path, kind: type[Value]) -> list[Value]:
    """The values in a file, none where there is no file; a line that is torn or of another kind counts as none.

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
    """Add a value at once; behind a line that is torn it begins a new one. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        torn = file.read() not in (b"", b"\n")
        file.write(b"\n" * torn + msgspec.json.encode(value) + b"\n")
