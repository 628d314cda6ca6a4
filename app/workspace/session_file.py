"""What is kept of a session beside the recipes: the layout, bookmarks, runs, inputs. No Textual.

It is kept in one file a program, which all workbenches on it write as they change; what each has changed is merged
with what the others have. A file that cannot be read is said so and put aside: nothing depends on it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from buddy.app.workspace.atomic_write import Stamp, stamp_of, write_whole_bytes
from buddy.app.workspace.locks import alone
from buddy.app.workspace.runs import LENGTH, RunRecord
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice

FIRST_SCRIPT = "opening a Python script runs it; files of other kinds run no code"
T = TypeVar("T")


class Kept(msgspec.Struct, frozen=True):
    """How the screen stands. `stage` is the key of the stage shown, `how` the kind of diff.

    A file of `inputs` is its path, to be read again. `source` says whether the source pane was there.
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


def read_kept(path: Path) -> tuple[Kept, str]:
    """What was kept in `path`, and what is wrong with it ("" where nothing is, or there is no file)."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=Kept), ""
    except FileNotFoundError:
        return Kept(), ""
    except (OSError, ValueError, RecursionError) as error:
        return Kept(), f"the layout kept from last time could not be read: {error}"


def write_kept(path: Path, kept: Kept) -> None:
    """Keep it, whole or not at all, power loss included. Raises `OSError`, and `ValueError` for what has no bytes."""
    write_whole_bytes(path, msgspec.msgpack.encode(kept), lasting=True)


class KeptSession:
    """The file at `path` as one workbench keeps it, beside what others have added.

    Any thread may write it, at any time: it writes what is wanted then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._unread = False
        self._seen: Stamp = None
        self._wanted = self._mine = self._there = Kept()

    def read(self) -> tuple[Kept, str]:
        """What was kept, and what is wrong with it, if anything: that is put aside by the first write."""
        self._seen = stamp_of(self._path)
        kept, problem = read_kept(self._path)
        self._unread = bool(problem)
        self._wanted = self._mine = self._there = kept
        return kept, problem

    def put_aside(self) -> None:
        """What was read has something in it that nobody can use: the first write leaves it to be looked at."""
        self._unread = True

    def want(self, kept: Kept) -> None:
        """Have the next write keep it."""
        if kept != self._wanted:
            self._wanted = kept

    @property
    def is_written(self) -> bool:
        """Whether the file has all that is wanted."""
        return self._wanted is self._mine

    def write(self) -> None:
        """Write what is wanted, whole or not at all. Raises `OSError`, and `ValueError` for what has no bytes."""
        with self._lock:
            mine = self._wanted
            if mine is self._mine:
                return
            # A lock of its own: an edit of the recipe, which is kept at once, waits for nobody.
            with alone(self._path.with_name(f".{self._path.name}.lock")):
                whole = merged(self._mine, self._theirs(), mine)
                if self._unread:
                    self._path.replace(self._path.with_name(f"{self._path.name}.unread"))
                    self._unread = False
                write_kept(self._path, whole)
                self._seen = stamp_of(self._path)
            self._mine, self._there = mine, whole

    def _theirs(self) -> Kept:
        """What stands there now: long ones are read again only where somebody else has written them."""
        if (now := stamp_of(self._path)) != self._seen:
            self._seen = now
            self._there, problem = read_kept(self._path)
            self._unread = bool(problem)
        return self._there


def merged(base: Kept, theirs: Kept, mine: Kept) -> Kept:
    """`mine`, with the runs and bookmarks that another workbench has added or taken away since both were at `base`."""
    runs = sorted(_merged(base.runs, theirs.runs, mine.runs), key=lambda run: run.at)[-LENGTH:]
    marks = [each.bookmarks if isinstance(each.bookmarks, list) else [] for each in (base, theirs, mine)]
    bookmarks = _merged(*marks)
    return msgspec.structs.replace(mine, runs=tuple(runs), bookmarks=bookmarks)


def _merged(base: Sequence[T], theirs: Sequence[T], mine: Sequence[T]) -> list[T]:
    added = [each for each in mine if each not in base and each not in theirs]
    return [each for each in theirs if each in mine or each not in base] + added


def is_first_script(source: str, store: Path) -> bool:
    """Whether `source` is the first script that is opened where `store` is; from then on none is."""
    path = source.partition(":")[0]
    if os.path.exists(path) and not path.endswith(".py"):
        return False
    try:
        store.mkdir(parents=True, exist_ok=True)
        (store / "a-script-was-opened").touch(exist_ok=False)
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True
