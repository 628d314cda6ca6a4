"""The log: results, diagnostics and messages, which can be opened again, and the state of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from buddy.app.reports import formatting
from buddy.app.reports.results import Result
from buddy.app.screens.detail import DIAGNOSTIC_WIDTH, DetailScreen, diagnostic_lines, problem_screen
from buddy.app.screens.modal import ListScreen
from buddy.app.screens.results import LoggedResult
from buddy.app.session.state import State
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cells_length
from buddy.compiler.protocol import Diagnostic


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
        *cells, (text, role) = [(">" if row == self.cursor else " ", "key"), *self._entries[row].cells]
        return [*cells, (formatting.clip(text, width - cells_length(cells), self.glyphs), role)]


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
    """Returns the lines of the log. `messages` are times and texts, the oldest first; `path` is the log file."""
    result_entries = [
        LogEntry([(f"    {logged.clock} ", "dim"), (_first_line(logged.result), "text")], logged)
        for logged in reversed(results)
    ]
    diagnostics = [
        LogEntry([("    ", "dim"), *diagnostic_lines(diagnostic, DIAGNOSTIC_WIDTH)[0]], diagnostic)
        for diagnostic in reversed(state.log)
    ]
    message_entries = [LogEntry([(f"    {clock} ", "dim"), (text, "text")], text) for clock, text in reversed(messages)]
    sections = [("Results", result_entries), ("Diagnostics", diagnostics), ("Messages", message_entries)]
    sections.append(("Engine", [LogEntry(line, _plain_text(line)) for line in engine_lines(state)]))
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
    """Returns the state of the engine and of its workers."""
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
