"""Writes files atomically, and locks files between workbenches."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buddy.compiler.protocol import Script

# The inode, modification time in nanoseconds and size of a file. It changes if the file is written or replaced.
FileStamp = tuple[int, int, int]


def write_text_atomically(path: Path, text: str) -> None:
    """Writes `text` to `path` atomically."""
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Writes bytes to `path` atomically; with `sync`, also to disk, so that the file survives a power loss."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_script(path: Path, script: Script) -> tuple[Path, Path]:
    """Writes `script` to `path`, and its tensors to a `.npz` with the same name. Returns both paths.

    Raises `OSError`.
    """
    values_path = path.with_suffix(".npz")
    write_bytes_atomically(values_path, script.values)
    write_text_atomically(path, script.text.replace(f"{script.name}.npz", values_path.name))
    return path, values_path


def read_stamp(path: str | Path) -> FileStamp | None:
    """Returns the stamp of a file; `None` if it does not exist."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):  # ValueError: a null character in the path
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


# A write holds its lock for milliseconds. A process that holds it longer is suspended, so another write does not wait.
_MAX_WAIT_SECONDS = 0.1
_RETRY_SECONDS = 0.005


class FileLock:
    """A lock file that excludes other processes and other `FileLock`s of this process.

    On a file system without locks, every process gets the lock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Takes the exclusive lock. Returns whether it succeeded. Raises `OSError` if the file cannot be created."""
        return self._try_operation(fcntl.LOCK_EX)

    def take_shared(self) -> bool:
        """Takes a shared lock. Returns whether another `FileLock` of any process holds it too. Raises like `take`."""
        is_shared = not self.take()
        self._try_operation(fcntl.LOCK_SH)
        return is_shared

    def _try_operation(self, operation: int) -> bool:
        """Tries `operation` of `flock`. Returns whether it succeeded."""
        while True:
            fd = self._fd if self._fd >= 0 else self._open_file()
            if not _try_flock(fd, operation):
                if fd != self._fd:
                    os.close(fd)
                return False
            if fd == self._fd or _is_file_at(fd, self._path):
                self._fd = fd
                return True
            # The last holder deleted the file in between: another process may hold a new file with that name.
            os.close(fd)

    def _open_file(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def release(self) -> None:
        """Releases the lock. The last holder deletes the file."""
        if self._fd >= 0:
            if _try_flock(self._fd, fcntl.LOCK_EX):
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(self._fd)
            self._fd = -1


def is_held(path: Path) -> bool:
    """Whether any process holds the lock `path`."""
    if not path.exists():
        return False
    lock = FileLock(path)
    try:
        return not lock.take()
    except OSError:
        return False
    finally:
        lock.release()


@contextlib.contextmanager
def exclusive_lock(path: Path) -> Iterator[None]:
    """Holds the exclusive lock `path` for one write. After `_MAX_WAIT_SECONDS`, continues without the lock.

    Raises `OSError` if the lock file cannot be created.
    """
    lock, deadline = FileLock(path), time.monotonic() + _MAX_WAIT_SECONDS
    while not lock.take() and time.monotonic() < deadline:
        time.sleep(_RETRY_SECONDS)
    try:
        yield
    finally:
        lock.release()


def _try_flock(fd: int, operation: int) -> bool:
    """Tries to lock without waiting. Returns whether it succeeded; true on a file system without locks."""
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _is_file_at(fd: int, path: Path) -> bool:
    """Whether `path` is still the open file `fd`, and not deleted or replaced."""
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
