"""Writing files so that whoever reads them sees what was there or what is, never a part. No Textual."""

from __future__ import annotations

import os
from pathlib import Path

Stamp = tuple[int, int, int] | None


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` so that a reader sees the old text or the new, never a part."""
    write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: Path, data: bytes, lasting: bool = False) -> None:
    """As `write_whole`, for what is no text; `lasting` waits until the disk has it, power or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def stamp_of(path: Path) -> Stamp:
    """What tells a file from one that is put in its place; `None` where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
