"""What screens with one list in a box share: the keys that move in it, the box as high as the list, the way out."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.screen import ScreenResultType

from buddy.app.screens.modal import AnsweringScreen
from buddy.app.widgets.cursor_view import CursorView

# Lines of a box on a screen too small for any.
LEAST = 6


class ListScreen(AnsweringScreen[ScreenResultType]):
    """Shows `view` until it is closed, under `title` and over the keys that `keys` tells."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q,ctrl+c", "dismiss(None)", "Close", show=False, priority=True),
        Binding("j,down", "move('move_down')", show=False),
        Binding("k,up", "move('move_up')", show=False),
        Binding("ctrl+d,pagedown", "move('move_page_down')", show=False),
        Binding("ctrl+u,pageup", "move('move_page_up')", show=False),
        Binding("home", "move('move_top')", show=False),
        Binding("G,end", "move('move_bottom')", show=False),
    ]

    def __init__(self, title: str, keys: str, view: CursorView) -> None:
        super().__init__()
        self._title, self._keys, self._view = title, keys, view

    def compose(self) -> ComposeResult:
        with Vertical(id="box") as box:
            box.border_title, box.border_subtitle = self._title, self._keys
            yield self._view

    def on_mount(self) -> None:
        self._view.focus()
        self.fit()

    def wanted_height(self) -> int:
        """The lines of the box that shows everything."""
        return self._view.row_count + 2

    def fit(self) -> None:
        """Have the box as high as it wants to be, or as the screen allows."""
        for box in self.query("#box"):  # none in a screen that was closed while its rows were still coming
            box.styles.height = min(self.wanted_height(), max(self.app.size.height - 4, LEAST))

    def action_move(self, method: str) -> None:
        getattr(self._view, method)()
