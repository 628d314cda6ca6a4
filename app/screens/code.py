"""The captured graph as Python code, fetched page by page from the engine. A line links to its nodes."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType

from buddy.app.screens.list_screen import ListScreen
from buddy.app.session.lines import LineCache
from buddy.app.widgets.code_view import CodeView


class CodeScreen(ListScreen[tuple[str, ...] | None]):
    """Returns the stable names of the nodes of the chosen line, or `None`."""

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
