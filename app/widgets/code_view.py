"""A view of Python code, fetched page by page from the engine."""

from __future__ import annotations

from buddy.app.session.lines import AnnotatedLine, LineCache
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cut_cells
from buddy.app.workspace.input_parsing import relative_to_current

LANGUAGE = "fx"
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
        from buddy.themes.lexers import spans

        line = self._cache.get(self._text, row)
        if line is None:
            self._schedule_redraw()
            return []
        gutter = (f"{'>' if row == self.cursor else ' '}{row + 1:>5} ", "key" if row == self.cursor else "number")
        before, mark, place = line.text.partition(_FILE)
        text = (before + mark + relative_to_current(place)).expandtabs()[self.left :]
        return cut_cells([gutter, *((part, f"syntax:{name}") for name, part in spans(LANGUAGE, text))], width)

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
