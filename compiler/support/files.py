"""Files: temporary folders, appended JSON lines, and the memory that an archive needs before it is read."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import zipfile
from pathlib import Path
from typing import Any, TypeVar

import msgspec

# PyTorch stores tensors uncompressed, and arrays of zeros compress a thousandfold: an archive may unpack to this many
# times its size, plus this many bytes.
_MAX_RATIO, _EXTRA_BYTES = 4, 2 << 30


def archive_too_large(archive: zipfile.ZipFile, size: int) -> str:
    """Returns an error message for an archive, in a file of `size` bytes, that would need far more memory; else "".

    The sizes in the archive's directory are upper bounds: Python's reader returns no more bytes of a member.
    """
    unpacked = sum(member.file_size for member in archive.infolist())
    if unpacked <= _MAX_RATIO * size + _EXTRA_BYTES:
        return ""
    return f"a zip archive of {size:,} bytes that claims to unpack to {unpacked:,}"


# The kind of the folders that exports are written to, next to their destination; complete ones are moved there.
EXPORT = "export"
_NAME = re.compile(r"buddy-[a-z]+-(\d+)-\w+")


def ensure_temporary_folder() -> None:
    """Sets the folder for temporary files of this process, even on a full disk.

    Python uses the first folder in which it can write a file. While the disk is full it finds none, and torch cannot be
    imported. With a folder set, only the writes themselves fail.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        places = (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp")
        tempfile.tempdir = next((place for place in places if os.access(place, os.W_OK | os.X_OK)), None)


def scratch_folder(kind: str, place: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Returns an empty folder, named after its purpose `kind`, a word, and this process; `cleanup` removes it.

    It is in `place`, or in the system's temporary folder. Removes the folders of this user's killed processes first.
    """
    place = place or Path(tempfile.gettempdir())
    sweep(place, kind)
    return tempfile.TemporaryDirectory(prefix=f"buddy-{kind}-{os.getpid()}-", dir=place, ignore_cleanup_errors=True)


def sweep(place: Path, kind: str) -> None:
    """Removes the folders of `kind` in `place` that belong to this user and whose processes have ended."""
    for folder in place.glob(f"buddy-{kind}-*"):
        found = _NAME.fullmatch(folder.name)
        if found is not None and _belongs_to_user(folder) and not _is_running(int(found[1])):
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


def read(path: Path, kind: type[Value]) -> list[Value]:
    """Returns the values of type `kind` in a file; skips truncated lines and other types. A missing file is empty.

    Raises `OSError`.
    """
    found = []
    for line in path.read_bytes().splitlines() if path.exists() else ():
        try:
            found.append(msgspec.json.decode(line, type=kind))
        except msgspec.DecodeError:
            continue
    return found


def append(path: Path, value: Any) -> None:
    """Appends a value; starts a new line if the last one is truncated. Raises `OSError`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        file.seek(max(0, file.tell() - 1))
        truncated = file.read() not in (b"", b"\n")
        file.write(b"\n" * truncated + msgspec.json.encode(value) + b"\n")
