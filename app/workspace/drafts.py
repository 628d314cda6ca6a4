"""Drafts: unsaved input of editors, stored in files that survive the workbench. No Textual.

Each open editor has its own file, and a lock file while it is open. So a workbench never overwrites or takes the draft
of another one, and the next workbench takes over the draft of one that has exited.
"""

from __future__ import annotations

import contextlib
import itertools
import re
from pathlib import Path
from typing import NamedTuple

from buddy.app.workspace.atomic_write import write_whole
from buddy.app.workspace.locks import FileLock, is_held
from buddy.compiler.protocol.recipe import digest

_ENDING = ".unsaved"


class SavedDraft(NamedTuple):
    """The draft of a workbench that has exited; `older` if the editor's initial text was different then."""

    text: str
    older: bool


class Drafts(NamedTuple):
    """The editors of a program that have a draft (`left`), and those that are `open` in a workbench now."""

    left: list[str]
    open: list[str]


class EditorDraft:
    """The draft of one editor, in a file next to the saved `recipe`; `what` identifies the editor.

    The first line of the file is the hash of the editor's initial text. `open_elsewhere` is true if another
    workbench has the same editor open.
    """

    def __init__(self, recipe: Path, what: str) -> None:
        self.what = what
        self.open_elsewhere = False
        self._path, self._lock = self._own(f"{recipe.stem}.{re.sub(r'[^0-9A-Za-z-]+', '_', what)}", recipe.parent)

    def _own(self, stem: str, folder: Path) -> tuple[Path, FileLock | None]:
        """A file that no other workbench uses, preferably one with a draft."""
        numbered = (folder / f"{stem}{f'~{number}' * (number > 1)}{_ENDING}" for number in itertools.count(1))
        there = [path for path in sorted(folder.glob(f"{stem}*{_ENDING}")) if _name(path).partition("~")[0] == stem]
        for path in itertools.chain(there, numbered):
            lock = FileLock(_lock_of(path))
            try:
                if lock.take():
                    return path, lock
            except OSError:
                return path, None
            self.open_elsewhere = True
        raise AssertionError("unreachable: the numbers are unlimited")

    def read_saved(self, start: str) -> SavedDraft | None:
        """The draft for an editor with the initial text `start`, `None` if there is none."""
        try:
            began, _, text = self._path.read_bytes().decode("utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return None
        return SavedDraft(text, began != digest(start))

    def keep(self, text: str, start: str) -> str:
        """Save the draft `text` of an editor with the initial text `start`. Returns the error message, if any."""
        try:
            write_whole(self._path, f"{digest(start)}\n{text}")
        except OSError as error:
            return f"the draft could not be saved: {error.strerror or error}"
        return ""

    def drop(self) -> None:
        """Delete the draft after its text was accepted or discarded."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """Release the draft of a closed editor, so that the next one can take it."""
        if self._lock is not None:
            self._lock.release()


def saved_drafts(recipe: Path) -> Drafts:
    """The drafts of the program whose first graph has its recipe in the file `recipe`."""
    name = re.compile(rf"{re.escape(recipe.stem)}(?:-(\d+))?\.([^~]*)(?:~\d+)?")
    found = Drafts([], [])
    for path in sorted(recipe.parent.glob(f"{recipe.stem}*{_ENDING}")) if recipe.parent.is_dir() else []:
        if match := name.fullmatch(_name(path)):
            graph = f" of graph {match[1]}" * bool(match[1])
            (found.open if is_held(_lock_of(path)) else found.left).append(match[2].replace("_", " ") + graph)
    return found


def _name(path: Path) -> str:
    return path.name.removesuffix(_ENDING)


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")
