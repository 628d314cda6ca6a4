"""The lines above and below the panes: header, graphs, status and keys, and what a click on them does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app.commands.graphs import graph_cells, graph_of_tab_at
from buddy.app.widgets.look import CellLine, Cells
from buddy.app.widgets.prompt import KEYS as PROMPT_KEYS
from buddy.app.widgets.prompt import Prompt
from buddy.app.workbench import status_lines

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench


class BorderLines:
    """Draws the lines of one program around the panes, with the prompt of the main screen between them."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self.prompt = Prompt()
        # Those above the panes and those below. Empty until the screen is composed.
        self.above: tuple[CellLine, ...] = ()
        self.below: tuple[CellLine, ...] = ()

    def make(self) -> None:
        """Create the lines, which the main screen mounts."""
        header = CellLine(self.header_cells, id="header", background="panel")
        self.above = (header, CellLine(self._graph_cells, "graphs", "panel", self._show_clicked_graph))
        keys = CellLine(self._key_cells, "keys", on_column_clicked=self._press_clicked_key)
        self.below = (CellLine(self.status_cells, "status"), keys)

    def update(self) -> None:
        """Draw the lines again that have changed."""
        for line in (*self.above, *self.below):
            line.update()

    def update_keys(self) -> None:
        """Draw the key line again, which has the keys of the prompt while that is open."""
        self.below[-1].update()

    def header_cells(self, width: int) -> Cells:
        app = self._workbench
        return status_lines.header_cells(app.state, app.workspace, app.busy, width, app.glyphs)

    def status_cells(self, width: int) -> Cells:
        app, layout = self._workbench, self._workbench.context.layout
        message = app.context.status.message
        only_pane = layout.pane_id if layout.shows_one_pane else None
        return status_lines.status_cells(
            app.state, message, app.key_sequences.hint, app.busy, layout.visible_order, only_pane, width, app.glyphs
        )

    def _graph_cells(self, width: int) -> Cells:
        app = self._workbench
        return graph_cells(app.state, app.workspace, width, app.glyphs)

    def _show_clicked_graph(self, x: int, width: int) -> None:
        app = self._workbench
        number = graph_of_tab_at(app.state, app.workspace, width, app.glyphs, x)
        if number is not None:
            app.graph_commands.show(number)

    def _key_cells(self, width: int) -> Cells:
        if self.prompt.display:
            return status_lines.prompt_cells(PROMPT_KEYS, width)
        app = self._workbench
        return status_lines.key_cells(app.context.layout.pane_id, app.situation(), width)

    async def _press_clicked_key(self, x: int, width: int) -> None:
        """Do what a key of the key line does: perform its action, or list the second keys of a sequence."""
        if self.prompt.display:
            if key := status_lines.prompt_key_at(PROMPT_KEYS, x):
                await self.prompt.press(key)
            return
        app = self._workbench
        found = status_lines.key_at(app.context.layout.pane_id, app.situation(), width, x)
        if isinstance(found, str):
            app.key_sequences.begin(found)
        elif found is not None:
            await app.perform(found)
