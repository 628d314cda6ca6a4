"""Screens of read-only text: code, details of a node or a pass, a diagnostic, the log, help."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ScreenResultType

from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Pane, Situation, actions_of_pane
from buddy.app.reports import formatting
from buddy.app.screens.modal import ListScreen
from buddy.app.session.line_cache import LineCache
from buddy.app.session.state import State
from buddy.app.widgets.code_view import CodeView
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells
from buddy.app.workspace.pipeline_text import spell_step
from buddy.compiler.protocol import Diagnostic

if TYPE_CHECKING:
    from buddy.app.session.stages import PassRow


class CodeScreen(ListScreen[tuple[str, ...] | None]):
    """Code with a cursor. Returns the stable names of the nodes that the chosen line comes from, or `None`."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False),
        Binding("space", "move('move_page_down')", show=False),
        Binding("greater_than_sign,right", "sideways(16)", show=False),
        Binding("less_than_sign,left", "sideways(-16)", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, title: str, cache: LineCache, text: str, lines: int, line: int) -> None:
        self._code = CodeView(cache, text, lines, line)
        super().__init__(title, "enter goes to the node, / searches, < > sideways, y copies, q closes", self._code)

    def action_choose(self) -> None:
        line = self._code.line
        self.dismiss(line.nodes if line is not None and line.nodes else None)

    def action_copy(self) -> None:
        line = self._code.line
        self.app.copy_to_clipboard(line.text.strip() if line is not None else "")

    def action_sideways(self, by: int) -> None:
        self._code.sideways(by)


class TextLines(CursorView):
    """Lines of text without a visible cursor. Long lines are wrapped. The line of the shown match is highlighted."""

    has_broken_lines = True

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

    def row_text(self, row: int) -> str:
        return "".join(text for text, _ in self._lines[row])

    def background(self, row: int) -> str:
        return "cursor" if row == self.search.shown_line else ""

    def preview_match(self, line: int) -> None:
        self.move_to(line - self.page // 2)

    def go_to_match(self, line: int) -> None:
        self.preview_match(line)

    def move_to(self, row: int, *, notify: bool = True) -> None:
        """Scroll to `row`. The cursor is invisible, so it stays on the first row of the screen."""
        self.cursor = max(0, min(row, self.row_count - self.page))
        self.scroll_to(y=self.cursor, animate=False, force=True)


# The maximum width of `#box` in `workbench.tcss`, and of the lines of diagnostics in it, in cells.
MAX_BOX_WIDTH, DIAGNOSTIC_WIDTH = 118, 110


class TextScreen(ListScreen[ScreenResultType]):
    """Shows lines, all of which `y` copies. A subclass adds keys that return a result."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "move('move_page_down')", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Cells], keys: str = "/ searches, y copies, q closes") -> None:
        self._lines = list(lines)
        super().__init__(title, keys, TextLines(self._lines))

    def full_height(self) -> int:
        # Without the border and the padding of the box.
        width = max(20, min(self.app.size.width - 4, MAX_BOX_WIDTH) - 4)
        return sum(len(wrap_line(line, width)) for line in self._lines) + 2

    def action_copy(self) -> None:
        self.app.copy_to_clipboard("\n".join("".join(text for text, _ in line) for line in self._lines))


class DetailScreen(TextScreen[None]):
    """Shows lines. Returns nothing."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "close", "Close", show=False),
    ]


def problem_screen(problem: Diagnostic) -> DetailScreen:
    """A screen with the full diagnostic."""
    lines = diagnostic_lines(problem, DIAGNOSTIC_WIDTH)
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
    columns = max(width, 10)
    wrapped_lines = (textwrap.wrap(line, columns, break_on_hyphens=False) or [""] for line in text.splitlines())
    return [piece for pieces in wrapped_lines for piece in pieces]


def wrap_line(line: Cells, width: int) -> list[Cells]:
    """Splits `line` into pieces of at most `width` characters, between words if possible.

    All pieces after the first are indented to the second cell, unless the first cell is wider than a third of `width`.
    """
    indent = len(line[0][0]) if len(line) > 1 and len(line[0][0]) <= width // 3 else 0
    ranges = _split_ranges("".join(text for text, _ in line), width, indent)
    pieces = [_cell_range(line, start, end) for start, end in ranges]
    return [pieces[0], *([(" " * indent, "text"), *piece] for piece in pieces[1:])]


def _split_ranges(text: str, width: int, indent: int) -> list[tuple[int, int]]:
    """The start and end of each piece of `text`. The first `indent` characters stay together; spaces at breaks drop."""
    ranges: list[tuple[int, int]] = []
    start, columns, unbroken = 0, width, indent
    while len(text) - start > columns:
        space = text.rfind(" ", start + unbroken + 1, start + columns + 1)
        end = space if space > 0 else start + columns
        ranges.append((start, end))
        # The next pieces are indented, so they have fewer columns.
        start, columns, unbroken = end + (space > 0), width - indent, 0
    return [*ranges, (start, len(text))]


def _cell_range(line: Cells, start: int, end: int) -> Cells:
    """The cells of the characters `start` to `end` (exclusive) of `line`."""
    cells: Cells = []
    offset = 0
    for text, role in line:
        piece = text[max(start - offset, 0) : max(end - offset, 0)]
        cells += [(piece, role)] if piece else []
        offset += len(text)
    return cells


# The key of the command palette, which has the actions without a key.
PALETTE_KEYS = ("ctrl+p",)
# The marks of nodes and passes, each with its meaning.
MARKS = (
    ("[x]", "on"),
    ("[ ]", "disabled, or in eager"),
    ("[!]", "failed"),
    ("[=]", "changed nothing"),
    ("[~]", "out of date: not compiled again yet"),
)


def help_screen(pane: Pane, situation: Situation) -> DetailScreen:
    """Help about the keys that work in `pane`; for keys that are disabled now, with the reason."""
    lines = _section(f"In {PANE_TITLES[pane]}", actions_of_pane(pane), situation)
    lines += _section("Moving", actions_of_pane("any"), situation)
    of_other_panes = [action for action in ACTIONS if action.anywhere and action.pane != pane]
    lines += _section("From other panes", of_other_panes, situation) if of_other_panes else []
    lines += _section("Everywhere", actions_of_pane("app"), situation)
    lines += [[("Marks", "title")], *([(f"  {mark:<18}", "key"), (text, "text")] for mark, text in MARKS)]
    return DetailScreen(f"Help: {PANE_TITLES[pane]}", lines)


def _section(title: str, actions: list[Action], situation: Situation) -> list[Cells]:
    rows = [_action_line(action, situation) for action in actions]
    return [[(title, "title")], *rows, []]


def _action_line(action: Action, situation: Situation) -> Cells:
    reason = action.blocked(situation)
    # Of many keys, such as 1 to 9 and 0, name the first and the last.
    many = len(action.keys) > 3
    keys = f"{action.keys[0]}{action.keys[-1].rjust(2)}" if many else ", ".join(action.keys or PALETTE_KEYS)
    line: Cells = [(f"  {keys:<18}", "faint" if reason else "key"), (action.tooltip, "dim" if reason else "text")]
    return [*line, (f"  (disabled: {reason})", "faint")] if reason else line


def engine_lines(state: State) -> list[Cells]:
    """The state of the engine and of its workers."""
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


# The width of the bar of an op count, in cells.
BAR_WIDTH = 14


def pass_screen(
    row: PassRow, summary: str, remarks: Sequence[tuple[str, str, str]], glyphs: formatting.Glyphs
) -> DetailScreen:
    """The details of a pass: options, time, changed op counts. `remarks` are its remarks as (pass, node, text)."""
    lines: list[Cells] = [[(summary or "this pass is not in the catalogue", "text")], []]
    if row.step is not None:
        anchor = row.step.anchor or "the graph"
        lines += [[("pass      ", "dim"), (spell_step(row.step), "accent")], [("runs on   ", "dim"), (anchor, "text")]]
    stage = row.stage.stage if row.stage else None
    if stage is not None:
        lines.append([("time      ", "dim"), (formatting.milliseconds(stage.milliseconds) or "no time", "text")])
        lines.append([("result    ", "dim"), (f"{formatting.count(stage.ops)} ops", "text")])
        lines += _delta_lines(stage.deltas, stage.changed, glyphs)
    if remarks:
        lines += [[], [("Remarks about nodes", "title")]]
        lines += [[(f"  {node:<24} ", "dim"), (text, "text")] for _, node, text in remarks]
    return DetailScreen(row.name, lines)


def _delta_lines(deltas: Sequence[tuple[str, int]], changed: bool, glyphs: formatting.Glyphs) -> list[Cells]:
    """A line with a bar for each op whose count has changed."""
    lines: list[Cells] = [[], [("Ops added and removed", "title")]]
    if not deltas:
        return [*lines, [("  the same ops as before" if changed else "  nothing changed", "dim")]]
    greatest = max(abs(delta) for _, delta in deltas)
    for name, delta in deltas:
        sign, role = ("+", "ok") if delta > 0 else (glyphs.minus, "bad")
        bar = formatting.progress_bar(abs(delta) / greatest, BAR_WIDTH, glyphs)
        lines.append([(f"  {sign}{abs(delta):<7}", role), (f"{name:<32} ", "text"), (bar, "bar")])
    return lines
