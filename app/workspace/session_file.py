"""The session file of a program: layout, bookmarks, runs, inputs.

All workbenches of a program write the same file. Each merges the runs and bookmarks of the others into what it writes.
An unreadable file is reported, and renamed by the next write.
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

from buddy.app.workspace.files import FileStamp, exclusive_lock, read_stamp, write_bytes_atomically
from buddy.compiler.protocol import OutputReport, RunReport, compatibility
from buddy.compiler.protocol.compatibility import decode_recipes
from buddy.compiler.protocol.recipe import EAGER, F32, Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice
from buddy.compiler.protocol.source_locations import split_source

# Identifies a stage: its pass, and the number of earlier stages of that pass. Unlike an index, it stays when other
# passes are moved.
StageKey = tuple[str, int]


class Bookmark(msgspec.Struct, frozen=True):
    """Line `line` of stage `key` of a graph. Its text is stored too, to find the line again after the stage changed."""

    graph: int
    key: StageKey
    line: int
    text: str


class Bookmarks:
    """All bookmarks, in the order of their creation."""

    def __init__(self, marks: Iterable[Bookmark] = ()) -> None:
        self.marks = list(marks)

    def toggle(self, mark: Bookmark) -> bool:
        """Sets a bookmark, or removes the one of the same line. Returns whether the line has one now."""
        others = [other for other in self.marks if not _are_on_same_line(other, mark)]
        is_removed = len(others) < len(self.marks)
        self.marks = others
        if is_removed:
            return False
        self.marks.append(mark)
        return True

    def lines_of(self, graph: int, key: StageKey | None) -> set[int]:
        """Returns the lines of a stage that have bookmarks."""
        return {mark.line for mark in self.marks if (mark.graph, mark.key) == (graph, key)}

    def to_data(self) -> list[object]:
        """Returns the bookmarks as plain values for `from_data`, equal to those read from a file."""
        data: list[Any] = msgspec.msgpack.decode(msgspec.msgpack.encode(self.marks))
        return data

    @staticmethod
    def from_data(data: object) -> Bookmarks:
        """Reads the values of `to_data`. Raises `msgspec.ValidationError` if they are not a list of bookmarks."""
        return Bookmarks(msgspec.convert(data, list[Bookmark]))


def _are_on_same_line(one: Bookmark, other: Bookmark) -> bool:
    return (one.graph, one.key, one.line) == (other.graph, other.key, other.line)


# The maximum number of runs in a session file.
MAX_RUNS = 50


class RunRecord(msgspec.Struct, frozen=True):
    """One run: the time of its end in seconds since the epoch (`ended_at`), its recipe, inputs and report.

    To keep records small, the content of an input file is stored only as its hash `inputs_hash`, and the report has no
    images of values.
    """

    ended_at: float = msgspec.field(name="at")
    recipe: Recipe
    report: RunReport
    inputs: InputChoice = InputChoice()
    inputs_hash: str = msgspec.field(default="", name="held")

    @property
    def end_time(self) -> str:
        """The time of day when the run ended, as 17:30:59."""
        return time.strftime("%H:%M:%S", time.localtime(self.ended_at))

    @property
    def end_date(self) -> str:
        """The date and the time when the run ended, as 2026-11-26 17:30."""
        return time.strftime("%Y-%m-%d %H:%M", time.localtime(self.ended_at))


def make_record(ended_at: float, recipe: Recipe, report: RunReport, inputs: InputChoice) -> RunRecord:
    """Returns the record of a run on `inputs` that ended at `ended_at`, in seconds since the epoch."""
    return RunRecord(ended_at, recipe, _without_images(report), without_content(inputs), content_hash(inputs))


def _without_images(report: RunReport) -> RunReport:
    """Returns the report without histograms and maps of differences."""
    sides = tuple(replace(side, outputs=_outputs_without_images(side.outputs)) for side in report.sides)
    return replace(report, outputs=_outputs_without_images(report.outputs), sides=sides)


def _outputs_without_images(outputs: tuple[OutputReport, ...]) -> tuple[OutputReport, ...]:
    return tuple(replace(output, histogram=(), map=()) for output in outputs)


def without_content(inputs: InputChoice) -> InputChoice:
    """Returns the inputs without the content of a file."""
    return replace(inputs, content=b"")


def content_hash(inputs: InputChoice) -> str:
    """Returns the hash of the content of an input file; empty if the inputs are not from a file."""
    return hashlib.sha256(inputs.content).hexdigest() if inputs.content else ""


def with_run(runs: Sequence[RunRecord], record: RunRecord) -> list[RunRecord]:
    """Returns the latest `MAX_RUNS` of the runs and `record`."""
    return [*runs, record][-MAX_RUNS:]


def recipe_summary(recipe: Recipe, preset: Recipe | None) -> str:
    """Returns a short description: the preset, how many passes are added (+) and removed (-), and other differences."""
    parts = [recipe.preset]
    if preset is not None and recipe.steps != preset.steps:
        passes, preset_passes = _enabled_passes(recipe), _enabled_passes(preset)
        n_added, n_removed = len(passes - preset_passes), len(preset_passes - passes)
        parts += [f"+{n_added}" if n_added else "", f"-{n_removed}" if n_removed else ""]
        parts += ["" if n_added or n_removed else "moved"]
    n_eager = sum(choice.lowering == EAGER for choice in recipe.choices)
    parts += [
        f"{n_eager} in eager" if n_eager else "",
        recipe.precision if recipe.precision != F32 else "",
        f"{len(recipe.precisions)} precisions" if recipe.precisions else "",
        recipe.dialect if recipe.dialect != "linalg" else "",
        f"{recipe.threads} threads" if recipe.threads > 1 else "",
    ]
    return " ".join(part for part in parts if part)


def _enabled_passes(recipe: Recipe) -> set[tuple[int, str]]:
    """Returns the enabled passes, each as the number of earlier passes with the same spelling, and the spelling."""
    counts: dict[str, int] = {}
    passes = set()
    for step in recipe.steps:
        if step.enabled:
            spelling = f"{step.anchor}({step.spelling()})"
            passes.add((counts.get(spelling, 0), spelling))
            counts[spelling] = counts.get(spelling, 0) + 1
    return passes


# The notice when a user opens a script for the first time.
FIRST_SCRIPT_NOTICE = "opening a .py file executes it; other file types never execute code"
T = TypeVar("T")


class SavedCursor(msgspec.Struct, frozen=True):
    """A line in the IR pane: its number in the text with that name, its distance in rows from the first row.

    `content` and `node`, the line and a node of it, find the line again after the text has changed.
    """

    text: str
    line: int
    offset: int
    content: str = ""
    node: str = ""


class SavedSession(msgspec.Struct, frozen=True):
    """The saved session. `stage` is the key of the shown stage, `cursor` the line in it, `diff_mode` the kind of diff.

    `inputs` has the path of an input file, not its content. `bookmarks` is `Bookmarks.to_data`. `source` is true if the
    source pane was shown.
    """

    pane: str = "graph"
    zoomed: bool = False
    stage: tuple[str, int] | None = None
    node: str = ""
    diff_mode: str = msgspec.field(default="off", name="how")
    theme: str = ""
    inputs: InputChoice = OWN_INPUTS
    bookmarks: Any = None
    runs: tuple[RunRecord, ...] = ()
    source: bool = False
    cursor: SavedCursor | None = msgspec.field(default=None, name="place")


def read_session(path: Path) -> tuple[SavedSession, str]:
    """Returns the session saved in `path`, and an error, empty if the file is valid or does not exist."""
    try:
        content = path.read_bytes()
        compatibility.SESSION.check_stamp(msgspec.msgpack.decode(content, type=compatibility.Stamp))
        return decode_recipes(content, SavedSession), ""
    except FileNotFoundError:
        return SavedSession(), ""
    except (OSError, ValueError, RecursionError) as error:
        return SavedSession(), f"the saved layout could not be read: {error}"


def write_session(path: Path, saved: SavedSession) -> None:
    """Saves `saved` to `path` atomically and durably. Raises `OSError`, and `ValueError` if it cannot be encoded."""
    names = zip(saved.__struct_fields__, saved.__struct_encode_fields__, strict=True)
    fields = {encoded: getattr(saved, name) for name, encoded in names}
    write_bytes_atomically(path, msgspec.msgpack.encode({**compatibility.SESSION.stamp(), **fields}), sync=True)


class SessionFile:
    """The session file at `path`, merged with the changes of other workbenches.

    Any thread may call `write` at any time; it writes the session that was set last.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._is_unreadable = False
        self._last_stamp: FileStamp | None = None
        # The session that was set last, the one that was written last, and the content of the file, which has the
        # changes of other workbenches too.
        self._current = self._written = self._on_disk = SavedSession()

    def read(self) -> tuple[SavedSession, str]:
        """Returns the saved session, and an error. The first write renames an unreadable file."""
        self._last_stamp = read_stamp(self._path)
        saved, problem = read_session(self._path)
        self._is_unreadable = bool(problem)
        self._current = self._written = self._on_disk = saved
        return saved, problem

    def mark_invalid(self) -> None:
        """Renames the file at the next write, because it has invalid contents."""
        self._is_unreadable = True

    def set_session(self, saved: SavedSession) -> None:
        """Sets the session for the next write."""
        # An equal session keeps the identity of the current one, which `is_written` compares.
        if saved != self._current:
            self._current = saved

    @property
    def is_written(self) -> bool:
        """Whether the session that was set last is in the file."""
        return self._current is self._written

    def write(self) -> None:
        """Writes the session that was set last. Raises `OSError`, and `ValueError` if it cannot be encoded."""
        with self._lock:
            session = self._current
            if session is self._written:
                return
            # A separate lock, so that saving a recipe edit never waits.
            with exclusive_lock(self._path.with_name(f".{self._path.name}.lock")):
                content = merge_sessions(self._written, self._read_changes(), session)
                if self._is_unreadable:
                    self._path.replace(self._path.with_name(f"{self._path.name}.unread"))
                    self._is_unreadable = False
                write_session(self._path, content)
                self._last_stamp = read_stamp(self._path)
            self._written, self._on_disk = session, content

    def _read_changes(self) -> SavedSession:
        """Returns the current content of the file. It is read again only if another workbench has written it."""
        stamp = read_stamp(self._path)
        if stamp != self._last_stamp:
            self._last_stamp = stamp
            self._on_disk, problem = read_session(self._path)
            self._is_unreadable = bool(problem)
        return self._on_disk


def merge_sessions(base: SavedSession, theirs: SavedSession, mine: SavedSession) -> SavedSession:
    """Returns `mine` with the runs and bookmarks that another workbench has added or removed since `base`."""
    runs = sorted(_merge_lists(base.runs, theirs.runs, mine.runs), key=lambda run: run.ended_at)[-MAX_RUNS:]
    marks = [saved.bookmarks if isinstance(saved.bookmarks, list) else [] for saved in (base, theirs, mine)]
    return msgspec.structs.replace(mine, runs=tuple(runs), bookmarks=_merge_lists(*marks))


def _merge_lists(base: Sequence[T], theirs: Sequence[T], mine: Sequence[T]) -> list[T]:
    """Merges two versions of a list whose common ancestor is `base`. The items that `mine` has added are last."""
    added = [item for item in mine if item not in base and item not in theirs]
    return [item for item in theirs if item in mine or item not in base] + added


def record_first_script(source: str, store: Path) -> bool:
    """Records in `store` that a script was opened, if `source` is one. Returns whether it is the first one."""
    path = split_source(source).target
    if os.path.exists(path) and not path.endswith(".py"):
        return False
    try:
        store.mkdir(parents=True, exist_ok=True)
        (store / "a-script-was-opened").touch(exist_ok=False)
    except OSError as error:
        return not isinstance(error, FileExistsError)
    return True
