"""The results of long jobs: the page with one result, and the log, which lists results, diagnostics and messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from textual import events
from textual.app import App
from textual.binding import Binding, BindingType

from buddy.app.actions import key_of
from buddy.app.reports import formatting
from buddy.app.reports.results import Entry, GoToNode, PerformAction, Result, ResultAnswer
from buddy.app.screens.detail import DIAGNOSTIC_WIDTH, MAX_BOX_WIDTH, DetailScreen, diagnostic_lines, problem_screen
from buddy.app.screens.modal import ListScreen
from buddy.app.session.state import State, keep_newest
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cells_length, wrap_line, wrap_text
from buddy.compiler.protocol import Diagnostic

# The widths of the columns of an entry, in cells. The name and the bar share the other cells of the line.
_VALUE_WIDTH, _SHARE_WIDTH, _CHANGE_WIDTH = 12, 7, 10
# The minimum width of the name and of the bar.
_MIN_NAME_WIDTH = 8
# The number of lines under the list, which show the entry under the cursor in full.
_FOOT_LINES = 2
# The number of results that the log keeps.
MAX_RESULTS = 50


class _Row(NamedTuple):
    """A line of the page. `entry` is the entry that enter chooses on it, if any."""

    cells: Cells
    entry: Entry | None = None


class ResultRows(CursorView):
    """The conclusions of a result, its next steps, its sections with bars, and its texts. Long lines are wrapped."""

    def __init__(self, result: Result) -> None:
        super().__init__()
        self.result = result
        # The rows, and the width for which they were made.
        self._rows: list[_Row] = []
        self._width = 0

    def on_resize(self) -> None:
        """Makes the rows again. The cursor stays on its entry, or else goes to the first entry that can be chosen."""
        if self.width != self._width:
            current, self._width = self.entry, self.width
            self._rows = self.rows_at(self.width)
            entries = [row.entry for row in self._rows]
            if current is not None and current in entries:
                self.cursor = entries.index(current)
            else:
                choosable = (index for index, entry in enumerate(entries) if entry is not None and entry.answer)
                self.cursor = next(choosable, 0)
        self.rows_changed()

    def rows_at(self, width: int) -> list[_Row]:
        """Returns all rows for a view of `width` cells."""
        result, columns = self.result, max(width - 1, 20)
        rows = [
            _Row([(piece, "title" if number == 0 else "text")])
            for number, line in enumerate(result.conclusions)
            for piece in wrap_text(line, columns)
        ]
        if result.next_steps:
            rows += [_Row([]), *(_Row(self._next_step_cells(entry, columns), entry) for entry in result.next_steps)]
        for section in result.sections:
            rows += [_Row([]), _Row([(section.title, "title")])]
            rows += [_Row(self._entry_cells(entry, columns), entry) for entry in section.entries]
            rows += [] if section.entries else [_Row([("  none", "dim")])]
        for title, text in result.texts:
            rows += [_Row([]), _Row([(title, "title")])]
            for line in text.splitlines():
                rows += [_Row(piece) for piece in wrap_line([(line.expandtabs(), "text")], columns)]
        return rows

    def _next_step_cells(self, entry: Entry, width: int) -> Cells:
        """The key of a next step, its name, and its description."""
        cells: Cells = [(f"{entry.key:>2}  ", "key"), (entry.name, "text")]
        return [*cells, (f"  {formatting.clip(entry.value, width - cells_length(cells) - 2, self.glyphs)}", "dim")]

    def _entry_cells(self, entry: Entry, width: int) -> Cells:
        """The name of an entry, its value, its share as a number and as a bar, and its change."""
        if not entry.value:
            return [(f"  {formatting.clip(entry.name, width - 2, self.glyphs)}", entry.role)]
        has_bar = entry.share >= 0
        free_columns = width - 2 - _VALUE_WIDTH - _SHARE_WIDTH - _CHANGE_WIDTH
        bar_width = max(free_columns // 3, _MIN_NAME_WIDTH) if has_bar else 0
        name_width = max(free_columns - bar_width - 1, _MIN_NAME_WIDTH)
        bar = formatting.progress_bar(entry.share, bar_width, self.glyphs) if has_bar and entry.share > 0 else ""
        return [
            (f"  {formatting.clip(entry.name, name_width, self.glyphs):<{name_width}}", entry.role),
            (f"{entry.value:>{_VALUE_WIDTH}}", "number"),
            (f"{entry.share:>{_SHARE_WIDTH}.1%}" if has_bar else " " * _SHARE_WIDTH, "dim"),
            (f" {bar:<{bar_width}}", "bar"),
            (f"{entry.change:>{_CHANGE_WIDTH}}", _change_role(entry.change)),
        ]

    @property
    def row_count(self) -> int:
        return len(self._rows)

    @property
    def entry(self) -> Entry | None:
        return self._rows[self.cursor].entry if self._rows else None

    def row_cells(self, row: int, width: int) -> Cells:
        return [(">" if row == self.cursor else " ", "key"), *self._rows[row].cells]

    def foot(self, width: int) -> list[Cells]:
        """The full name, value and change of the entry under the cursor, which its line may truncate."""
        entry = self.entry
        text = f"{entry.name}  {entry.value}  {entry.change}".rstrip() if entry is not None else ""
        lines = wrap_text(text, width - 2)[:_FOOT_LINES]
        blank_lines = [""] * (_FOOT_LINES - len(lines))
        return [[], *([(f" {line}", "dim")] for line in (*lines, *blank_lines))]


def _change_role(change: str) -> str:
    """Returns the role of a change: `ok` for less time, `warn` for more, `dim` for other changes."""
    return {"-": "ok", "+": "warn"}.get(change[:1], "dim")


class ResultScreen(ListScreen[ResultAnswer | None]):
    """The result of a job. Returns what the user has chosen, or `None`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False),
        Binding("space", "move('move_page_down')", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, result: Result) -> None:
        self._list = ResultRows(result)
        super().__init__(result.title, "enter chooses, / searches, y copies, q closes; L lists results", self._list)

    def full_height(self) -> int:
        # The box takes 96 % of the screen (`workbench.tcss`); 5 cells of it are border, padding and scrollbar.
        width = min(self.app.size.width * 96 // 100, MAX_BOX_WIDTH) - 5
        # Two lines of the border, an empty line, and the foot.
        return len(self._list.rows_at(width)) + 3 + _FOOT_LINES

    def on_key(self, event: events.Key) -> None:
        """Chooses the next step with the pressed key."""
        entry = next((entry for entry in self._list.result.next_steps if entry.key == event.character), None)
        if entry is not None:
            event.stop()
            self.dismiss(entry.answer)

    def action_choose(self) -> None:
        entry = self._list.entry
        if entry is not None and entry.answer is not None:
            self.dismiss(entry.answer)

    def on_cursor_view_double_clicked(self) -> None:
        self.action_choose()

    def action_copy(self) -> None:
        lines = ("".join(text for text, _ in row.cells).rstrip() for row in self._list.rows_at(DIAGNOSTIC_WIDTH))
        self.app.copy_to_clipboard("\n".join(lines))


# Called with a user's answer that only the job of the result understands: neither `GoToNode` nor `PerformAction`.
UseAnswer = Callable[[str], object]


@dataclass(frozen=True)
class LoggedResult:
    """A result, the time at which it arrived, as `HH:MM:SS`, and its callback for answers."""

    clock: str
    result: Result
    use_answer: UseAnswer | None = None


class Results:
    """Shows the results of jobs, and keeps the latest `MAX_RESULTS` in `logged`.

    `say` shows a message, and `go_to` a node by its stable name. While `is_typing` returns true, the user's keys go to
    the prompt or to a screen.
    """

    def __init__(
        self,
        app: App[Any],
        say: Callable[[str], object],
        go_to: Callable[[str], object],
        is_typing: Callable[[], bool],
    ) -> None:
        self._app, self._say, self._go_to, self._is_typing = app, say, go_to, is_typing
        self.logged: list[LoggedResult] = []

    def add(self, result: Result, use_answer: UseAnswer | None = None) -> LoggedResult:
        logged = LoggedResult(time.strftime("%H:%M:%S"), result, use_answer)
        self.logged.append(logged)
        keep_newest(self.logged, MAX_RESULTS)
        return logged

    def show(self, result: Result, use_answer: UseAnswer | None = None) -> None:
        """Adds a result to the log and shows it.

        While the user is typing, shows only a message with the key of the log: a page would receive the typed keys.
        """
        logged = self.add(result, use_answer)
        if self._is_typing():
            self._say(f"{result.title}: finished. Press {key_of('log')} to see the result")
        else:
            self.open(logged)

    def open(self, logged: LoggedResult) -> None:
        """Shows a result, and performs what the user chooses on its page."""
        self._app.push_screen(ResultScreen(logged.result), lambda answer: self._use_answer(answer, logged))

    def _use_answer(self, answer: ResultAnswer | None, logged: LoggedResult) -> None:
        """Goes to the chosen node, performs the chosen action, or passes the answer to the job; `None` does nothing."""
        if isinstance(answer, GoToNode):
            self._go_to(answer.name)
        elif isinstance(answer, PerformAction):
            self._app.call_later(self._app.run_action, f"app.act('{answer.action}')")
        elif answer is not None and logged.use_answer is not None:
            logged.use_answer(answer)


# ---- the log ---------------------------------------------------------------------------------------------------------


class LogEntry(NamedTuple):
    """A line of the log, and what enter opens on it: a result, a diagnostic or a message; `None` for titles."""

    cells: Cells
    content: LoggedResult | Diagnostic | str | None = None


class LogRows(CursorView):
    """The lines of the log. Long lines are truncated; enter shows them in full."""

    def __init__(self, entries: Sequence[LogEntry]) -> None:
        super().__init__()
        self._entries = entries
        self.cursor = next((index for index, entry in enumerate(entries) if entry.content is not None), 0)

    @property
    def row_count(self) -> int:
        return len(self._entries)

    @property
    def content(self) -> LoggedResult | Diagnostic | str | None:
        return self._entries[self.cursor].content

    def row_cells(self, row: int, width: int) -> Cells:
        marker = (">" if row == self.cursor else " ", "key")
        *first_cells, (text, role) = self._entries[row].cells
        clipped = formatting.clip(text, width - cells_length([marker, *first_cells]), self.glyphs)
        return [marker, *first_cells, (clipped, role)]


class LogScreen(ListScreen[LoggedResult | None]):
    """Results, diagnostics and messages, the newest first, and the engine. Returns the chosen result, or `None`.

    The parameters are those of `log_entries`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False),
        Binding("space", "move('move_page_down')", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(
        self, state: State, results: Sequence[LoggedResult], messages: Sequence[tuple[str, str]], path: Path | None
    ) -> None:
        self._entries = log_entries(state, results, messages, path)
        self._rows = LogRows(self._entries)
        super().__init__("Log", "enter opens in full, / searches, y copies, q closes", self._rows)

    def full_height(self) -> int:
        return len(self._entries) + 2

    def action_choose(self) -> None:
        content = self._rows.content
        if isinstance(content, LoggedResult):
            self.dismiss(content)
        elif isinstance(content, Diagnostic):
            self.app.push_screen(problem_screen(content))
        elif content is not None:
            self.app.push_screen(DetailScreen("Message", [[(content, "text")]]))

    def on_cursor_view_double_clicked(self) -> None:
        self.action_choose()

    def action_copy(self) -> None:
        self.app.copy_to_clipboard("\n".join("".join(text for text, _ in entry.cells) for entry in self._entries))


def log_entries(
    state: State, results: Sequence[LoggedResult], messages: Sequence[tuple[str, str]], path: Path | None
) -> list[LogEntry]:
    """Returns the lines of the log. `messages` are pairs (time, text), the oldest first; `path` is the log file."""
    result_entries = [
        LogEntry([(f"    {logged.clock} ", "dim"), (_first_line(logged.result), "text")], logged)
        for logged in reversed(results)
    ]
    diagnostics = [
        LogEntry([("    ", "dim"), *diagnostic_lines(diagnostic, DIAGNOSTIC_WIDTH)[0]], diagnostic)
        for diagnostic in reversed(state.log)
    ]
    message_entries = [LogEntry([(f"    {clock} ", "dim"), (text, "text")], text) for clock, text in reversed(messages)]
    engine_entries = [LogEntry(line, _plain_text(line)) for line in engine_lines(state)]
    sections = [
        ("Results", result_entries),
        ("Diagnostics", diagnostics),
        ("Messages", message_entries),
        ("Engine", engine_entries),
    ]
    entries: list[LogEntry] = []
    for title, section in sections:
        entries += [
            LogEntry([(title, "title")]),
            *(section or [LogEntry([("    none", "dim")])]),
            LogEntry([("", "dim")]),
        ]
    path_text = str(path) if path else "none: use --log FILE to write one"
    return [*entries, LogEntry([("Log file   ", "dim"), (path_text, "text")], path_text)]


def _plain_text(cells: Cells) -> str:
    return "".join(text for text, _ in cells).strip()


def _first_line(result: Result) -> str:
    """Returns the title of a result and its first conclusion, in one line."""
    return f"{result.title}: {result.conclusions[0]}" if result.conclusions else result.title


def engine_lines(state: State) -> list[Cells]:
    welcome = state.welcome
    rows: list[tuple[str, str]] = [("state", state.engine)]
    if welcome is not None:
        packages = ", ".join(f"{name} {version}" for name, version in welcome.packages.items())
        rows += [
            ("version", welcome.engine),
            ("process", str(welcome.pid)),
            ("machine", welcome.target),
            ("with", packages),
        ]
    rows += [(name, f"{worker.state}  {worker.reason}") for name, worker in state.workers.items()]
    return [[(f"    {title:<10} ", "dim"), (text, "text")] for title, text in rows if text]
