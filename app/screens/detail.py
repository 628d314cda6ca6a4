"""Screens of read-only text: code, lines of details, a diagnostic, the details of a pass, the help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ScreenResultType

from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Pane, Situation, actions_of_pane
from buddy.app.reports import formatting
from buddy.app.screens.modal import ListScreen
from buddy.app.session.line_cache import LineCache
from buddy.app.widgets.code_view import CodeView
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, wrap_line, wrap_text
from buddy.app.workspace.pipeline_text import spell_step
from buddy.compiler.protocol import Diagnostic

if TYPE_CHECKING:
    from buddy.app.session.stages import PassRow


class CodeScreen(ListScreen[tuple[str, ...] | None]):
    """Shows code with a cursor. Returns the stable names of the nodes that the chosen line comes from, or `None`.

    `text` is the hash of the code in `cache`, `line_count` the number of its lines. The cursor starts at `line`.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "choose", show=False),
        Binding("space", "move('move_page_down')", show=False),
        Binding("greater_than_sign,right", "sideways(16)", show=False),
        Binding("less_than_sign,left", "sideways(-16)", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, title: str, cache: LineCache, text: str, line_count: int, line: int) -> None:
        self._code = CodeView(cache, text, line_count, line)
        super().__init__(title, "enter goes to the node, / searches, < > sideways, y copies, q closes", self._code)

    def action_choose(self) -> None:
        line = self._code.line
        self.dismiss(line.nodes if line is not None and line.nodes else None)

    def action_copy(self) -> None:
        line = self._code.line
        self.app.copy_to_clipboard(line.text.strip() if line is not None else "")

    def action_sideways(self, by: int) -> None:
        self._code.scroll_sideways(by)


class TextLines(CursorView):
    """Lines of text without a visible cursor. Each row is a line, or a piece of a long line, which is wrapped.

    The row with the current match of a search is highlighted.
    """

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
        """Scrolls `row` to the top of the screen. The invisible cursor is always there."""
        self.cursor = max(0, min(row, self.row_count - self.page))
        self.scroll_to(y=self.cursor, animate=False, force=True)


# The maximum width of `#box` in cells, as in `workbench.tcss`.
MAX_BOX_WIDTH = 118
# The maximum width of the lines of a diagnostic in the box, in cells.
DIAGNOSTIC_WIDTH = 110


class TextScreen(ListScreen[ScreenResultType]):
    """Shows `lines`; the key `y` copies all of them. `keys` is the summary of the keys at the bottom.

    A subclass adds keys that return a result.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("space", "move('move_page_down')", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, title: str, lines: Sequence[Cells], keys: str = "/ searches, y copies, q closes") -> None:
        self._lines = list(lines)
        super().__init__(title, keys, TextLines(self._lines))

    def full_height(self) -> int:
        # About the width of the box, without its border and its padding.
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
    lines = diagnostic_lines(problem, DIAGNOSTIC_WIDTH)
    if problem.detail:
        lines += [[], *([(line.expandtabs(), "text")] for line in problem.detail.splitlines())]
    return DetailScreen({"error": "Error", "warning": "Warning", "note": "Note"}[problem.severity], lines)


def diagnostic_lines(problem: Diagnostic, width: int) -> list[Cells]:
    """Returns the lines of a diagnostic, of at most `width` cells: what happened, where, and what to do."""
    marks = {"error": ("[!] ", "bad"), "warning": ("[?] ", "warn"), "note": ("[i] ", "accent")}
    lines = [[(text, "text")] for text in wrap_text(problem.what, width - 4)]
    lines += [[(text, "dim")] for part in (problem.where, problem.todo) for text in wrap_text(part, width - 4)]
    return [[marks[problem.severity] if number == 0 else ("    ", "text"), *line] for number, line in enumerate(lines)]


# The width of the bar of an op count, in cells.
BAR_WIDTH = 14


def pass_screen(
    row: PassRow, summary: str, remarks: Sequence[tuple[str, str, str]], glyphs: formatting.Glyphs
) -> DetailScreen:
    """Returns a screen with the details of a pass: options, time, changed op counts, and remarks.

    `summary` describes the pass. `remarks` are the remarks of the pass as (pass, node, text).
    """
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
    """Returns a title, and a line with a bar for each of `deltas`: pairs of an op and the change of its count.

    `changed` is whether the pass changed the IR, which is possible without a change of op counts.
    """
    lines: list[Cells] = [[], [("Ops added and removed", "title")]]
    if not deltas:
        return [*lines, [("  the same ops as before" if changed else "  nothing changed", "dim")]]
    greatest = max(abs(delta) for _, delta in deltas)
    for name, delta in deltas:
        sign, role = ("+", "ok") if delta > 0 else (glyphs.minus, "bad")
        bar = formatting.progress_bar(abs(delta) / greatest, BAR_WIDTH, glyphs)
        lines.append([(f"  {sign}{abs(delta):<7}", role), (f"{name:<32} ", "text"), (bar, "bar")])
    return lines


# ---- help ------------------------------------------------------------------------------------------------------------


# The key that is shown for an action without a key: it opens the command palette, which lists all actions.
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
    """Returns a screen with the keys that work in `pane`. For a key that is disabled now, it shows the reason."""
    lines = _section(f"In {PANE_TITLES[pane]}", actions_of_pane(pane), situation)
    lines += _section("Moving", actions_of_pane("any"), situation)
    actions_of_other_panes = [action for action in ACTIONS if action.anywhere and action.pane != pane]
    lines += _section("From other panes", actions_of_other_panes, situation) if actions_of_other_panes else []
    lines += _section("Everywhere", actions_of_pane("app"), situation)
    lines += [[("Marks", "title")], *([(f"  {mark:<18}", "key"), (text, "text")] for mark, text in MARKS)]
    return DetailScreen(f"Help: {PANE_TITLES[pane]}", lines)


def _section(title: str, actions: list[Action], situation: Situation) -> list[Cells]:
    """Returns a title, a line for each action, and an empty line."""
    rows = [_action_line(action, situation) for action in actions]
    return [[(title, "title")], *rows, []]


def _action_line(action: Action, situation: Situation) -> Cells:
    """Returns the keys of an action and what it does; if it is disabled, also the reason."""
    reason = action.blocked(situation)
    if len(action.keys) > 3:
        # Of many keys, such as 1 to 9 and 0, show only the first and the last.
        keys = f"{action.keys[0]}{action.keys[-1].rjust(2)}"
    else:
        keys = ", ".join(action.keys or PALETTE_KEYS)
    line: Cells = [(f"  {keys:<18}", "faint" if reason else "key"), (action.tooltip, "dim" if reason else "text")]
    return [*line, (f"  (disabled: {reason})", "faint")] if reason else line
