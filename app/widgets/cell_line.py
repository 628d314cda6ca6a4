"""A widget of one line of cells: the header, the status line, the line of keys."""

from __future__ import annotations

from collections.abc import Callable

from textual import events
from textual.strip import Strip
from textual.widget import Widget

from buddy.app.widgets.look import Cells, look_of


class CellLine(Widget):
    """A line that shows `cells(width)`; `refresh` draws it again.

    `clicked(x, width)` is called for a click in column `x`.
    """

    def __init__(
        self,
        cells: Callable[[int], Cells],
        id: str,
        background: str = "",
        clicked: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(id=id)
        self._background = background
        self._clicked = clicked
        self._cells = cells
        self._last: Cells = []

    def render_line(self, y: int) -> Strip:
        self._last = self._cells(self.size.width) if y == 0 else []
        return look_of(self.app.theme).strip(self._last, self.size.width, self._background)

    def on_click(self, event: events.Click) -> None:
        if self._clicked is not None:
            self._clicked(event.x, self.size.width)

    def update(self) -> None:
        """Draw again if the line has changed."""
        if self._cells(self.size.width) != self._last:
            self.refresh()
