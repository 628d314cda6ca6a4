"""Folders for what is needed for a moment, and the end of those whose processes did not live to remove them."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

# Exports are made beside the folder that they are for, and moved once all files are there.
EXPORT = "export"
_NAME = re.compile(r"buddy-[a-z]+-(\d+)-\w+")


def have_temporary_folder() -> None:
    """See to it that this process has a folder for temporary files, on a full disk too.

    Python takes the first folder that it can write a file in. Where there is none, it has no folder for as long as the
    disk is full, and torch cannot even be imported; what is then written there fails by itself.
    """
    try:
        tempfile.gettempdir()
    except FileNotFoundError:
        places = (os.environ.get("TMPDIR", ""), "/tmp", "/var/tmp")
        tempfile.tempdir = next((place for place in places if os.access(place, os.W_OK | os.X_OK)), None)


def scratch_folder(kind: str, place: Path | None = None) -> tempfile.TemporaryDirectory[str]:
    """An empty folder named after what it is for, a word, and this process; `cleanup` removes it.

    It lies in `place`, or where the system has such folders. Those of processes of this user's that have been killed
    are removed first.
    """
    place = place or Path(tempfile.gettempdir())
    sweep(place, kind)
    return tempfile.TemporaryDirectory(prefix=f"buddy-{kind}-{os.getpid()}-", dir=place, ignore_cleanup_errors=True)


def sweep(place: Path, kind: str) -> None:
    """Remove the folders of that kind in `place` whose processes have ended; others' stay as they are."""
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
