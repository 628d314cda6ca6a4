"""The file that `--log` names: the engine's log is added to it, and what grows too long is put aside."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

from buddy.compiler.protocol import LogLevel

# Bytes of the file itself, and how many earlier ones there are beside it, FILE.1 the latest.
LARGEST = 8 << 20
KEPT = 3


class Log(NamedTuple):
    """Where the log goes, if anywhere, and the least that is logged."""

    path: Path | None = None
    level: LogLevel = "info"


NO_LOG = Log()


class LogFile:
    """Open for as long as an engine runs; several may add to one file. Raises `OSError` where it cannot be opened, and
    never after that."""

    def __init__(self, path: Path, largest: int = LARGEST) -> None:
        self._path, self._largest = path, largest
        self._file: BinaryIO = self._opened()

    def _opened(self) -> BinaryIO:
        # For the user alone: lines of programs stand in it, by which errors came.
        return open(self._path, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))

    def write(self, data: bytes) -> None:
        """Add `data`. What cannot be written, on a full disk, is left out: nobody waits for a log."""
        with contextlib.suppress(OSError, ValueError):
            size = self._size()
            if size is not None and size + len(data) > self._largest:
                self._turn()
            self._file.write(data)

    def _size(self) -> int | None:
        """How long the file is; `None` for what is no file, such as a device.

        What another process has put aside, or somebody has taken away, is left: the file of that name is opened again.
        """
        found = os.fstat(self._file.fileno())
        if not stat.S_ISREG(found.st_mode):
            return None
        if not self._path.exists() or not os.path.samestat(found, self._path.stat()):
            self._reopen()
            found = os.fstat(self._file.fileno())
        return found.st_size

    def _turn(self) -> None:
        """Put what there is aside, unless another process has just done so, and begin anew."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                for number in range(KEPT - 1, 0, -1):
                    if self._numbered(number).exists():
                        self._numbered(number).replace(self._numbered(number + 1))
                self._path.replace(self._numbered(1))
        self._reopen()

    def _reopen(self) -> None:
        anew = self._opened()
        self._file.close()
        self._file = anew

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def close(self) -> None:
        self._file.close()
