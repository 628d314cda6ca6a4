"""Saves drafts of unsaved input, and restores them.

Each open editor has a draft file of its own, and a lock file while it is open. So a workbench never overwrites the
draft of another running workbench, and the next workbench can restore the draft of one that has exited.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import NamedTuple

from buddy.app.workspace.files import FileLock, is_held, write_text_atomically
from buddy.compiler.protocol.recipe import digest

_DRAFT_SUFFIX = ".unsaved"


class SavedDraft(NamedTuple):
    """The draft of a workbench that has exited. It is outdated if the editor's initial text was different then."""

    text: str
    is_outdated: bool


class DraftTitles(NamedTuple):
    """The titles of the editors of a program that have drafts: of exited workbenches, and open in a workbench now."""

    unsaved: list[str]
    open: list[str]


class EditorDraft:
    """The draft of one editor, in a file next to the saved recipe at `recipe_path`; `title` identifies the editor.

    The first line of the file is the hash of the editor's initial text. `open_elsewhere` is true if another
    workbench has the same editor open.
    """

    def __init__(self, recipe_path: Path, title: str) -> None:
        self.title = title
        self.open_elsewhere = False
        self._path, self._lock = self._lock_file(
            f"{recipe_path.stem}.{re.sub(r'[^0-9A-Za-z-]+', '_', title)}", recipe_path.parent
        )

    def _lock_file(self, stem: str, folder: Path) -> tuple[Path, FileLock | None]:
        """Locks a draft file that no other workbench uses, preferably an existing one. Returns its path and the lock.

        The lock is `None` if the lock file cannot be created.
        """
        numbered = (folder / f"{stem}{f'~{number}' * (number > 1)}{_DRAFT_SUFFIX}" for number in itertools.count(1))
        drafts = sorted(folder.glob(f"{stem}*{_DRAFT_SUFFIX}"))
        existing = [path for path in drafts if _draft_name(path).partition("~")[0] == stem]
        for path in itertools.chain(existing, numbered):
            lock = FileLock(_lock_path(path))
            try:
                if lock.take():
                    return path, lock
            except OSError:
                return path, None
            self.open_elsewhere = True
        raise AssertionError("unreachable: the numbers are unlimited")

    def read_saved(self, initial_text: str) -> SavedDraft | None:
        """Returns the saved draft for an editor with this initial text, or `None`."""
        try:
            initial_hash, _, text = self._path.read_bytes().decode("utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return None
        return SavedDraft(text, initial_hash != digest(initial_text))

    def save(self, text: str, initial_text: str) -> str:
        """Saves the draft `text` of an editor with this initial text. Returns an error message, or ""."""
        try:
            write_text_atomically(self._path, f"{digest(initial_text)}\n{text}")
        except OSError as error:
            return f"the draft could not be saved: {error.strerror or error}"
        return ""

    def delete(self) -> None:
        """Deletes the draft after its text was accepted or discarded."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Releases the lock after the editor was closed, so that another editor can restore the draft."""
        if self._lock is not None:
            self._lock.release()


def saved_drafts(recipe_path: Path) -> DraftTitles:
    """Returns the drafts of the program whose first graph has its recipe in the file `recipe_path`."""
    # The file of an editor of the first graph is `STEM.TITLE`, that of another graph `STEM-NUMBER.TITLE`. If several
    # workbenches have the same editor open, `~2` and so on follow.
    name_pattern = re.compile(rf"{re.escape(recipe_path.stem)}(?:-(?P<graph>\d+))?\.(?P<title>[^~]*)(?:~\d+)?")
    titles = DraftTitles([], [])
    folder = recipe_path.parent
    for path in sorted(folder.glob(f"{recipe_path.stem}*{_DRAFT_SUFFIX}")) if folder.is_dir() else []:
        match = name_pattern.fullmatch(_draft_name(path))
        if match is None:
            continue
        title = match["title"].replace("_", " ") + (f" of graph {match['graph']}" if match["graph"] else "")
        (titles.open if is_held(_lock_path(path)) else titles.unsaved).append(title)
    return titles


def _draft_name(path: Path) -> str:
    """Returns the name of a draft file without its suffix."""
    return path.name.removesuffix(_DRAFT_SUFFIX)


def _lock_path(path: Path) -> Path:
    """Returns the path of the lock of a draft file, which is held while an editor has the draft."""
    return path.with_name(f".{path.name}.lock")
