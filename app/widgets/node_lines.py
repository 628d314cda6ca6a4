"""A view of the IR lines that come from one node, with a title and syntax colours."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cut_cells

LANGUAGE = "mlir"
# Maximum number of lines of a problem.
FOOT = 6


class NodeLine(NamedTuple):
    """A line (starting at 0), and whether it is derived from the node."""

    number: int
    text: str
    derived: bool


class NodeLines(CursorView):
    """IR lines under `title`. `note` is shown if there are no lines; `problem` is the error, if any."""

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title, self.note, self.problem = title, "", ""
        self.left = 0
        self.lines: list[NodeLine] = []
        self._subtitle = ""

    @property
    def row_count(self) -> int:
        return len(self.lines)

    @property
    def current(self) -> NodeLine | None:
        return self.lines[self.cursor] if self.cursor < len(self.lines) else None

    def head(self, width: int) -> list[Cells]:
        focused = "accent" if self.has_focus else "dim"
        return [
            cut_cells(
                [
                    (f" {self.title}", focused),
                    (f" {self.glyphs.dot} {self._subtitle}" if self._subtitle else "", "dim"),
                ],
                width,
            )
        ]

    def row_cells(self, row: int, width: int) -> Cells:
        from buddy.themes.lexers import spans

        line = self.lines[row]
        here = row == self.cursor and self.has_focus
        gutter = (f"{'>' if here else ' '}{line.number + 1:>5} ", "key" if here else "number")
        text = line.text[self.left :]
        if line.derived:
            return cut_cells([gutter, (text, "dim")], width)
        return cut_cells([gutter, *((part, f"syntax:{name}") for name, part in spans(LANGUAGE, text))], width)

    def empty(self, width: int) -> list[Cells]:
        return [] if self.problem else [[(f" {self.note}", "dim")]]

    def foot(self, width: int) -> list[Cells]:
        pieces = [piece for text in self.problem.splitlines() for piece in textwrap.wrap(text, max(width - 2, 10))]
        return [[(f" {piece}", "bad")] for piece in pieces[:FOOT]]

    def show(self, subtitle: str, lines: Sequence[NodeLine], note: str = "", problem: str = "", line: int = -1) -> None:
        """Show these lines without their common indentation, or the note. The cursor starts at line `line`."""
        whole = textwrap.dedent("\n".join(line.text.expandtabs() for line in lines)).split("\n") if lines else []
        self.lines = [line._replace(text=text) for line, text in zip(lines, whole, strict=True)]
        self._subtitle, self.note, self.problem = subtitle, note, problem
        self.left = 0
        self.cursor = next((row for row, found in enumerate(self.lines) if found.number == line), 0)
        self.rows_changed()

    def sideways(self, by: int) -> None:
        self.left = max(0, self.left + by)
        self.refresh()
