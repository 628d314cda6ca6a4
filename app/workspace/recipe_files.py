"""The files that keep a graph's recipe, its edit history, and drafts of unsaved input. Does not import Textual.

Several workbenches may have a program open. Each saves its recipe at every edit, so the recipe file has the recipe that
was edited last. If a save overwrites the recipe of another workbench, the edits file keeps that recipe.

Each open editor has a draft file of its own, and a lock file while it is open. So a workbench never overwrites the
draft of another running workbench, and the next workbench can restore the draft of one that has exited.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import secrets
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from buddy.app.workspace.files import (
    FileLock,
    FileStamp,
    exclusive_lock,
    is_held,
    read_stamp,
    write_bytes_atomically,
    write_text_atomically,
)
from buddy.app.workspace.history import MAX_SAVED_BYTES, Edit, SavedHistory
from buddy.compiler.protocol.compatibility import decode_recipes
from buddy.compiler.protocol.recipe import Recipe, digest, from_toml, to_toml

# ---- recipes and edits -----------------------------------------------------------------------------------------------


# Keep the edits of at most this many other workbenches, the most recent ones.
_MAX_OTHER_WORKBENCHES = 8

T = TypeVar("T")
# The stamps of the recipe file and of the edits file.
Stamps = tuple[FileStamp | None, ...]
# Differs from all stamps of the two files, also from those of files that do not exist.
_NOT_READ_YET: Stamps = (None,)


class RecipeFile:
    """The recipe in the file `path`, and its edit history in a second file.

    `for_graph` sets source, arguments and graph of each recipe that is read, whatever the files say.
    """

    def __init__(self, path: Path, for_graph: Callable[[Recipe], Recipe]) -> None:
        self.path = path
        self.edits_path = path.with_suffix(".edits")
        self._for_graph = for_graph
        self._session = secrets.token_hex(4)
        self._last_stamps = _NOT_READ_YET
        # Whether another workbench has saved since the last call of `save`.
        self._changed_by_others = False
        # The last histories of other workbenches by session, the most recent one last.
        self._others: dict[str, SavedHistory] = {}
        self._unreadable: list[Path] = []

    def read(self) -> tuple[Recipe | None, SavedHistory | None, str]:
        """Returns the saved recipe, the saved edits, and an error message, empty if both files are readable or missing.

        The next save renames an unreadable file.
        """
        self._last_stamps = self._stamps()
        problems = []
        recipe = edits = None
        try:
            recipe = self._read_recipe()
        except (OSError, ValueError) as error:
            self._unreadable.append(self.path)
            problems.append(f"the saved recipe could not be read: {error}")
        try:
            edits = self._read_edits()
        except (OSError, ValueError, RecursionError) as error:
            self._unreadable.append(self.edits_path)
            problems.append(f"the saved edits could not be read: {error}")
        self._others = dict(edits.others) if edits is not None else {}
        return recipe, edits, "; ".join(problems)

    def save(self, recipe: Recipe | None, edits: SavedHistory) -> bool:
        """Saves a recipe (`None` deletes the recipe file) and its edits.

        Returns whether another workbench has saved since this one last read or wrote the files. Raises `OSError`.
        """
        with exclusive_lock(self.path.with_suffix(".lock")):
            self._read_changes()
            others_saved = self._changed_by_others
            self._changed_by_others = False
            # Encode first, so that an error leaves the files unchanged.
            text, encoded = to_toml(recipe) if recipe is not None else "", self._encode(edits)
            try:
                while self._unreadable:
                    path = self._unreadable.pop()
                    path.replace(path.with_name(f"{path.name}.unread"))
                if text:
                    write_text_atomically(self.path, text)
                else:
                    self.path.unlink(missing_ok=True)
                write_bytes_atomically(self.edits_path, encoded)
            finally:
                self._last_stamps = self._stamps()
        return others_saved

    def edits_of_others(self) -> list[Edit]:
        """Returns all edits of other workbenches, the most recent workbench first.

        For each workbench: its current recipe, then the edits before it, then those that it has undone.
        """
        self._read_changes()
        edits = []
        for history in reversed(self._others.values()):
            edits += [history.now, *reversed(history.past), *history.future]
        return edits

    def _read_changes(self) -> None:
        """Reads what other workbenches have saved since this one last read or wrote the files."""
        stamps = self._stamps()
        if stamps == self._last_stamps:
            return
        is_first_read = self._last_stamps == _NOT_READ_YET
        self._last_stamps = stamps
        recipe, edits = _value_or_none(self._read_recipe), _value_or_none(self._read_edits)
        if recipe is not None:
            edits = edits.with_current(recipe) if edits is not None else SavedHistory([], Edit(recipe), [])
        if edits is None:
            return
        for session, history in [*edits.others.items(), (edits.session, edits)]:
            self._others.pop(session, None)  # the most recent workbench is last
            if session != self._session:
                self._others[session] = msgspec.structs.replace(history, others={})
        self._changed_by_others |= not is_first_read and edits.session != self._session

    def _encode(self, edits: SavedHistory) -> bytes:
        """Returns the content of the edits file: `edits`, and the current recipes and histories of other workbenches.

        If that is too long, the histories of the workbenches that saved the longest ago are dropped first.
        """
        others = dict([*self._others.items()][-_MAX_OTHER_WORKBENCHES:])
        edits = msgspec.structs.replace(edits, session=self._session, others=others)
        encoded = msgspec.msgpack.encode(edits)
        for session in [*others]:
            if len(encoded) <= 2 * MAX_SAVED_BYTES:
                break
            # Also changes `edits`, which has the same dictionary.
            others[session] = SavedHistory([], others[session].now, [], session)
            encoded = msgspec.msgpack.encode(edits)
        return encoded

    def _stamps(self) -> Stamps:
        """Returns the stamps of both files, which change when another workbench replaces them."""
        return read_stamp(self.path), read_stamp(self.edits_path)

    def _read_recipe(self) -> Recipe | None:
        """Returns the saved recipe, `None` without a file. Raises `OSError` and `ValueError` if it cannot be read."""
        try:
            with warnings.catch_warnings():
                # Do not warn about old field names: the next save writes the new ones.
                warnings.simplefilter("ignore", FutureWarning)
                return self._for_graph(from_toml(self.path.read_text("utf-8")))
        except FileNotFoundError:
            return None

    def _read_edits(self) -> SavedHistory | None:
        """Returns the saved edits, `None` without a file. Raises `OSError`, `ValueError` and `RecursionError`."""
        try:
            data = self.edits_path.read_bytes()
        except FileNotFoundError:
            return None
        return decode_recipes(data, SavedHistory).map_recipes(self._for_graph)


def _value_or_none(read: Callable[[], T | None]) -> T | None:
    """Returns the result of `read`, `None` if the file is unreadable."""
    try:
        return read()
    except (OSError, ValueError, RecursionError):
        return None


# ---- drafts ----------------------------------------------------------------------------------------------------------


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
        drafts = sorted(folder.glob(f"{stem}*{_DRAFT_SUFFIX}"))
        existing = [path for path in drafts if _draft_name(path).partition("~")[0] == stem]
        first = folder / f"{stem}{_DRAFT_SUFFIX}"
        numbered = (folder / f"{stem}~{number}{_DRAFT_SUFFIX}" for number in itertools.count(2))
        for path in itertools.chain(existing, [first], numbered):
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
