"""Screens of read-only text: details of a node or pass, code, a diagnostic, the log, help."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ScreenResultType

from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Pane, Situation, actions_of_pane
from buddy.app.reports import formatting
from buddy.app.screens.modal import ListScreen
from buddy.app.session.stages import LineCache
from buddy.app.session.state import State
from buddy.app.widgets.code_view import CodeView
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells
from buddy.app.workspace.pipeline_text import spell_step
from buddy.compiler.protocol import Diagnostic

if TYPE_CHECKING:
    from buddy.app.session.stages import PassRow


class CodeScreen(ListScreen[tuple[str, ...] | None]):
    """Returns the stable names of the nodes of the chosen line, or `None`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False, priority=True),
        Binding("space", "move('move_page_down')", show=False),
        Binding("greater_than_sign,right", "sideways(16)", show=False),
        Binding("less_than_sign,left", "sideways(-16)", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, title: str, cache: LineCache, text: str, lines: int, line: int) -> None:
        self._code = CodeView(cache, text, lines, line)
        super().__init__(title, "enter goes to the node, < > sideways, y copies, q closes", self._code)

    def action_choose(self) -> None:
        line = self._code.line
        self.dismiss(line.nodes if line is not None and line.nodes else None)

    def action_copy(self) -> None:
        line = self._code.line
        self.app.copy_to_clipboard(line.text.strip() if line is not None else "")

    def action_sideways(self, by: int) -> None:
        self._code.sideways(by)


class TextLines(CursorView):
    """Lines of cells. Long lines are wrapped."""

    def __init__(self, lines: Sequence[Cells]) -> None:
        super().__init__()
        self._unwrapped = list(lines)
        self._lines: list[Cells] = []

    def on_resize(self) -> None:
        self._lines = [piece for line in self._unwrapped for piece in wrap_line(line, max(self.width - 1, 10))]

    @property
    def row_count(self) -> int:
        return len(self._lines)

    def row_cells(self, row: int, width: int) -> Cells:
        return [(" ", "text"), *self._lines[row]]

    def background(self, row: int) -> str:
        return ""

    def move_to(self, row: int, *, tell: bool = True) -> None:
        """Scroll to `row`. The cursor is invisible, so it stays on the first row of the screen."""
        self.cursor = max(0, min(row, self.row_count - self.page))
        self.scroll_to(y=self.cursor, animate=False, force=True)


class TextScreen(ListScreen[ScreenResultType]):
    """Lines to read and to copy. A subclass adds other keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "move('move_page_down')", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Cells], keys: str = "q closes, y copies") -> None:
        self._lines = list(lines)
        super().__init__(title, keys, TextLines(self._lines))

    def wanted_height(self) -> int:
        width = max(20, min(self.app.size.width - 4, 118) - 4)
        return sum(len(wrap_line(line, width)) for line in self._lines) + 2

    def action_copy(self) -> None:
        self.app.copy_to_clipboard("\n".join("".join(text for text, _ in line) for line in self._lines))


class DetailScreen(TextScreen[None]):
    """Shows lines; returns nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter,question_mark,f1", "dismiss(None)", "Close", show=False, priority=True),
    ]


def problem_screen(problem: Diagnostic) -> DetailScreen:
    """A screen with the full diagnostic."""
    lines = diagnostic_lines(problem, 110)
    if problem.detail:
        lines += [[], *([(line.expandtabs(), "text")] for line in problem.detail.splitlines())]
    return DetailScreen({"error": "Error", "warning": "Warning", "note": "Note"}[problem.severity], lines)


def diagnostic_lines(problem: Diagnostic, width: int) -> list[Cells]:
    """The lines of a diagnostic: what happened, where, and what to do."""
    marks = {"error": ("[!] ", "bad"), "warning": ("[?] ", "warn"), "note": ("[i] ", "accent")}
    lines = [[(text, "text")] for text in wrap_text(problem.what, width - 4)]
    lines += [[(text, "dim")] for part in (problem.where, problem.todo) for text in wrap_text(part, width - 4)]
    return [[marks[problem.severity] if k == 0 else ("    ", "text"), *line] for k, line in enumerate(lines)]


def wrap_text(text: str, width: int) -> list[str]:
    """`text` wrapped to `width`, with its line breaks preserved."""
    room = max(width, 10)
    pieces = (textwrap.wrap(line, room, break_on_hyphens=False) or [""] for line in text.splitlines())
    return [piece for found in pieces for piece in found]


def wrap_line(line: Cells, width: int) -> list[Cells]:
    """`line` in pieces of at most `width` characters, broken between words if possible.

    Continuation pieces are indented to the second cell of the line.
    """
    indent = len(line[0][0]) if len(line) > 1 and len(line[0][0]) <= width // 3 else 0
    ranges = _ranges("".join(text for text, _ in line), width, indent)
    pieces = [_cell_range(line, first, last) for first, last in ranges]
    return [pieces[0], *([(" " * indent, "text"), *piece] for piece in pieces[1:])]


def _ranges(text: str, width: int, indent: int) -> list[tuple[int, int]]:
    """The start and end of each piece of `text`. The space at a break belongs to no piece."""
    ranges: list[tuple[int, int]] = []
    start, room, least = 0, width, indent
    while len(text) - start > room:
        space = text.rfind(" ", start + least + 1, start + room + 1)
        end = space if space > 0 else start + room
        ranges.append((start, end))
        start, room, least = end + (space > 0), width - indent, 0
    return [*ranges, (start, len(text))]


def _cell_range(line: Cells, first: int, last: int) -> Cells:
    """The cells of the characters `first` to `last` of `line`."""
    kept: Cells = []
    place = 0
    for text, role in line:
        piece = text[max(first - place, 0) : max(last - place, 0)]
        kept += [(piece, role)] if piece else []
        place += len(text)
    return kept


# Actions without a key are in the command palette.
PALETTE = ("ctrl+p",)
MARKS = (
    ("[x]", "on"),
    ("[ ]", "disabled, or in eager"),
    ("[!]", "failed"),
    ("[=]", "changed nothing"),
    ("[~]", "out of date: not compiled again yet"),
)


def help_screen(pane: Pane, situation: Situation) -> DetailScreen:
    """The keys that work in `pane`, with the reason for those that are disabled now."""
    lines = _section(f"In {PANE_TITLES[pane]}", actions_of_pane(pane), situation)
    lines += _section("Moving", actions_of_pane("any"), situation)
    beyond = [action for action in ACTIONS if action.anywhere and action.pane != pane]
    lines += _section("From other panes", beyond, situation) if beyond else []
    lines += _section("Everywhere", actions_of_pane("app"), situation)
    lines += [[("Marks", "title")], *([(f"  {mark:<18}", "key"), (text, "text")] for mark, text in MARKS)]
    return DetailScreen(f"Help: {PANE_TITLES[pane]}", lines)


def _section(title: str, actions: list[Action], situation: Situation) -> list[Cells]:
    rows = [_row(action, situation) for action in actions]
    return [[(title, "title")], *rows, []]


def _row(action: Action, situation: Situation) -> Cells:
    reason = action.blocked(situation)
    keys = f"{action.keys[0]}{action.keys[-1].rjust(2)}" if len(action.keys) > 3 else ", ".join(action.keys or PALETTE)
    row: Cells = [(f"  {keys:<18}", "faint" if reason else "key"), (action.tooltip, "dim" if reason else "text")]
    return [*row, (f"  (disabled: {reason})", "faint")] if reason else row


def log_screen(state: State, path: Path | None) -> DetailScreen:
    """The messages of the engine, oldest first."""
    lines: list[Cells] = [[("Engine", "title")], *_engine(state), []]
    lines += [[("Reported", "title")]]
    for entry in state.log:
        lines += diagnostic_lines(entry, 110)
    if not state.log:
        lines.append([("    nothing", "dim")])
    lines += [[], [("Log file   ", "dim"), (str(path) if path else "none: use --log FILE to write one", "text")]]
    return DetailScreen("Log", lines)


def _engine(state: State) -> list[Cells]:
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
    rows += [(name, f"{worker.state}  {worker.what}") for name, worker in state.workers.items()]
    return [[(f"    {title:<10} ", "dim"), (text, "text")] for title, text in rows if text]


BAR = 14


def pass_screen(
    row: PassRow, summary: str, remarks: Sequence[tuple[str, str, str]], glyphs: formatting.Glyphs
) -> DetailScreen:
    """`remarks` are the pass's, `(pass, node, text)`."""
    lines: list[Cells] = [[(summary or "this pass is not in the catalogue", "text")], []]
    if row.step is not None:
        anchor = row.step.anchor or "the graph"
        lines += [[("pass      ", "dim"), (spell_step(row.step), "accent")], [("runs on   ", "dim"), (anchor, "text")]]
    stage = row.stage.stage if row.stage else None
    if stage is not None:
        lines.append([("time      ", "dim"), (formatting.milliseconds(stage.milliseconds) or "no time", "text")])
        lines.append([("result    ", "dim"), (f"{formatting.count(stage.ops)} ops", "text")])
        lines += _deltas(stage.deltas, stage.changed, glyphs)
    if remarks:
        lines += [[], [("Remarks about nodes", "title")]]
        lines += [[(f"  {node:<24} ", "dim"), (text, "text")] for _, node, text in remarks]
    return DetailScreen(row.name, lines)


def _deltas(deltas: Sequence[tuple[str, int]], changed: bool, glyphs: formatting.Glyphs) -> list[Cells]:
    """A line with a bar for each op whose count changed."""
    lines: list[Cells] = [[], [("Ops added and removed", "title")]]
    if not deltas:
        return [*lines, [("  the same ops as before" if changed else "  nothing changed", "dim")]]
    most = max(abs(delta) for _, delta in deltas)
    for name, delta in deltas:
        sign, role = ("+", "ok") if delta > 0 else (glyphs.minus, "bad")
        bar = formatting.progress_bar(abs(delta) / most, BAR, glyphs)
        lines.append([(f"  {sign}{abs(delta):<7}", role), (f"{name:<32} ", "text"), (bar, "bar")])
    return lines
