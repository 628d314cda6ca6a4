"""Views of code: a text of the engine, whose lines are fetched when they are drawn, and the IR lines of one node."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.reports.text.search_hits import Pattern
from buddy.app.session.line_cache import AnnotatedLine, LineCache
from buddy.app.session.requests import UnavailableError
from buddy.app.session.state import keep_newest
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cells_length, cut_cells
from buddy.app.widgets.search import FoundLines
from buddy.app.workspace.inputs import relative_to_working_directory

# Seconds after which the view is drawn again if a line on the screen was not cached.
REDRAW_SECONDS = 0.05
# The number of drawn lines that are cached.
MAX_CACHED_LINES = 600
# The number of characters that are lexed beyond the edge of the screen, so that a token at the edge keeps its colour.
LEXED_BEYOND_EDGE = 64
# The number of lines above the screen that one drawing scans for open strings.
MAX_SCANNED_LINES = 2000
# FX writes this prefix before the source path of a node.
_FILE_PREFIX = "# File: "


class CodeView(CursorView):
    """Shows a text of the engine, which has `line_count` lines. The cursor starts at `line`.

    `text` is the name of the text in `cache` (the hash of its content), not the text itself; "" shows nothing. A line
    that is not cached is fetched, and drawn when it has arrived. `left` is the first column of code on the screen.
    """

    def __init__(self, cache: LineCache, text: str = "", line_count: int = 0, line: int = 0) -> None:
        super().__init__()
        self._cache, self._text, self._line_count = cache, text, line_count
        self.cursor = line
        self.left = 0
        self._redraw_scheduled = False
        # The drawn code of lines, by everything that it depends on: text, row, first column, width, open quotes.
        self._drawn_cells: dict[tuple[str, int, int, int, str], Cells] = {}
        # For each scanned line of the text `_scanned_text`, the quotes of the string in which the line starts: `"""` in
        # a docstring, "" outside of strings.
        self._quotes: list[str] = []
        self._scanned_text = ""

    @property
    def row_count(self) -> int:
        return self._line_count

    @property
    def line(self) -> AnnotatedLine | None:
        """The line under the cursor, or `None` if it is not cached."""
        return self._cache.get(self._text, self.cursor) if self._text else None

    def on_mount(self) -> None:
        self.call_after_refresh(self.center, self.cursor)

    def row_cells(self, row: int, width: int) -> Cells:
        line = self._cache.get(self._text, row)
        if line is None:
            self._schedule_redraw()
            return []
        gutter = self.gutter_cells(row)
        return [*gutter, *self._code_cells(row, line.text, max(width - cells_length(gutter), 0))]

    def gutter_cells(self, row: int) -> Cells:
        """The cells before the code of a line: the mark of the cursor, and the line's number from 1."""
        at_cursor = row == self.cursor
        return [(f"{'>' if at_cursor else ' '}{row + 1:>5} ", "key" if at_cursor else "number")]

    def _code_cells(self, row: int, line: str, columns: int) -> Cells:
        """The `columns` columns of a line's code from `left` on, cached because lexing takes most of the time."""
        from buddy.themes.lexers import python_spans

        quotes = self._quotes_before(row)
        key = (self._text, row, self.left, columns, quotes)
        if key not in self._drawn_cells:
            code, prefix, path = line.partition(_FILE_PREFIX)
            text = (code + prefix + relative_to_working_directory(path)).expandtabs()
            lexed = text[: self.left + columns + LEXED_BEYOND_EDGE]
            cells: Cells = [(part, f"syntax:{kind}") for kind, part in python_spans(lexed, quotes)]
            self._drawn_cells[key] = cut_cells(cells, columns, self.left)
            keep_newest(self._drawn_cells, MAX_CACHED_LINES)
        return self._drawn_cells[key]

    def _quotes_before(self, row: int) -> str:
        """The quotes of the string that is open before a line; "" without one, or if lines above are not cached yet."""
        from buddy.themes.lexers import open_string

        if self._scanned_text != self._text:
            self._scanned_text, self._quotes = self._text, [""]
        last_to_scan = min(row, len(self._quotes) - 1 + MAX_SCANNED_LINES)
        while len(self._quotes) <= last_to_scan:
            line = self._cache.get(self._text, len(self._quotes) - 1)
            if line is None:
                break
            self._quotes.append(open_string(line.text, self._quotes[-1]))
        if row < len(self._quotes):
            return self._quotes[row]
        self._schedule_redraw()
        return ""

    def _schedule_redraw(self) -> None:
        """Schedules one redraw, for all lines on the screen that are not cached."""
        if not self._redraw_scheduled:
            self._redraw_scheduled = True
            self.set_timer(REDRAW_SECONDS, self._redraw)

    def _redraw(self) -> None:
        self._redraw_scheduled = False
        self.refresh()

    # The engine has the whole text, the cache only parts of it: `request_lines` searches.
    def find_lines(self, pattern: Pattern) -> FoundLines | None:
        return None if self._text else FoundLines(())

    async def request_lines(self, pattern: Pattern) -> FoundLines | None:
        try:
            result = await self._cache.find(self._text, pattern.source, pattern.regex, pattern.ignore_case)
        except UnavailableError as error:
            self.report_search(str(error))
            return None
        return FoundLines(result.lines, result.more)

    def scroll_sideways(self, columns: int) -> None:
        """Scrolls by `columns` to the right; negative numbers scroll to the left."""
        self.left = max(0, self.left + columns)
        self.refresh()


# The language of the lines of `NodeLines`.
IR_LANGUAGE = "mlir"
# The maximum number of lines for an error below the IR.
MAX_PROBLEM_LINES = 6


class NodeLine(NamedTuple):
    """A line of IR: its number in the stage (from 0), and its text.

    `derived` is true if the line does not name the node itself, but belongs to code that was derived from the node's.
    """

    number: int
    text: str
    derived: bool


class NodeLines(CursorView):
    """Shows the IR lines of one node under `title`. Without lines, shows `note`.

    `problem` is the text of an error, which is shown below the lines. `left` is their first column on the screen.
    """

    def __init__(self, title: str) -> None:
        super().__init__()
        self.title, self.note, self.problem = title, "", ""
        self.left = 0
        self.lines: list[NodeLine] = []
        self._subtitle = ""

    @property
    def row_count(self) -> int:
        return len(self.lines)

    def row_text(self, row: int) -> str:
        return self.lines[row].text

    @property
    def current(self) -> NodeLine | None:
        """The line under the cursor, `None` without lines."""
        return self.lines[self.cursor] if self.cursor < len(self.lines) else None

    def head(self, width: int) -> list[Cells]:
        role = "accent" if self.has_focus else "dim"
        subtitle = f" {self.glyphs.dot} {self._subtitle}" if self._subtitle else ""
        return [cut_cells([(f" {self.title}", role), (subtitle, "dim")], width)]

    def row_cells(self, row: int, width: int) -> Cells:
        from buddy.themes.lexers import spans

        line = self.lines[row]
        at_cursor = row == self.cursor and self.has_focus
        gutter = (f"{'>' if at_cursor else ' '}{line.number + 1:>5} ", "key" if at_cursor else "number")
        cells: Cells = [(line.text, "dim")]
        if not line.derived:
            cells = [(part, f"syntax:{kind}") for kind, part in spans(IR_LANGUAGE, line.text)]
        return cut_cells([gutter, *cut_cells(cells, width, self.left)], width)

    def empty(self, width: int) -> list[Cells]:
        return [] if self.problem else [[(f" {self.note}", "dim")]]

    def foot(self, width: int) -> list[Cells]:
        wrapped = [textwrap.wrap(line, max(width - 2, 10)) for line in self.problem.splitlines()]
        return [[(f" {line}", "bad")] for lines in wrapped for line in lines][:MAX_PROBLEM_LINES]

    def show(self, subtitle: str, lines: Sequence[NodeLine], note: str = "", problem: str = "", line: int = -1) -> None:
        """Shows `lines` without their common indentation, with the cursor on number `line`, or else on the first."""
        dedented = textwrap.dedent("\n".join(line.text.expandtabs() for line in lines)).split("\n") if lines else []
        self.lines = [line._replace(text=text) for line, text in zip(lines, dedented, strict=True)]
        self._subtitle, self.note, self.problem = subtitle, note, problem
        self.left = 0
        self.cursor = next((row for row, node_line in enumerate(self.lines) if node_line.number == line), 0)
        self.rows_changed()

    def scroll_sideways(self, columns: int) -> None:
        """Scrolls by `columns` to the right; negative numbers scroll to the left."""
        self.left = max(0, self.left + columns)
        self.refresh()
