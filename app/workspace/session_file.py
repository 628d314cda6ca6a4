"""The session file of a program: layout, bookmarks, runs, inputs.

All workbenches of a program write the same file, and merge their changes with those of the others. An unreadable file
is reported and renamed, because nothing depends on it.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from buddy.app.workspace.files import Stamp, exclusive_lock, stamp_of, write_whole_bytes
from buddy.compiler.protocol import OutputReport, RunReport
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice

# A stage by its pass and the number of earlier stages of that pass, which does not change when steps are renumbered.
Key = tuple[str, int]


class Bookmark(msgspec.Struct, frozen=True):
    """Line `line` of stage `key` of a graph, with its text, by which it is found again after an edit."""

    graph: int
    key: Key
    line: int
    text: str


class Bookmarks:
    """All bookmarks, in the order of their creation."""

    def __init__(self, marks: Iterable[Bookmark] = ()) -> None:
        self.marks = list(marks)

    def toggle(self, mark: Bookmark) -> bool:
        """Set or remove a bookmark. Returns whether the line has one now."""
        before = len(self.marks)
        self.marks = [other for other in self.marks if not _same_place(other, mark)]
        if len(self.marks) < before:
            return False
        self.marks.append(mark)
        return True

    def lines_of(self, graph: int, key: Key | None) -> set[int]:
        """The lines of a stage that have bookmarks."""
        return {mark.line for mark in self.marks if (mark.graph, mark.key) == (graph, key)}

    def to_data(self) -> list[Any]:
        """The bookmarks as plain values for `from_data`, equal to those read from a file."""
        found: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self.marks))
        return found

    @staticmethod
    def from_data(data: Any) -> Bookmarks:
        """Read the values of `to_data`. Raises `msgspec.ValidationError` if they are not a list of bookmarks."""
        return Bookmarks(msgspec.convert(data, list[Bookmark]))


def _same_place(one: Bookmark, other: Bookmark) -> bool:
    return (one.graph, one.key, one.line) == (other.graph, other.key, other.line)


LENGTH = 50


class RunRecord(msgspec.Struct, frozen=True):
    """One run: its end (seconds since the epoch), recipe, inputs and report.

    To keep records small, an input file is stored as its path and `held`, the hash of its content, and the report has
    no images of values.
    """

    at: float
    recipe: Recipe
    report: RunReport
    inputs: InputChoice = InputChoice()
    held: str = ""

    @property
    def clock(self) -> str:
        """The time of day of its end."""
        return time.strftime("%H:%M:%S", time.localtime(self.at))


def recorded(at: float, recipe: Recipe, report: RunReport, inputs: InputChoice) -> RunRecord:
    """The record of a run on `inputs`."""
    return RunRecord(at, recipe, _without_values(report), without_content(inputs), content_hash(inputs))


def _without_values(report: RunReport) -> RunReport:
    beside = tuple(replace(side, outputs=_without_images(side.outputs)) for side in report.beside)
    return replace(report, outputs=_without_images(report.outputs), beside=beside)


def _without_images(outputs: tuple[OutputReport, ...]) -> tuple[OutputReport, ...]:
    return tuple(replace(output, histogram=(), map=()) for output in outputs)


def without_content(inputs: InputChoice) -> InputChoice:
    """The inputs without the content of a file."""
    return replace(inputs, content=b"")


def content_hash(inputs: InputChoice) -> str:
    """The hash of the content of an input file; empty if the inputs are not from a file."""
    return hashlib.sha256(inputs.content).hexdigest() if inputs.content else ""


def with_run(runs: Sequence[RunRecord], record: RunRecord) -> list[RunRecord]:
    """The runs with another one added; beyond the limit, the oldest are dropped."""
    return [*runs, record][-LENGTH:]


def recipe_summary(recipe: Recipe, preset: Recipe | None) -> str:
    """A short description of a recipe: its preset, and the number of differences from it."""
    parts = [recipe.preset]
    if preset is not None and recipe.steps != preset.steps:
        on, before = _enabled(recipe), _enabled(preset)
        came, went = len(on - before), len(before - on)
        parts += [f"+{came}"] * (came > 0) + [f"-{went}"] * (went > 0)
        parts += ["moved"] * (not came and not went)
    eager = sum(choice.lowering == EAGER for choice in recipe.choices)
    parts += [f"{eager} in eager"] * (eager > 0)
    parts += [recipe.dialect] * (recipe.dialect != "linalg") + [f"{recipe.threads} threads"] * (recipe.threads > 1)
    return " ".join(parts)


def _enabled(recipe: Recipe) -> set[tuple[int, str]]:
    """The enabled passes, by text and by the number of earlier passes with the same text."""
    seen: dict[str, int] = {}
    found = set()
    for step in recipe.steps:
        if step.enabled:
            spelling = f"{step.anchor}({step.spelling()})"
            found.add((seen.get(spelling, 0), spelling))
            seen[spelling] = seen.get(spelling, 0) + 1
    return found


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
