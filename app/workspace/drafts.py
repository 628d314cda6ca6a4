"""What is typed in an editor and accepted nowhere yet, kept in a file: it outlives the workbench. No Textual.

Each open editor has a file of its own, and a lock beside it for as long as it is open: what is typed in one workbench
is never written over or taken by another, and what a workbench that has ended left is the next one's.
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


class Left(NamedTuple):
    """What was typed when the workbench ended; `older` where the editor began with another text than it does now."""

    text: str
    older: bool


class Drafts(NamedTuple):
    """The editors of a program of which something is `left`, and those that are `open` in a workbench now."""

    left: list[str]
    open: list[str]


class Draft:
    """The text of one editor of a program's, in a file beside the kept `recipe`; `what` says which editor it is.

    The first line of the file is the hash of what the editor began with. `beside` says whether another workbench has
    the same editor open.
    """

    def __init__(self, recipe: Path, what: str) -> None:
        self.what = what
        self.beside = False
        self._path, self._lock = self._own(f"{recipe.stem}.{re.sub(r'[^0-9A-Za-z-]+', '_', what)}", recipe.parent)

    def _own(self, stem: str, folder: Path) -> tuple[Path, FileLock | None]:
        """A file that no other workbench types into, one with something in it first."""
        numbered = (folder / f"{stem}{f'~{number}' * (number > 1)}{_ENDING}" for number in itertools.count(1))
        there = [path for path in sorted(folder.glob(f"{stem}*{_ENDING}")) if _name(path).partition("~")[0] == stem]
        for path in itertools.chain(there, numbered):
            lock = FileLock(_lock_of(path))
            try:
                if lock.take():
                    return path, lock
            except OSError:
                return path, None
            self.beside = True
        raise AssertionError("numbers have no end")

    def left(self, start: str) -> Left | None:
        """What is left for an editor that begins with `start`, `None` where nothing is."""
        try:
            began, _, text = self._path.read_bytes().decode("utf-8").partition("\n")
        except (OSError, UnicodeDecodeError):
            return None
        return Left(text, began != digest(start))

    def keep(self, text: str, start: str) -> str:
        """Keep `text`, which was `start` once; what is wrong where it cannot be kept, else ""."""
        try:
            write_whole(self._path, f"{digest(start)}\n{text}")
        except OSError as error:
            return f"what you type could not be kept: {error.strerror or error}"
        return ""

    def drop(self) -> None:
        """The text has been accepted, or thrown away."""
        with contextlib.suppress(OSError):
            self._path.unlink()

    def close(self) -> None:
        """The editor is open no more; what is left is for the next one."""
        if self._lock is not None:
            self._lock.release()


def drafts(recipe: Path) -> Drafts:
    """What there is of the program whose first graph's recipe is kept in `recipe`."""
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
