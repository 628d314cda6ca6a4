"""Temporary folders, and the removal of those whose processes did not live to remove them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

# Exports are written next to their destination, and moved once all files are complete.
EXPORT = "export"
_NAME = re.compile(r"buddy-[a-z]+-(\d+)-\w+")


def have_temporary_folder() -> None:
    """Ensures that this process has a folder for temporary files, even on a full disk.

    Python uses the first folder in which it can write a file. While the disk is full, it finds none, and torch cannot
    even be imported; with this folder, later writes fail one by one.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        places = (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp")
        tempfile.tempdir = next((place for place in places if os.access(place, os.W_OK | os.X_OK)), None)


def scratch_folder(kind: str, place: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """Returns an empty folder, named after its purpose `kind`, a word, and this process; `cleanup` removes it.

    It is in `place`, or in the system's temporary folder. Those of killed processes of this user are removed first.
    """
    place = place or Path(tempfile.gettempdir())
    sweep(place, kind)
    return tempfile.TemporaryDirectory(prefix=f"buddy-{kind}-{os.getpid()}-", dir=place, ignore_cleanup_errors=True)


def sweep(place: Path, kind: str) -> None:
    """Removes the folders of that kind in `place` whose processes have ended, if they belong to this user."""
    for folder in place.glob(f"buddy-{kind}-*"):
        found = _NAME.fullmatch(folder.name)
        if found is not None and _ours(folder) and not _lives(int(found[1])):
            shutil.rmtree(folder, ignore_errors=True)


def _ours(folder: Path) -> bool:
    try:
        return folder.is_dir() and not folder.is_symlink() and folder.stat().st_uid == os.getuid()
    except OSError:
        return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
