"""Panes of plug-ins: the interface that they implement, how they are found, and a thread that limits their time.

A package names its panes in the entry point group `buddy.panes`; a user names a file by `--pane`. When a pane is shown,
the workbench imports its module, and nothing else of the plug-in. This module does not import Textual.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, TypeVar

from buddy.app.session.requests import UnavailableError
from buddy.compiler.protocol import Assignment, Diagnostic, NodeRow, RunReport, Stage
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.profile import ProfileReport
from buddy.compiler.protocol.recipe import PluginFile, Recipe

# The group of the entry points of panes.
PANE_GROUP = "buddy.panes"
# The processor time that a call of a pane may take.
CALL_SECONDS = 1.0
# The duration that a call may take, without the time in which it waits for lines from the engine.
MAX_CALL_DURATION = 10.0
# The processor time, and the duration, that the import of a pane's module may take.
LOAD_SECONDS = 10.0
# The maximum number of lines of a pane that are shown.
MAX_LINES = 20_000
# How often the time of a call is checked.
_CHECK_SECONDS = 0.05
# A call that catches every exception is interrupted this many times, once a second, before its thread is given up.
_MAX_INTERRUPTS = 60
# Keys that leave, move in, or search every pane. A pane cannot have them.
RESERVED_KEYS = frozenset("jkGgnNyq/?:123456789+") | {
    "0", "enter", "escape", "tab", "shift+tab", "up", "down", "home", "end", "pageup", "pagedown", "f1",
}  # fmt: skip

CallResult = TypeVar("CallResult")


class PaneCallError(BuddyError):
    """The code of a pane has raised `error`, or was interrupted at its time limit (`TimeIsUp`)."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(frozen=True)
class PaneLine:
    """A line of a pane: texts with their roles, such as `text`, `dim`, `title`, `ok`, `warn`, `bad`, `bar`.

    Each of `cells` is a tuple (text, role). The theme decides the colour of a role. `node` is the `stable` name of the
    node that the line is about, if any: the line is marked while the node is selected, and enter goes to it.
    """

    cells: tuple[tuple[str, str], ...]
    node: str = ""


@dataclass(frozen=True)
class PaneView:
    """What a pane can read: the graph on the screen, and its stages and results, as they are now.

    `nodes` are the rows of the graph, `assignments` their lowerings by `stable` name, and `selected` is the `stable`
    name of the selected node ("" for none). `stages` are those of the last compilation, and `stage` is the one that the
    IR pane shows. `report` is the last run, `profile` the last profile. `changed` names what has changed since the last
    drawing: topics, as in `Pane.topics`.
    """

    program: str = ""
    graph: str = ""
    nodes: tuple[NodeRow, ...] = ()
    assignments: Mapping[str, Assignment] = field(default_factory=dict)
    selected: str = ""
    recipe: Recipe | None = None
    stages: tuple[Stage, ...] = ()
    stage: Stage | None = None
    report: RunReport | None = None
    profile: ProfileReport | None = None
    changed: frozenset[str] = frozenset()
    _fetch: Callable[[str, int, int], Sequence[str]] = field(default=lambda *_: (), repr=False)

    def lines(self, stage: Stage, first: int = 0, count: int = 1000) -> tuple[str, ...]:
        """Returns lines of the text of a stage; large constants are abbreviated. Waits for the engine.

        Returns no lines if the engine cannot answer. Equal `stage.text` means equal lines, so they can be kept.
        """
        return tuple(self._fetch(stage.text, first, count))


class Pane:
    """A pane of the workbench: subclasses return its lines. The workbench makes one object, without arguments.

    `title` is written in the frame, and `keys` are the pane's own keys, each with a short description; they are pressed
    while the pane has focus. `topics` say which changes draw the pane again: of "graph", "passes" (the recipe),
    "stages", "outputs" (runs and profiles), "status" (progress) and "selection".

    All methods run in a thread of their own. A method that raises, or takes more than a second of processor time,
    switches the pane off, with a message.
    """

    title: ClassVar[str] = ""
    keys: ClassVar[Mapping[str, str]] = {}
    topics: ClassVar[frozenset[str]] = frozenset({"graph", "stages", "outputs", "selection"})

    def lines(self, view: PaneView, width: int) -> Sequence[PaneLine | str]:
        """Returns the lines of the pane, which has `width` columns. Longer lines are cut."""
        raise NotImplementedError

    def press(self, view: PaneView, key: str) -> None:
        """Called for a key of `keys`; the pane is drawn again afterwards."""

    def click(self, view: PaneView, row: int, column: int) -> None:
        """Called after a click on a line; the pane is drawn again afterwards."""


# ---- finding panes -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PaneSource:
    """A pane that can be shown, whose code is not imported yet.

    `origin` is the package or the file that has it, and `target` is `MODULE:CLASS` or `FILE.py:CLASS`.
    """

    name: str
    origin: str
    target: str

    @property
    def is_file(self) -> bool:
        """Whether the pane is a class of a file, not of an installed package."""
        return self.target.rpartition(":")[0].endswith(".py")

    def load(self) -> Pane:
        """Imports the module or executes the file, and returns a new object of the class.

        Raises the errors of the code, and `BuddyError` if the class is not a pane or uses a reserved key.
        """
        from buddy.compiler.protocol.plugin_code import execute_file

        module, _, name = self.target.rpartition(":")
        if self.is_file:
            cls = getattr(execute_file(PluginFile(str(Path(module).resolve()))), name)
        else:
            cls = metadata.EntryPoint(self.name, self.target, PANE_GROUP).load()
        if not (isinstance(cls, type) and issubclass(cls, Pane)):
            raise BuddyError(
                f"{self.target} is not a subclass of buddy.api.Pane", self.origin, "name a class of a pane"
            )
        reserved = sorted(RESERVED_KEYS.intersection(cls.keys) | {key for key in cls.keys if key.startswith("ctrl+")})
        if reserved:
            problem = f"a pane cannot have the {'key' if len(reserved) == 1 else 'keys'} {', '.join(reserved)}"
            raise BuddyError(problem, self.origin, "give it other keys: these work in every pane")
        return cls()

    def diagnose(self, error: BaseException) -> Diagnostic:
        """Returns the diagnostic of an error that the pane's code has raised."""
        from buddy.compiler.protocol.plugin_code import location_of, plugin_problem

        module = self.target.rpartition(":")[0]
        home = str(Path(module).resolve()) if self.is_file else location_of(module)
        todo = "correct the plug-in, then show the pane again"
        return plugin_problem(f"the pane {self.name} of {self.origin}", error, home, todo)


def find_panes(files: Sequence[str] = ()) -> tuple[tuple[PaneSource, ...], tuple[Diagnostic, ...]]:
    """Returns the panes of installed packages and of `files` (`FILE.py:CLASS`), and why others are left out.

    Of panes with the same name, the first one is returned. Imports no code of a plug-in.
    """
    from buddy.compiler.protocol.plugin_code import label_of

    points = sorted(metadata.entry_points(group=PANE_GROUP), key=lambda point: (point.name, point.value))
    candidates = [PaneSource(point.name, label_of(point), point.value) for point in points]
    candidates += [PaneSource(text.rpartition(":")[2], Path(text.rpartition(":")[0]).name, text) for text in files]
    sources: dict[str, PaneSource] = {}
    problems = []
    for source in candidates:
        other = sources.setdefault(source.name, source)
        if other is not source:
            problem = f"two plug-ins have a pane {source.name!r}; that of {source.origin} is left out"
            problems.append(
                Diagnostic(problem, f"{other.origin} and {source.origin}", "rename or uninstall one of them")
            )
    return tuple(sources.values()), tuple(problems)


def pane_file_error(text: str) -> str:
    """Returns why `text` is not `FILE.py:CLASS` with an existing file, or an empty string."""
    file, colon, name = text.rpartition(":")
    if not (colon and file.endswith(".py") and name.isidentifier()):
        return f"{text!r} is not of the form FILE.py:CLASS, such as panes.py:Sizes"
    return "" if Path(file).is_file() else f"{file}: no such file"


# ---- calls with a time limit -----------------------------------------------------------------------------------------


class PaneThread:
    """Calls the code of one pane in a thread, one call at a time. A call that takes too long ends the thread.

    A call is interrupted before its next Python instruction. Code in C that keeps the interpreter lock, such as a long
    match of a regular expression, cannot be interrupted, and stops the workbench until it returns.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls: queue.SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]] | None] = queue.SimpleQueue()
        # How long the current call has waited for the engine, without a wait that has not ended, and the start of that
        # wait (0: the call does not wait). The pane's thread writes both, the event loop reads them.
        self._waited_seconds, self._waits_since = 0.0, 0.0
        self._thread = threading.Thread(target=self._serve, name="pane of a plug-in", daemon=True)
        self._thread.start()

    async def call(self, work: Callable[[], CallResult], seconds: float = CALL_SECONDS) -> CallResult:
        """Calls `work` in the thread and returns its result. Raises `PaneCallError` if it raises, or takes too long.

        It may take `seconds` of processor time. Its duration, without waiting in `wait_for`, may be the longer one of
        `seconds` and `MAX_CALL_DURATION`.
        """
        from buddy.compiler.protocol.plugin_code import TimeIsUp

        answer: asyncio.Future[CallResult] = self._loop.create_future()
        self._waited_seconds, start_time, start_cpu_seconds = 0.0, time.monotonic(), self._cpu_seconds()
        self._calls.put((work, answer))
        while not (await asyncio.wait({answer}, timeout=_CHECK_SECONDS))[0]:
            current_wait = time.monotonic() - self._waits_since if self._waits_since else 0.0
            duration = time.monotonic() - start_time - self._waited_seconds - current_wait
            if self._cpu_seconds() - start_cpu_seconds > seconds or duration > max(MAX_CALL_DURATION, seconds):
                error = TimeIsUp().with_traceback(self._traceback())
                self.stop()
                raise PaneCallError(error)
        return answer.result()

    def wait_for(self, request: Coroutine[object, object, CallResult]) -> CallResult:
        """Runs a coroutine in the workbench's event loop, and returns its result. Called in the thread of the pane."""
        self._waits_since = time.monotonic()
        try:
            return asyncio.run_coroutine_threadsafe(request, self._loop).result()
        finally:
            self._waited_seconds += time.monotonic() - self._waits_since
            self._waits_since = 0.0

    def stop(self, attempt: int = 0) -> None:
        """Ends the thread: interrupts its call, again after a second if the call catches the exception.

        `attempt` is the number of interrupts so far.
        """
        from buddy.compiler.protocol.plugin_code import TimeIsUp, raise_in_thread

        self._calls.put(None)
        if self._thread.ident is not None and self._thread.is_alive() and attempt < _MAX_INTERRUPTS:
            raise_in_thread(self._thread.ident, TimeIsUp)
            self._loop.call_later(1.0, self.stop, attempt + 1)

    def _traceback(self) -> TracebackType | None:
        """Returns the current stack of the thread as a traceback, `None` if it has ended."""
        frame, traceback = sys._current_frames().get(self._thread.ident or 0), None
        while frame is not None:
            traceback = TracebackType(traceback, frame, frame.f_lasti, frame.f_lineno)
            frame = frame.f_back
        return traceback

    def _cpu_seconds(self) -> float:
        """Returns the processor time of the thread; 0 where it cannot be measured."""
        clock = getattr(time, "pthread_getcpuclockid", None)
        with contextlib.suppress(OSError):
            if clock is not None and self._thread.ident is not None and self._thread.is_alive():
                return time.clock_gettime(clock(self._thread.ident))
        return 0.0

    def _serve(self) -> None:
        """Executes the queued calls until `stop`. Runs in the thread."""
        with contextlib.suppress(BaseException):  # the exception of `stop`, if it arrives between two calls
            while (entry := self._calls.get()) is not None:
                work, answer = entry
                result, error = None, None
                try:
                    result = work()
                except BaseException as raised:
                    error = raised
                self._loop.call_soon_threadsafe(_settle, answer, result, error)


def _settle(answer: asyncio.Future[Any], result: object, error: BaseException | None) -> None:
    """Sets the answer of a call to its result or its error, unless it is set. Runs in the event loop."""
    if answer.done():
        return
    if error is not None:
        answer.set_exception(PaneCallError(error))
    else:
        answer.set_result(result)


def check_lines(lines: object, roles: frozenset[str]) -> list[PaneLine]:
    """Returns the result of `Pane.lines` as `PaneLine` objects, at most `MAX_LINES`.

    Raises `BuddyError` if it is not a list of lines, or a cell has a role that is not one of `roles`.
    """
    todo = "return a list of strings and of buddy.api.PaneLine"
    if isinstance(lines, str) or not isinstance(lines, Sequence):
        raise BuddyError(f"Pane.lines returned {type(lines).__name__}", todo=todo)
    checked = []
    for line in lines[:MAX_LINES]:
        line = PaneLine(((line, "text"),)) if isinstance(line, str) else line
        if not isinstance(line, PaneLine):
            raise BuddyError(f"Pane.lines returned a line of type {type(line).__name__}", todo=todo)
        for text, role in line.cells:
            if not isinstance(text, str) or role not in roles:
                known_roles = ", ".join(sorted(role for role in roles if ":" not in role))
                raise BuddyError(f"a line has the cell {(text, role)!r}", todo=f"use a text and one of {known_roles}")
        checked.append(line)
    if len(lines) > MAX_LINES:
        checked.append(PaneLine(((f"{len(lines) - MAX_LINES} more lines are left out", "dim"),)))
    return checked


def line_fetcher(
    thread: PaneThread, request: Callable[[str, int, int], Coroutine[Any, Any, Any]]
) -> Callable[[str, int, int], Sequence[str]]:
    """Returns a function that requests lines of a text for the code of a pane in `thread`.

    Its parameters are the hash of the text, the first line (from 0), and the number of lines. It returns no lines if
    the engine cannot answer.
    """

    def fetch(text_hash: str, first: int, count: int) -> Sequence[str]:
        try:
            return tuple(thread.wait_for(request(text_hash, max(0, first), max(0, count))).lines)
        except UnavailableError:
            return ()

    return fetch
