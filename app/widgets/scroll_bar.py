"""A scrollbar that needs no glyphs for parts of a cell."""

from __future__ import annotations

from typing import ClassVar

from textual.scrollbar import ScrollBar, ScrollBarRender


class WholeCellScrollBar(ScrollBarRender):
    """A scrollbar of whole cells: the glyphs for parts of a cell are missing in some terminals."""

    VERTICAL_BARS: ClassVar[list[str]] = [" "]

    @staticmethod
    def first_cell(bar: ScrollBar, position: float) -> int:
        """Returns the first cell of the thumb of `bar` if the view is scrolled to `position`."""
        hidden_lines, bar_height = bar.window_virtual_size - bar.window_size, bar.size.height
        thumb_height = max(1, bar.window_size * bar_height / max(bar.window_virtual_size, 1))
        return int((bar_height - thumb_height) * position / hidden_lines) if hidden_lines > 0 else 0
