"""Locks between workbenches, which the kernel drops when a process ends, however it ends. No Textual."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

# Who holds a lock for one write has done with it in milliseconds; one that was stopped over it is not waited for.
_PATIENCE = 0.1
_LOOK = 0.005


class FileLock:
    """A lock that is a file, between processes and within one. Where a file system knows no locks, all have it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def take(self) -> bool:
        """Keep everybody else out; whether nobody else has it. Raises `OSError` where the file cannot be made."""
        return self._locked(fcntl.LOCK_EX)

    def share(self) -> bool:
        """Have it beside whoever else does; whether somebody else does. Raises `OSError` as `take` does."""
        others = not self.take()
        self._locked(fcntl.LOCK_SH)
        return others

    def _locked(self, how: int) -> bool:
        while True:
            fd = self._fd if self._fd >= 0 else self._opened()
            if not _lock(fd, how):
                if fd != self._fd:
                    os.close(fd)
                return False
            if fd == self._fd or _is_there(fd, self._path):
                self._fd = fd
                return True
            # Its last holder has removed it in between: somebody else may hold a file of that name already.
            os.close(fd)

    def _opened(self) -> int:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)

    def release(self) -> None:
        """Let go; the last one leaves no file."""
        if self._fd >= 0:
            if _lock(self._fd, fcntl.LOCK_EX):
                with contextlib.suppress(OSError):
                    self._path.unlink()
            os.close(self._fd)
            self._fd = -1


def is_held(path: Path) -> bool:
    """Whether somebody has the lock `path`."""
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
def alone(path: Path) -> Iterator[None]:
    """Keep others out for one write. Raises `OSError` where the lock cannot be made."""
    lock, end = FileLock(path), time.monotonic() + _PATIENCE
    while not lock.take() and time.monotonic() < end:
        time.sleep(_LOOK)
    try:
        yield
    finally:
        lock.release()


def _lock(fd: int, how: int) -> bool:
    """Lock at once or not at all; what cannot be locked counts as locked."""
    try:
        fcntl.flock(fd, how | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EAGAIN, errno.EACCES)
    return True


def _is_there(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except FileNotFoundError:
        return False
