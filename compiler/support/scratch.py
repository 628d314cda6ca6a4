"""Temporary folders, and the removal of those that killed processes have left behind."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

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
