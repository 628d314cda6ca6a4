"""Input and output of the workbench without a screen.

Reads lines, and finds the actions and nodes that they name. Prints changes of the state, and screens and panes.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple, TextIO

from textual.screen import Screen
from textual.widgets import Input, Static, TextArea

from buddy.app.actions import ACTIONS, BY_ID, Action
from buddy.app.panes.ir import IrPane
from buddy.app.reports import formatting
from buddy.app.reports.run_report import eager_assignments, run_report_text
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.editor import EditorScreen
from buddy.app.screens.modal import ConfirmScreen
from buddy.app.screens.pass_options import OptionScreen
from buddy.app.screens.picker import ChoiceList, PickerScreen
from buddy.app.screens.plot import PlotScreen
from buddy.app.screens.programs import ProgramScreen
from buddy.app.session.state import State
from buddy.app.widgets.code_view import CodeView
from buddy.app.widgets.cursor_view import SEARCHED_WIDTH, CursorView
from buddy.app.widgets.look import printable_text
from buddy.app.widgets.prompt import Prompt
from buddy.app.workbench.dispatch import command_score
from buddy.compiler.protocol import Diagnostic, NodeRow
from buddy.compiler.protocol.errors import diagnostic_text

# ---- input -----------------------------------------------------------------------------------------------------------


# The number of actions that an unknown command suggests.
_MAX_SUGGESTIONS = 5
# The text that `help` prints.
COMMANDS_HELP = """Commands:
  graph, passes, ir, outputs   go to a pane and print its rows
  show [FROM-TO]               print rows of the pane, or of the open list
  node NAME                    go to a node of the graph
  stages                       list the stages of the compilation
  stage NAME|NUMBER            show a stage in IR
  toggle NAME                  switch a pass on or off, or a node between compiled code and eager
  where                        print the program, the pane and the row
  help [WORDS]                 print this list, or what an action does
  actions                      print the keys and actions of this pane
  ACTION [ANSWER]              perform an action by its name, its title or its key: run, undo, profile, search TEXT
An action may ask for a text or a choice: answer on the next line, or on the same line. `cancel` leaves the question.
Ctrl+c cancels what runs, ctrl+d or quit ends the workbench."""


def find_action(text: str, pane: str) -> Action | None:
    """Returns the action with the id `text`, else with that key, title or id after the dot; `None` without one.

    If several match, those of `pane` take precedence. Keys are those that work in `pane`.
    """
    if text in BY_ID:
        return BY_ID[text]
    ordered = sorted(ACTIONS, key=lambda action: _pane_rank(action, pane))
    active = [action for action in ordered if _pane_rank(action, pane) < _NOT_IN_PANE]
    # What to search, and whether an action is the named one: the first criterion with a match decides.
    criteria: Iterable[tuple[Iterable[Action], Callable[[Action], bool]]] = (
        (active, lambda action: any(text in (key, key.replace(" ", "")) for key in action.keys)),
        (ordered, lambda action: action.title.lower() == text.lower()),
        (ordered, lambda action: action.id.rpartition(".")[2] == text.lower()),
    )
    return next((action for actions, matches in criteria for action in actions if matches(action)), None)


# The rank of an action that does not work in the pane.
_NOT_IN_PANE = 3


def _pane_rank(action: Action, pane: str) -> int:
    """Returns the precedence of an action in a pane: 0 is the highest."""
    if action.pane == pane:
        return 0
    if action.pane in ("any", "app"):
        return 1
    return 2 if action.anywhere else _NOT_IN_PANE


def similar_actions(text: str) -> list[Action]:
    """Returns the actions that are most similar to a command, best first, at most `_MAX_SUGGESTIONS`."""
    scored = [(command_score(action, text), action) for action in ACTIONS]
    best = sorted((pair for pair in scored if pair[0] > 0), key=lambda pair: -pair[0])
    return [action for _, action in best[:_MAX_SUGGESTIONS]]


class Candidates(NamedTuple):
    """The names that match a user's words, if there is not exactly one: no name, or several."""

    names: tuple[str, ...]


def find_node(name: str, named_rows: Sequence[tuple[str, NodeRow]]) -> NodeRow | Candidates:
    """Returns the node called `name`; without one, the only node whose name matches the pattern `name` or contains it.

    `named_rows` has each node with its displayed name. Returns the candidates if no node or several nodes match.
    """
    for matches in (
        lambda displayed, row: name in (displayed, row.stable, row.name),
        lambda displayed, row: fnmatchcase(displayed, name),
        lambda displayed, row: name.lower() in displayed.lower(),
    ):
        matching = [(displayed, row) for displayed, row in named_rows if matches(displayed, row)]
        if len(matching) == 1:
            return matching[0][1]
        if matching:
            return Candidates(tuple(displayed for displayed, _ in matching))
    return Candidates(())


def read_lines(descriptor: int, loop: asyncio.AbstractEventLoop, put: Callable[[str | None], None]) -> None:
    """Calls `put` in `loop` with each line of a file descriptor, and with `None` at its end.

    Runs in a thread. It does not use `sys.stdin`, whose lock would block the exit of the process.
    """
    for line in _lines_of(descriptor):
        _put(loop, put, line)
    _put(loop, put, None)


def _put(loop: asyncio.AbstractEventLoop, put: Callable[[str | None], None], line: str | None) -> None:
    """Calls `put` with a line in `loop`. Does nothing if the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(put, line)


def _lines_of(descriptor: int) -> Iterator[str]:
    """Yields the lines of a file descriptor, decoded from UTF-8, up to its end."""
    decoder, text = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while True:
        try:
            data = os.read(descriptor, 1 << 16)
        except OSError:
            data = b""
        text += decoder.decode(data, final=not data)
        *lines, text = text.split("\n")
        yield from lines
        if not data:
            if text:
                yield text
            return


# ---- output ----------------------------------------------------------------------------------------------------------


# Progress is printed at most this often, because a screen reader speaks every line.
PROGRESS_SECONDS = 2.0
# The number of rows that are printed without a range.
MAX_ROWS = 40
# Text that is not printed: the padding between the columns of a table, and bars, which only draw a number.
_PADDING = re.compile(r" {3,}|(?<= ) *#+(?= |$)")
# The words for the marks at the start of a row.
_MARKS = {"[x]": "on", "[ ]": "off", "[=]": "unchanged", "[!]": "failed", "[~]": "out of date"}
_MARK = re.compile(r"\[[x =!~]\]")
# The characters before the number of a line of IR or code: the cursor, and the mark of a selected node.
_GUTTER = re.compile(r"^[>| ]+(?=\d)")


class Printer:
    """Prints lines without control characters. Does nothing after the reader of the stream has exited."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_progress, self._progress_time = "", 0.0

    def say(self, text: str) -> None:
        """Prints a text, which may have several lines."""
        lines = [printable_text(line.expandtabs()).rstrip() for line in text.split("\n")]
        with contextlib.suppress(BrokenPipeError, ValueError):
            self._stream.write("".join(f"{line}\n" for line in lines))
            self._stream.flush()

    def say_progress(self, text: str) -> None:
        """Prints the progress of a job, unless it is the same as before or follows it too soon."""
        now = time.monotonic()
        if text and text != self._last_progress and now - self._progress_time >= PROGRESS_SECONDS:
            self._last_progress, self._progress_time = text, now
            self.say(text)

    def say_problem(self, problem: Diagnostic) -> None:
        """Prints what happened, where, and what to do."""
        self.say(diagnostic_text(problem, problem.severity))


class ChangePrinter:
    """Prints changes of the state of a program: `print_changes` is called after each frame of the engine."""

    def __init__(self, printer: Printer) -> None:
        self._printer = printer
        # What was printed last.
        self._script_lines: list[str] = []
        self._log_length = 0
        self._graphs: object = ()
        self._is_restored = False  # whether the graphs were those of the last session
        self._notes: tuple[str, ...] = ()
        self._compilation: tuple[object, object] = (None, 0.0)  # the recipe, and the seconds of its compilation
        self._report: object = None
        self._problem: Diagnostic | None = None

    def print_changes(self, state: State) -> None:
        """Prints what has changed since the last call."""
        self._print_script_output(state)
        for entry in state.log[self._log_length :]:
            self._printer.say_problem(entry)
        self._log_length = len(state.log)
        if state.progress is not None:
            self._printer.say_progress(state.progress.activity)
        self._print_graphs(state)
        self._print_compilation(state)
        self._print_run(state)
        if state.problem is not self._problem:
            self._problem = state.problem
            if self._problem is not None:
                self._printer.say_problem(self._problem)

    def _print_script_output(self, state: State) -> None:
        """Prints the lines that the script has completed since the last call."""
        lines = state.printout[:-1]  # the last line is not complete
        if lines[: len(self._script_lines)] == self._script_lines:
            for line in lines[len(self._script_lines) :]:
                self._printer.say(line)
        self._script_lines = lines

    def _print_graphs(self, state: State) -> None:
        """Prints the graphs after a capture, or that those of the last session were captured again."""
        is_restored = bool(state.restored_at)
        if not state.captured or (state.graphs is self._graphs and is_restored == self._is_restored):
            return
        was_restored, previous_graphs = self._is_restored, self._graphs
        self._graphs, self._is_restored = state.graphs, is_restored
        for note in state.notes:
            if note not in self._notes:
                self._printer.say(f"note: {note}")
        self._notes = state.notes
        if was_restored and previous_graphs == state.graphs:
            self._printer.say("the script has run again: the graphs are the same")
            return
        origin = "from the last session" if is_restored else "captured"
        for number, info in enumerate(state.graphs):
            self._printer.say(f"{origin}: graph {number}, {info.name}, {len(info.rows)} nodes")

    def _print_compilation(self, state: State) -> None:
        """Prints the duration and the stages of a new compilation, and how many nodes fall back to eager."""
        compilation = (state.compiled_recipe, state.compile_seconds)
        if state.info is None or state.compiled_recipe is None or compilation == self._compilation:
            return
        self._compilation = compilation
        rows = state.board.rows()
        changed = sum(row.stage.changed for row in rows)
        reused = f", {state.n_reused_stages} from cache" if state.n_reused_stages else ""
        assignments = tuple(state.assignments.values())
        fallbacks = len(eager_assignments(assignments))
        self._printer.say(
            f"compiled in {state.compile_seconds:.2f} s: {len(rows)} stages{reused}, {changed} changed the program"
        )
        if assignments:
            in_eager_text = f"{fallbacks} fall back to eager" if fallbacks else "no fallback"
            self._printer.say(f"{len(assignments) - fallbacks}/{len(assignments)} nodes compiled, {in_eager_text}")

    def _print_run(self, state: State) -> None:
        """Prints the report of a new run."""
        if state.report is self._report:
            return
        self._report = state.report
        if state.report is None or state.info is None:
            return
        if state.graph_state.restored_run is not None:
            self._printer.say("the results of the last session are in Outputs")
            return
        self._printer.say(run_report_text(state.info, state.report, tuple(state.assignments.values())))


# ---- panes and screens ---------------------------------------------------------------------------------------------


def row_line(view: CursorView, row: int) -> str:
    """Returns a row of a view as one line, without the padding of its columns."""
    if isinstance(view, IrPane | CodeView):
        return _GUTTER.sub("", view.row_strip(row, SEARCHED_WIDTH).text.rstrip())
    if isinstance(view, ChoiceList):
        choice = view.matches[row]
        return f"{'* ' if choice.marked else ''}{choice.title}  {choice.summary}".rstrip()
    text = _PADDING.sub("  ", view.row_text(row)).strip()
    return _MARK.sub(lambda mark: _MARKS[mark[0]], text, count=1)


def view_lines(view: CursorView, first: int = 0, count: int = MAX_ROWS) -> Iterator[str]:
    """Yields the head of a view, and `count` rows from row `first` (from 0) on, each with its number (from 1).

    The last line says how many rows follow, and how to print them.
    """
    for cells in view.head(SEARCHED_WIDTH):
        text = _PADDING.sub("  ", "".join(text for text, _ in cells)).strip()
        if text:
            yield text
    if not view.row_count:
        for cells in view.empty(SEARCHED_WIDTH):
            yield "".join(text for text, _ in cells).strip()
    has_own_numbers = isinstance(view, IrPane | CodeView)
    for row in range(first, min(first + count, view.row_count)):
        yield row_line(view, row) if has_own_numbers else f"{row + 1} {row_line(view, row)}"
    remaining = view.row_count - first - count
    if remaining > 0:
        yield f"{formatting.count(remaining)} more: show {first + count + 1}-{min(first + 2 * count, view.row_count)}"


def screen_lines(screen: Screen[object]) -> Iterator[str]:
    """Yields the texts of a screen over the panes, in order: title, texts, fields and rows."""
    for box in screen.query("#box"):
        yield str(box.border_title or "")
    for widget in screen.query("CursorView, Static, Input, TextArea").results():
        if not widget.display or any(isinstance(parent, Prompt) for parent in widget.ancestors):
            continue
        if isinstance(widget, CursorView):
            yield from view_lines(widget)
        elif isinstance(widget, TextArea):
            yield from widget.text.splitlines()
        elif isinstance(widget, Input):
            if widget.value:
                yield f"  {widget.value}"
        elif isinstance(widget, Static) and str(widget.content).strip():
            yield str(widget.content).strip()


def prompt_hint(prompt: Prompt) -> str:
    """Returns how the question of a prompt can be answered."""
    value = prompt.query_one(Input).value
    empty = f"an empty line accepts {value!r}" if value else "an empty line leaves it empty"
    return f"{empty}, cancel leaves"


def answer_hint(screen: Screen[Any]) -> str:
    """Returns how an open screen can be answered, or why it cannot; empty for a screen that only shows a text."""
    if isinstance(screen, ConfirmScreen):
        return "answer y or n"
    if isinstance(screen, PickerScreen | ProgramScreen):
        return "answer with a number, a name or words to search for; cancel leaves"
    if isinstance(screen, OptionScreen):
        return "answer name=value; an empty line accepts, cancel leaves"
    if isinstance(screen, EditorScreen):
        return "a text of several lines cannot be edited here: nothing was changed"
    if isinstance(screen, PlotScreen):
        return "a plot cannot be printed as lines"
    if isinstance(screen, DetailScreen):
        return ""
    return "a number chooses the row, show FROM-TO prints others, any other command closes the list"


def ambiguity_text(noun: str, words: Sequence[str], candidates: Candidates) -> str:
    """Returns why `words` do not name exactly one object, whose kind is `noun`, such as "node".

    `candidates` are the names of the objects that match.
    """
    if not words:
        return f"give the name of a {noun}"
    if not candidates.names:
        return f"unknown {noun} {' '.join(words)!r}"
    remaining = len(candidates.names) - MAX_ROWS
    more = f" and {remaining} more" if remaining > 0 else ""
    return f"{' '.join(words)!r} matches several: {', '.join(candidates.names[:MAX_ROWS])}{more}"


def cells_line(cells: list[tuple[str, str]]) -> str:
    """Returns the text of cells as one line, without padding."""
    return _PADDING.sub("  ", "".join(text for text, _ in cells)).strip()
