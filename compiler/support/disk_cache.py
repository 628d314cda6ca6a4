"""Disk caches of what takes long to compute (`CACHES`); a file is named by the hash of its input.

Cached code is executed later. So folders must belong to the user and be writable by the user only, links are not
followed, and each file starts with a keyed hash (RFC 2104) of its name and content; the key is a file next to the
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
from functools import lru_cache
from hashlib import sha256
from pathlib import Path

import platformdirs

ENVIRONMENT_VARIABLE = "BUDDY_CACHE"
DEFAULT_LIMIT_BYTES = 512 << 20
# A process checks the size of a folder each time it has written this fraction (1 / 8) of the folder's limit.
_CHECKS_PER_LIMIT = 8
# The key has the length of SHA-256: RFC 2104 recommends no shorter one.
KEY_FILE, KEY_BYTES = "key", 32
# The format of the files. The keyed hash covers it, so that files of another format count as missing. Increase it when
# data is encoded differently under the same key.
FORMAT = 1


def folder() -> Path:
    """Returns the folder of all caches: `BUDDY_CACHE`, else the platform's cache folder."""
    return Path(os.environ.get(ENVIRONMENT_VARIABLE) or platformdirs.user_cache_dir("buddy-tui"))


def _distrust_reason(path: Path, status: os.stat_result) -> str:
    """Returns the reason why others than the user may have written the folder or file at `path`; "" if none may."""
    if stat.S_ISLNK(status.st_mode):
        return f"{path} is a link"
    if hasattr(os, "getuid") and status.st_uid != os.getuid():
        return f"{path} belongs to another user"
    return f"{path} is writable by others" if os.name == "posix" and status.st_mode & 0o022 else ""


def find_problem() -> str:
    """Returns the reason why nothing can be cached; "" if the caches work."""
    key_path = folder() / KEY_FILE
    for path in (folder(), key_path, *(folder() / cache.name for cache in CACHES)):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return f"{path}: {error.strerror}"
        if reason := _distrust_reason(path, status):
            return reason
        type_name, has_type = ("file", stat.S_ISREG) if path == key_path else ("folder", stat.S_ISDIR)
        if not has_type(status.st_mode):
            return f"{path} is not a {type_name}"
    nearest_folder = next(path for path in (folder(), *folder().absolute().parents) if os.path.exists(path))
    return "" if os.access(nearest_folder, os.W_OK | os.X_OK) else f"{nearest_folder} is not writable"


@dataclass
class DiskCache:
    """The folder `name` of the cache. Beyond `limit` bytes, the files that were written least recently are deleted."""

    name: str
    limit: int = DEFAULT_LIMIT_BYTES
    # For each folder, the bytes that this process has written since it last deleted files there.
    _written: dict[Path, int] = field(default_factory=dict)

    def read(self, key: str) -> bytes | None:
        """Returns the data of `key`, or `None`; a damaged file, or one of another user, counts as missing."""
        try:
            if any(_distrust_reason(path, path.lstat()) for path in (folder(), folder() / self.name)):
                return None
            stored_hash, _, data = _read_file(self._path(key)).partition(b"\n")
            return data if hmac.compare_digest(stored_hash, self._keyed_hash(key, data)) else None
        except OSError:
            return None

    def write(self, key: str, data: bytes) -> None:
        """Does the same as `store`, but ignores `OSError`, since a missing entry only costs time."""
        with contextlib.suppress(OSError):
            self.store(key, data)

    def store(self, key: str, data: bytes) -> None:
        """Stores `data` under `key`. Raises `OSError` if the file cannot be written."""
        path = self._path(key)
        for parent in (folder(), path.parent):
            _make_private(parent)
        _write_atomically(path, self._keyed_hash(key, data) + b"\n" + data)
        with contextlib.suppress(OSError):  # Another process may delete the same files.
            self._enforce_limit(path.parent, len(data))

    def remove(self, key: str) -> None:
        """Deletes the file of `key`, if there is one. Raises `OSError`."""
        self._path(key).unlink(missing_ok=True)

    def list_keys(self) -> list[str]:
        """Returns the names of all files in the folder, sorted. Some may be invalid: only `read` checks them."""
        try:
            return sorted(entry.name for entry in os.scandir(folder() / self.name))
        except OSError:
            return []

    def _keyed_hash(self, key: str, data: bytes) -> bytes:
        """Returns the keyed hash of `data` under `key`. Raises `OSError`."""
        keyed_hash = hmac.new(_read_key(), f"{FORMAT}/{self.name}/{key}\n".encode(), "sha256")
        keyed_hash.update(data)
        return keyed_hash.hexdigest().encode()

    def _path(self, key: str) -> Path:
        return folder() / self.name / key

    def _enforce_limit(self, cache_folder: Path, n_written: int) -> None:
        """Deletes the oldest files until the others are within the limit; called after a write of `n_written` bytes.

        Checks the size at the first write of this process, and after each `limit / _CHECKS_PER_LIMIT` written bytes.
        """
        written = self._written.get(cache_folder, self.limit) + n_written
        if written < self.limit // _CHECKS_PER_LIMIT:
            self._written[cache_folder] = written
            return
        self._written[cache_folder] = 0
        files = [(entry.stat(), entry.path) for entry in os.scandir(cache_folder)]
        size = sum(status.st_size for status, _ in files)
        for status, path in sorted(files, key=lambda pair: pair[0].st_mtime):
            if size <= self.limit:
                break
            os.unlink(path)
            size -= status.st_size


def _make_private(path: Path) -> None:
    """Creates a folder if it is missing, and makes it private to the user.

    The mode of the folder in `BUDDY_CACHE` is not changed, because it may have other uses. Raises `PermissionError` if
    others than the user can write to the folder.
    """
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    is_configured = bool(os.environ.get(ENVIRONMENT_VARIABLE)) and path == folder()
    status = path.lstat()
    if status.st_mode & 0o077 and not is_configured and not stat.S_ISLNK(status.st_mode):
        path.chmod(0o700)
    reason = _distrust_reason(path, path.lstat())
    if reason:
        raise PermissionError(reason)


def _read_file(path: Path) -> bytes:
    """Returns the content of a regular file that only the user can write. Raises `OSError` for any other."""
    with open(os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or _distrust_reason(path, status):
            raise PermissionError(f"{path} is not a file of this user")
        return file.read()


def _write_atomically(path: Path, data: bytes) -> None:
    """Writes a file that other processes see complete or not at all. Raises `OSError`."""
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def derive_key(purpose: str) -> bytes:
    """Returns a key that is derived from the user's key for one purpose. Raises `OSError`.

    No hash under a derived key is valid for a file in the caches.
    """
    _make_private(folder())
    return hmac.new(_read_key(), f"key for {purpose}".encode(), "sha256").digest()


def _read_key() -> bytes:
    """Returns the user's key for the hashes, which is created on first use. Raises `OSError`."""
    path = folder() / KEY_FILE
    with contextlib.suppress(FileNotFoundError):
        key = _read_file(path)
        if len(key) == KEY_BYTES:
            return key
        path.unlink()
    handle, name = tempfile.mkstemp(dir=folder())
    try:
        with open(handle, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        _install_key(name, path)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
    return _read_file(path)


def _install_key(name: str, path: Path) -> None:
    """Makes the file `name` the key file, unless another process has created one in the meantime."""
    try:
        os.link(name, path)
    except FileExistsError:
        pass
    except OSError:  # A file system without hard links: the last key wins; files hashed with another one are invalid.
        os.replace(name, path)


# Object files, by their LLVM IR and target.
OBJECTS = DiskCache("objects")
# Artifacts of whole graphs, by graph and recipe.
PROGRAMS = DiskCache("programs")
# The passes and dialects of the bindings; listing them takes seconds.
CATALOGUES = DiskCache("catalogues", 16 << 20)
# The fastest recipes that tuning has found, by graph.
TUNED = DiskCache("tuned", 16 << 20)
# The errors that precisions of single nodes cause, by program, weights and inputs.
PRECISION_ERRORS = DiskCache("precision-errors", 16 << 20)
# The errors of eager's results, by program, weights and inputs: verdicts need them, and they take a run in double
# precision.
SPREADS = DiskCache("spreads", 16 << 20)
# The programs that the workbench has opened, and compilations with the texts of all stages.
OPENED = DiskCache("opened", 256 << 20)
COMPILATIONS = DiskCache("compilations", 256 << 20)
CACHES = (OBJECTS, PROGRAMS, CATALOGUES, TUNED, PRECISION_ERRORS, SPREADS, OPENED, COMPILATIONS)


@lru_cache(maxsize=1)
def source_hash() -> str:
    """Returns a hash of the compiler's own source, for the keys of results that another version may change."""
    root = Path(__file__).parent.parent
    state = sha256()
    for path in sorted(root.rglob("*.py")):
        state.update(f"{path.relative_to(root)}\n{path.read_text()}\n".encode())
    return state.hexdigest()


def count_files() -> dict[str, tuple[int, int]]:
    """Returns for each cache, by name, the number of its files and their total size in bytes."""
    counts_and_sizes = {}
    for cache in CACHES:
        path = folder() / cache.name
        sizes = [entry.stat().st_size for entry in os.scandir(path)] if path.is_dir() else []
        counts_and_sizes[cache.name] = (len(sizes), sum(sizes))
    return counts_and_sizes


def clear() -> None:
    """Deletes all files of the caches. Raises `OSError` if a file cannot be deleted."""
    for cache in CACHES:
        path = folder() / cache.name
        if path.is_dir():
            shutil.rmtree(path)
