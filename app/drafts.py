"""What is typed in an editor and accepted nowhere yet, kept in a file: it outlives the workbench. No Textual."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import NamedTuple

from buddy.app.workspace import write_whole
from buddy.compiler.recipe import digest

_ENDING = ".unsaved"


class Left(NamedTuple):
    """What was typed when the workbench ended; `older` where the editor began with another text than it does now."""

    text: str
    older: bool


class Draft:
    """The text of one editor of a program's, in a file beside the kept `recipe`; `what` says which editor it is.

    The first line of the file is the hash of what the editor began with.
    """

    def __init__(self, recipe: Path, what: str) -> None:
        self.what = what
        self._path = recipe.with_name(f"{recipe.stem}.{re.sub(r'[^0-9A-Za-z-]+', '_', what)}{_ENDING}")

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


def drafts(recipe: Path) -> list[str]:
    """Of which editors of the program of the kept `recipe` there is something left."""
    found = sorted(recipe.parent.glob(f"{recipe.stem}.*{_ENDING}")) if recipe.parent.is_dir() else []
    return [path.name.removeprefix(f"{recipe.stem}.").removesuffix(_ENDING).replace("_", " ") for path in found]
