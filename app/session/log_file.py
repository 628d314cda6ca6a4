"""The file of `--log`: appends the engine's log, and rotates the file at a size limit."""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from pathlib import Path
from typing import BinaryIO, NamedTuple

from buddy.compiler.protocol import LogLevel

# The size at which the file is rotated, 8 MiB.
MAX_BYTES = 8 << 20
# The number of old files that are kept: FILE.1, the newest, to FILE.3.
MAX_OLD_FILES = 3


class LogOptions(NamedTuple):
    """The path of the log (`None` without a log file), and the minimum level of its messages."""

    path: Path | None = None
    level: LogLevel = "info"


NO_LOG = LogOptions()


class LogFile:
    """A log file that is open while an engine runs. Several processes may append to it.

    The constructor raises `OSError` if the file cannot be opened. The methods raise no errors.
    """

    def __init__(self, path: Path, max_bytes: int = MAX_BYTES) -> None:
        self._path, self._max_bytes = path, max_bytes
        self._file: BinaryIO = self._open_file()

    def _open_file(self) -> BinaryIO:
        """Opens the file at the path to append to it. Raises `OSError`."""
        # Readable only by the user, because errors quote lines of programs.
        return open(self._path, "ab", buffering=0, opener=lambda path, flags: os.open(path, flags, 0o600))

    def write(self, data: bytes) -> None:
        """Appends `data`. Data that cannot be written, for example on a full disk, is dropped."""
        with contextlib.suppress(OSError, ValueError):
            size = self._current_size()
            if size is not None and size + len(data) > self._max_bytes:
                self._rotate()
            self._file.write(data)

    def _current_size(self) -> int | None:
        """Returns the size of the file in bytes; `None` for a device or another special file.

        If another process has rotated or deleted the file, this reopens the file at the path, or creates it.
        """
        status = os.fstat(self._file.fileno())
        if not stat.S_ISREG(status.st_mode):
            return None
        if not self._path.exists() or not os.path.samestat(status, self._path.stat()):
            self._reopen()
            status = os.fstat(self._file.fileno())
        return status.st_size

    def _rotate(self) -> None:
        """Rotates the file, unless another process has just done so, and starts a new one."""
        with contextlib.suppress(OSError):
            fcntl.flock(self._file, fcntl.LOCK_EX)
            if os.path.samestat(os.fstat(self._file.fileno()), self._path.stat()):
                for number in range(MAX_OLD_FILES - 1, 0, -1):
                    if self._numbered(number).exists():
                        self._numbered(number).replace(self._numbered(number + 1))
                self._path.replace(self._numbered(1))
        self._reopen()

    def _reopen(self) -> None:
        """Opens the file that is at the path now, instead of the open one. Raises `OSError`."""
        reopened = self._open_file()
        self._file.close()
        self._file = reopened

    def _numbered(self, number: int) -> Path:
        """Returns the path of old file `number`, 1 for the newest."""
        return self._path.with_name(f"{self._path.name}.{number}")

    def close(self) -> None:
        self._file.close()
