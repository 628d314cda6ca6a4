"""A disk cache: files named by the hash of their input, for objects, programs, tuned recipes and pass catalogues.

The files are executed later, so folders must belong to the user and be writable by the user only, links are not
followed, and each file starts with a keyed hash (RFC 2104) of its path and content; the key is a file next to the
folders. An invalid file counts as missing and is replaced. Imports neither torch nor MLIR.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import shutil
import stat
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

VARIABLE = "BUDDY_CACHE"
LIMIT = 512 << 20
# The length of SHA-256: RFC 2104 recommends no shorter key.
SECRET, SECRET_BYTES = "key", 32


def folder() -> Path:
    """Returns the folder of all caches: `BUDDY_CACHE`, else the platform's cache folder."""
    return Path(os.environ.get(VARIABLE) or platformdirs.user_cache_dir("buddy-tui"))


def _distrust_reason(path: Path, found: os.stat_result) -> str:
    """Returns why a folder or file with the status `found` is not private to the user, "" if it is."""
    if stat.S_ISLNK(found.st_mode):
        return f"{path} is a link"
    if hasattr(os, "getuid") and found.st_uid != os.getuid():
        return f"{path} belongs to another user"
    return f"{path} is writable by others" if os.name == "posix" and found.st_mode & 0o022 else ""


def problem() -> str:
    """Returns why nothing can be cached, "" if it can."""
    key = folder() / SECRET
    for place in (folder(), key, *(folder() / cache.name for cache in CACHES)):
        try:
            found = place.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{place}: {error.strerror}"
        is_kind, kind = (stat.S_ISREG, "file") if place == key else (stat.S_ISDIR, "folder")
        why = _distrust_reason(place, found) or ("" if is_kind(found.st_mode) else f"{place} is not a {kind}")
        if why:
            return why
    existing = next(place for place in (folder(), *folder().absolute().parents) if os.path.exists(place))
    return "" if os.access(existing, os.W_OK | os.X_OK) else f"{existing} is not writable"


@dataclass
class DiskCache:
    """The folder `name` of the cache. Beyond `limit` bytes, the files that were written least recently are deleted."""

    name: str
    limit: int = LIMIT
    _trimmed: set[Path] = field(default_factory=set)

    def read(self, key: str) -> bytes | None:
        """Returns the data of `key`, or `None`; a damaged file, or one of another user, counts as missing."""
        try:
            if any(_distrust_reason(place, place.lstat()) for place in (folder(), folder() / self.name)):
                return None
            seal, _, data = _content(self._path(key)).partition(b"\n")
            return data if hmac.compare_digest(seal, self._keyed_hash(key, data)) else None
        except OSError:
            return None

    def write(self, key: str, data: bytes) -> None:
        """Stores `data`; ignores `OSError`, since a missing entry costs only time."""
        path = self._path(key)
        with contextlib.suppress(OSError):
            for place in (folder(), path.parent):
                _make_private(place)
            _replace(path, self._keyed_hash(key, data) + b"\n" + data)
            self._trim(path.parent)

    def _keyed_hash(self, key: str, data: bytes) -> bytes:
        """Returns the keyed hash of `data` under `key`. Raises `OSError`."""
        code = hmac.new(_read_key(), f"{self.name}/{key}\n".encode(), "sha256")
        code.update(data)
        return code.hexdigest().encode()

    def _path(self, key: str) -> Path:
        return folder() / self.name / key

    def _trim(self, place: Path) -> None:
        """Deletes the oldest files until the rest is within the limit, once per process and folder."""
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


def _make_private(place: Path) -> None:
    """Creates a folder that is private to the user. Raises `PermissionError` if it is not.

    The mode of a folder that the user has configured is not changed: it may have other uses.
    """
    place.mkdir(parents=True, exist_ok=True, mode=0o700)
    named = VARIABLE in os.environ and place == folder()
    found = place.lstat()
    if found.st_mode & 0o077 and not named and not stat.S_ISLNK(found.st_mode):
        place.chmod(0o700)
    why = _distrust_reason(place, place.lstat())
    if why:
        raise PermissionError(why)


def _content(path: Path) -> bytes:
    """Returns the content of a file of the user's own. Raises `OSError` for any other."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode) or _distrust_reason(path, found):
            raise PermissionError(f"{path} is not a file of this user")
        return file.read()


def _replace(path: Path, data: bytes) -> None:
    """Writes a file atomically. Raises `OSError`."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _read_key() -> bytes:
    """Returns the key of this user's hashes, created on first use. Raises `OSError`."""
    path = folder() / SECRET
    with contextlib.suppress(FileNotFoundError):
        found = _content(path)
        if len(found) == SECRET_BYTES:
            return found
        path.unlink()
    handle, name = tempfile.mkstemp(dir=folder())
    try:
        with open(handle, "wb") as file:
            file.write(secrets.token_bytes(SECRET_BYTES))
        _install_key(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    return _content(path)


def _install_key(name: str, path: Path) -> None:
    """Makes the file `name` the key; if two processes do so at the same time, the first one's file is used."""
    try:
        os.link(name, path)
    except FileExistsError:
        pass
    except OSError:  # Without hard links the last key is used, and files with hashes by other keys are lost.
        os.replace(name, path)


OBJECTS = DiskCache("objects")
PROGRAMS = DiskCache("programs")
# The passes and dialects of the bindings; listing them takes seconds.
CATALOGUES = DiskCache("catalogues", 16 << 20)
TUNED = DiskCache("tuned", 16 << 20)
CACHES = (OBJECTS, PROGRAMS, CATALOGUES, TUNED)


def contents() -> dict[str, tuple[int, int]]:
    """Returns for each cache, by name, the number of its files and their total size in bytes."""
    found = {}
    for cache in CACHES:
        place = folder() / cache.name
        sizes = [entry.stat().st_size for entry in os.scandir(place)] if place.is_dir() else []
        found[cache.name] = (len(sizes), sum(sizes))
    return found


def clear() -> None:
    """Deletes all files of the caches. Raises `OSError` if a file cannot be deleted."""
    for cache in CACHES:
        place = folder() / cache.name
        if place.is_dir():
            shutil.rmtree(place)
