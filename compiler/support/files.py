"""Makes temporary folders, reads and appends to files of JSON lines, and captures stderr in a file."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar

import msgspec

# The kind of the folders of exports, which are next to the destination; a complete export is moved there.
EXPORT = "export"
# The kind of the temporary folders for models of other runtimes.
RUNTIMES = "runtimes"
_FOLDER_NAME = re.compile(r"buddy-[a-z]+-(\d+)-\w+")


def ensure_temporary_folder() -> None:
    """Sets the folder for temporary files of this process, even on a full disk.

    Python uses the first folder in which it can write a file. While the disk is full it finds none, and torch cannot be
    imported. With a folder set, only the writes themselves fail.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        folders = (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp")
        tempfile.tempdir = next((folder for folder in folders if os.access(folder, os.W_OK | os.X_OK)), None)


def scratch_folder(kind: str, parent: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Returns an empty folder, whose name contains `kind`, a word, and the id of this process; `cleanup` removes it.

    The folder is in `parent`, by default the system's temporary folder. First removes the scratch folders of this kind
    that killed processes of the user have left there.
    """
    parent = parent or Path(tempfile.gettempdir())
    remove_leftovers(parent, kind)
    return tempfile.TemporaryDirectory(prefix=f"buddy-{kind}-{os.getpid()}-", dir=parent, ignore_cleanup_errors=True)


def remove_leftovers(parent: Path, kind: str) -> None:
    """Removes the scratch folders of `kind` in `parent` that belong to this user and whose processes have ended."""
    for folder in parent.glob(f"buddy-{kind}-*"):
        match = _FOLDER_NAME.fullmatch(folder.name)
        if match is not None and _belongs_to_user(folder) and not _is_running(int(match[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _belongs_to_user(folder: Path) -> bool:
    try:
        return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


Value = TypeVar("Value")


def read_json_lines(path: Path, kind: type[Value]) -> list[Value]:
    """Returns the values of type `kind` in a file of JSON lines, [] if it is missing; skips other and truncated lines.

    Raises `OSError`.
    """
    values = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            values.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError:
            continue
    return values


def append_json_line(path: Path, value: object) -> None:
    """Appends `value` as a JSON line to a file; starts a new line if the last one is truncated. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        last_byte = file.read()
        is_truncated = last_byte not in (b"", b"\n")
        file.write(b"\n" * is_truncated + msgspec.json.encode(value) + b"\n")


# ---- stderr ----------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def capture_stderr(file: IO[bytes]) -> Iterator[None]:
    """Redirects the process's stderr to `file` inside the `with` block."""
    original_fd = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(original_fd, 2)
        os.close(original_fd)
