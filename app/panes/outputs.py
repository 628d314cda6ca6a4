"""The outputs pane: the current problem, the comparison with eager, timings, and the output of the script."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from buddy.app.actions import Pane as PaneId
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.pane import Pane
from buddy.app.panes.report import outputs_lines
from buddy.app.session.state import Topic
from buddy.app.widgets.bindings import pane_bindings
from buddy.app.widgets.look import Cells, cut_cells


class OutputsPane(Pane):
    """Lines of text. The cursor only scrolls."""

    pane_id: ClassVar[PaneId] = "outputs"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("outputs")
    BORDER_TITLE = "Outputs"

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self._lines: list[Cells] = []

    @property
    def row_count(self) -> int:
        return len(self._lines)

    def row_cells(self, row: int, width: int) -> Cells:
        marker = ">" if row == self.cursor and self.has_focus else " "
        return [(marker, "key"), *cut_cells(self._lines[row], width - 1)]

    def on_resize(self) -> None:
        self._update_lines()

    def update_from(self, topics: frozenset[Topic]) -> None:
        if topics & {"outputs", "stages", "status"}:
            self._update_lines()
            self.rows_changed()

    def _update_lines(self) -> None:
        width, changed = max(self.width - 1, 20), self.context.session.disk.changed()
        self._lines = outputs_lines(self.state, self.workspace.recipe, width, self.glyphs, changed)

    def open_detail(self) -> None:
        self.context.dialogs.open_problem(self.state.problem)

    def copied(self) -> str:
        return "\n".join("".join(text for text, _ in line).rstrip() for line in self._lines)
