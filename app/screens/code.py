"""The captured graph as Python text, page by page from the engine; a line leads to its node."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from buddy.app.lines import Line, LineCache
from buddy.app.screens.list_screen import ListScreen
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.look import Cells, cut

LANGUAGE = "fx"
# How soon a line that is not here yet is asked for again.
AGAIN_SECONDS = 0.05


class CodeView(CursorView):
    """Lines of one text; those on the screen are fetched."""

    def __init__(self, cache: LineCache, text: str, lines: int, line: int) -> None:
        super().__init__()
        self._cache, self._text, self._lines = cache, text, lines
        self.cursor = line
        self.left = 0

    @property
    def row_count(self) -> int:
        return self._lines

    @property
    def line(self) -> Line | None:
        """The line under the cursor."""
        return self._cache.get(self._text, self.cursor)

    def on_mount(self) -> None:
        super().on_mount()
        self.call_after_refresh(self.center, self.cursor)

    def row_cells(self, row: int, width: int) -> Cells:
        from buddy.themes.lexers import spans

        line = self._cache.get(self._text, row)
        if line is None:
            self.set_timer(AGAIN_SECONDS, self.refresh)
            return []
        gutter = (f"{'>' if row == self.cursor else ' '}{row + 1:>5} ", "key" if row == self.cursor else "number")
        text = line.text.expandtabs()[self.left :]
        return cut([gutter, *((part, f"syntax:{name}") for name, part in spans(LANGUAGE, text))], width)

    def sideways(self, by: int) -> None:
        self.left = max(0, self.left + by)
        self.refresh()


class CodeScreen(ListScreen[tuple[str, ...] | None]):
    """Returns the stable names of the nodes of the line to go to, or `None`."""

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
