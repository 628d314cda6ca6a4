"""Screens of read-only text: the details of a node, a diagnostic, the log, the keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.screen import ScreenResultType

from buddy.app.panes.report import diagnostic_lines
from buddy.app.screens.list_screen import ListScreen
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import Diagnostic


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
        """Scroll by steps, because the cursor is invisible."""
        first = self.first_row + (row - self.cursor if abs(row - self.cursor) == 1 else 0)
        if abs(row - self.cursor) > 1:
            first = row
        self.scroll_to(y=first, animate=False, force=True)
        self.cursor = max(0, min(first, self.row_count - 1))


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
