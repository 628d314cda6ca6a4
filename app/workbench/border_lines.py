"""Draws the lines above and below the panes (header, graph tabs, status and keys), and handles clicks on them."""

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
    """The lines above and below the panes, and the prompt of the main screen, which is above the lower lines."""

    def __init__(self, workbench: Workbench) -> None:
        self._workbench = workbench
        self.prompt = Prompt()
        # The lines above the panes and those below. Empty until the screen is composed.
        self.above: tuple[CellLine, ...] = ()
        self.below: tuple[CellLine, ...] = ()

    def make(self) -> None:
        """Create the lines, which the main screen mounts."""
        header = CellLine(self.header_cells, id="header", background="panel")
        self.above = (header, CellLine(self._graph_cells, "graphs", "panel", self._show_clicked_graph))
        keys = CellLine(self._key_cells, "keys", on_column_clicked=self._press_clicked_key)
        self.below = (CellLine(self.status_cells, "status"), keys)

    def update(self) -> None:
        """Draw the lines whose content has changed."""
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
        # The pane that has focus, if the layout shows one pane at a time.
        only_pane = layout.pane_id if layout.shows_one_pane else None
        return status_lines.status_cells(
            app.state, message, app.key_sequences.hint, app.busy, layout.visible_order, only_pane, width, app.glyphs
        )

    def _graph_cells(self, width: int) -> Cells:
        app = self._workbench
        return graph_cells(app.state, app.workspace, width, app.glyphs)

    def _show_clicked_graph(self, column: int, width: int) -> None:
        app = self._workbench
        number = graph_of_tab_at(app.state, app.workspace, width, app.glyphs, column)
        if number is not None:
            app.graph_commands.show(number)

    def _key_cells(self, width: int) -> Cells:
        if self.prompt.display:
            return status_lines.prompt_cells(PROMPT_KEYS, width)
        app = self._workbench
        return status_lines.key_cells(app.context.layout.pane_id, app.situation(), width)

    async def _press_clicked_key(self, column: int, width: int) -> None:
        """Handle a click on the key line like the key: perform its action, or list the second keys of a sequence."""
        if self.prompt.display:
            if key := status_lines.prompt_key_at(PROMPT_KEYS, column):
                await self.prompt.press(key)
            return
        app = self._workbench
        action_or_key = status_lines.key_at(app.context.layout.pane_id, app.situation(), width, column)
        if isinstance(action_or_key, str):
            app.key_sequences.begin(action_or_key)
        elif action_or_key is not None:
            await app.perform(action_or_key)
