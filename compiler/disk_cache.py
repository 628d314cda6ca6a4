"""Files kept under the hash of what they were made from, in the user's cache folder: compiled objects, whole programs,
recipes that were found, and what the bindings have registered.

Imports neither torch nor MLIR.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

VARIABLE = "BUDDY_CACHE"
LIMIT = 512 << 20


def folder() -> Path:
    """Where all caches lie: `BUDDY_CACHE`, else where the platform keeps caches."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_cache_dir("buddy-tui"))


@dataclass
class DiskCache:
    """The folder `name` of the cache. What was not written for longest goes when it holds more than `limit` bytes."""

    name: str
    limit: int = LIMIT
    _trimmed: set[Path] = field(default_factory=set)

    def read(self, key: str) -> bytes | None:
        """What was written under `key`; a damaged file counts as absent."""
        try:
            data = self._path(key).read_bytes()
        except OSError:
            return None
        size, _, rest = data.partition(b"\n")
        return rest if size == str(len(rest)).encode() else None

    def write(self, key: str, data: bytes) -> None:
        """Keep `data`; a cache that cannot be written costs time, not the result."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
                file.write(str(len(data)).encode() + b"\n" + data)
            os.replace(file.name, path)
            self._trim(path.parent)

    def _path(self, key: str) -> Path:
        return folder() / self.name / key

    def _trim(self, place: Path) -> None:
        """Once a process and folder: drop the oldest files until the rest is within the limit."""
        if place in self._trimmed:
            return
        self._trimmed.add(place)
        found = sorted(((entry.stat(), entry.path) for entry in os.scandir(place)), key=lambda pair: pair[0].st_mtime)
        size = sum(status.st_size for status, _ in found)
        for status, path in found:
            if size <= self.limit:
                break
            os.unlink(path)
            size -= status.st_size


OBJECTS = DiskCache("objects")
PROGRAMS = DiskCache("programs")
# What the bindings have registered, which takes seconds to find.
CATALOGUES = DiskCache("catalogues", 16 << 20)
TUNED = DiskCache("tuned", 16 << 20)
CACHES = (OBJECTS, PROGRAMS, CATALOGUES, TUNED)


def contents() -> dict[str, tuple[int, int]]:
    """For each cache the number of its files, and their bytes."""
    found = {}
    for cache in CACHES:
        place = folder() / cache.name
        sizes = [entry.stat().st_size for entry in os.scandir(place)] if place.is_dir() else []
        found[cache.name] = (len(sizes), sum(sizes))
    return found


def clear() -> None:
    """Remove all that the caches hold.

    Raises `OSError` where a file cannot be removed.
    """
    for cache in CACHES:
        place = folder() / cache.name
        if place.is_dir():
            shutil.rmtree(place)
