"""File locks between workbenches, which the kernel releases when a process exits or crashes. No Textual."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

# Seconds to wait for a lock. A write holds it for milliseconds; a suspended process is not waited for.
_PATIENCE = 0.1
_LOOK = 0.005


class FileLock:
    """A lock file, between processes and within one. On a file system without locks, every process gets the lock."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Take the exclusive lock. Returns whether it succeeded. Raises `OSError` if the file cannot be created."""
        return self._try_lock(fcntl.LOCK_EX)

    def share(self) -> bool:
        """Take a shared lock. Returns whether another process has it, too. Raises `OSError` like `take`."""
        others = not self.take()
        self._try_lock(fcntl.LOCK_SH)
        return others

    def _try_lock(self, how: int) -> bool:
        while True:
            fd = self._fd if self._fd >= 0 else self._open_file()
            if not _lock(fd, how):
                if fd != self._fd:
                    os.close(fd)
                return False
            if fd == self._fd or _still_exists(fd, self._path):
                self._fd = fd
                return True
            # The last holder deleted the file in between: another process may hold a new file with that name.
            os.close(fd)

    def _open_file(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def release(self) -> None:
        """Release the lock. The last holder deletes the file."""
        if self._fd >= 0:
            if _lock(self._fd, fcntl.LOCK_EX):
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
    """Hold the exclusive lock for one write. Raises `OSError` if the lock file cannot be created."""
    lock, end = FileLock(path), time.monotonic() + _PATIENCE
    while not lock.take() and time.monotonic() < end:
        time.sleep(_LOOK)
    try:
        yield
    finally:
        lock.release()


def _lock(fd: int, how: int) -> bool:
    """Try to lock without waiting. A file system without locks counts as locked."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _still_exists(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
