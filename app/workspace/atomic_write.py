"""Atomic file writes: a reader sees the old content or the new content, never a part. No Textual."""

from __future__ import annotations

import os
from pathlib import Path

Stamp = tuple[int, int, int] | None


def write_whole(path: Path, text: str) -> None:
    """Write `text` to `path` atomically."""
    write_whole_bytes(path, text.encode("utf-8"))


def write_whole_bytes(path: Path, data: bytes, lasting: bool = False) -> None:
    """Write bytes to `path` atomically; `lasting` also syncs to disk, so the file survives a power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if lasting:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def stamp_of(path: Path) -> Stamp:
    """A stamp that changes if a file is replaced; `None` if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
