"""The session file of a program: layout, bookmarks, runs, inputs. No Textual.

All workbenches of a program write the same file, and merge their changes with those of the others. An unreadable file
is reported and renamed, because nothing depends on it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from buddy.app.workspace.atomic_write import Stamp, stamp_of, write_whole_bytes
from buddy.app.workspace.locks import exclusive_lock
from buddy.app.workspace.runs import LENGTH, RunRecord
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice

FIRST_SCRIPT = "opening a .py file executes it; other file types never execute code"
T = TypeVar("T")


class SavedScreen(msgspec.Struct, frozen=True):
    """The saved session. `stage` is the key of the shown stage, `how` the kind of diff.

    An input file is stored as its path, and read again. `source` is true if the source pane was shown.
    """

    pane: str = "graph"
    zoomed: bool = False
    stage: tuple[str, int] | None = None
    node: str = ""
    how: str = "off"
    theme: str = ""
    inputs: InputChoice = OWN_INPUTS
    bookmarks: Any = None
    runs: tuple[RunRecord, ...] = ()
    source: bool = False


def read_session(path: Path) -> tuple[SavedScreen, str]:
    """The session saved in `path`, and an error (empty if it is valid or does not exist)."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=SavedScreen), ""
    except FileNotFoundError:
        return SavedScreen(), ""
    except (OSError, ValueError, RecursionError) as error:
        return SavedScreen(), f"the saved layout could not be read: {error}"


def write_session(path: Path, saved: SavedScreen) -> None:
    """Save atomically and durably. Raises `OSError`, and `ValueError` if it cannot be encoded."""
    write_whole_bytes(path, msgspec.msgpack.encode(saved), lasting=True)


class SessionFile:
    """The session file at `path`, merged with the changes of other workbenches.

    Any thread may call `write` at any time; it writes the latest wanted session.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unread = False
        self._seen: Stamp = None
        self._wanted = self._mine = self._on_disk = SavedScreen()

    def read(self) -> tuple[SavedScreen, str]:
        """The saved session, and an error. The first write renames an unreadable file."""
        self._seen = stamp_of(self._path)
        saved, problem = read_session(self._path)
        self._unread = bool(problem)
        self._wanted = self._mine = self._on_disk = saved
        return saved, problem

    def mark_invalid(self) -> None:
        """Rename the file at the first write, because it has invalid contents."""
        self._unread = True

    def set_session(self, saved: SavedScreen) -> None:
        """Set the session for the next write."""
        if saved != self._wanted:
            self._wanted = saved

    @property
    def is_written(self) -> bool:
        """Whether the file has the wanted session."""
        return self._wanted is self._mine

    def write(self) -> None:
        """Write the wanted session atomically. Raises `OSError`, and `ValueError` if it cannot be encoded."""
        with self._lock:
            mine = self._wanted
            if mine is self._mine:
                return
            # A separate lock, so that saving a recipe edit never waits.
            with exclusive_lock(self._path.with_name(f".{self._path.name}.lock")):
                whole = merged(self._mine, self._read_changes(), mine)
                if self._unread:
                    self._path.replace(self._path.with_name(f"{self._path.name}.unread"))
                    self._unread = False
                write_session(self._path, whole)
                self._seen = stamp_of(self._path)
            self._mine, self._on_disk = mine, whole

    def _read_changes(self) -> SavedScreen:
        """The current content of the file. It is read again only if another workbench has written it."""
        if (now := stamp_of(self._path)) != self._seen:
            self._seen = now
            self._on_disk, problem = read_session(self._path)
            self._unread = bool(problem)
        return self._on_disk


def merged(base: SavedScreen, theirs: SavedScreen, mine: SavedScreen) -> SavedScreen:
    """`mine` with the runs and bookmarks that another workbench has added or removed since `base`."""
    runs = sorted(_merged(base.runs, theirs.runs, mine.runs), key=lambda run: run.at)[-LENGTH:]
    marks = [each.bookmarks if isinstance(each.bookmarks, list) else [] for each in (base, theirs, mine)]
    bookmarks = _merged(*marks)
    return msgspec.structs.replace(mine, runs=tuple(runs), bookmarks=bookmarks)


def _merged(base: Sequence[T], theirs: Sequence[T], mine: Sequence[T]) -> list[T]:
    added = [each for each in mine if each not in base and each not in theirs]
    return [each for each in theirs if each in mine or each not in base] + added


def is_first_script(source: str, store: Path) -> bool:
    """Whether `source` is the first script opened with this `store`. Later calls return false."""
    path = source.partition(":")[0]
    if os.path.exists(path) and not path.endswith(".py"):
        return False
    try:
        store.mkdir(parents=True, exist_ok=True)
        (store / "a-script-was-opened").touch(exist_ok=False)
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True
