"""Views of code: Python, fetched page by page, and the IR lines that come from one node."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.session.stages import AnnotatedLine, LineCache
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cut_cells
from buddy.app.workspace.inputs import relative_to_current

# Seconds until a missing line is requested again.
REDRAW_SECONDS = 0.05
# The prefix of FX before the source path of a node.
_FILE = "# File: "


class CodeView(CursorView):
    """The lines of one text. Fetches those on the screen."""

    def __init__(self, cache: LineCache, text: str = "", lines: int = 0, line: int = 0) -> None:
        super().__init__()
        self._cache, self._text, self._lines = cache, text, lines
        self.cursor = line
        self.left = 0
        self._waiting = False
        # For each line of `_quoted_text`, as far as they are cached, the quotes of the string that the line starts in.
        self._quotes: list[str] = []
        self._quoted_text = ""

    @property
    def row_count(self) -> int:
        return self._lines

    @property
    def line(self) -> AnnotatedLine | None:
        """The line under the cursor, or `None` if it is not cached."""
        return self._cache.get(self._text, self.cursor) if self._text else None

    def on_mount(self) -> None:
        self.call_after_refresh(self.center, self.cursor)

    def row_cells(self, row: int, width: int) -> Cells:
        from buddy.themes.lexers import python_spans

        line = self._cache.get(self._text, row)
        if line is None:
            self._schedule_redraw()
            return []
        gutter = (f"{'>' if row == self.cursor else ' '}{row + 1:>5} ", "key" if row == self.cursor else "number")
        before, mark, place = line.text.partition(_FILE)
        text = (before + mark + relative_to_current(place)).expandtabs()
        cells: Cells = [(part, f"syntax:{name}") for name, part in python_spans(text, self._quotes_before(row))]
        return cut_cells([gutter, *cut_cells(cells, width, self.left)], width)

    def _quotes_before(self, row: int) -> str:
        """The quotes of the string that is open before a line; "" while the lines above are not cached."""
        from buddy.themes.lexers import open_string

        if self._quoted_text != self._text:
            self._quoted_text, self._quotes = self._text, [""]
        while len(self._quotes) <= row:
            line = self._cache.get(self._text, len(self._quotes) - 1)
            if line is None:
                self._schedule_redraw()
                return ""
            self._quotes.append(open_string(line.text, self._quotes[-1]))
        return self._quotes[row]

    def _schedule_redraw(self) -> None:
        """Schedule one redraw for all missing lines."""
        if not self._waiting:
            self._waiting = True
            self.set_timer(REDRAW_SECONDS, self._redraw)

    def _redraw(self) -> None:
        self._waiting = False
        self.refresh()

    def sideways(self, by: int) -> None:
        self.left = max(0, self.left + by)
        self.refresh()


IR_LANGUAGE = "mlir"
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
        cells: Cells = [(line.text, "dim")]
        if not line.derived:
            cells = [(part, f"syntax:{name}") for name, part in spans(IR_LANGUAGE, line.text)]
        return cut_cells([gutter, *cut_cells(cells, width, self.left)], width)

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
