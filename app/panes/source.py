"""The source pane: the Python file of the selected node, synchronised with the other panes."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.binding import BindingType

from buddy.app.actions import Pane as PaneId
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.pane import Pane
from buddy.app.screens.detail import wrap_text
from buddy.app.session.requests import Requester
from buddy.app.session.state import Topic
from buddy.app.widgets.background import pane_bindings
from buddy.app.widgets.code_view import CodeView
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import GraphInfo

SIDEWAYS = 16


class SourcePane(Pane, CodeView):
    """Shows one file at a time. Follows the selection; while it has focus, the other panes follow its cursor."""

    pane_id: ClassVar[PaneId] = "source"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("source")
    BORDER_TITLE = "Source"

    def __init__(self, context: WorkbenchContext) -> None:
        CodeView.__init__(self, context.session.cache)
        self.context, self.id = context, self.pane_id
        # The file that is shown or requested, and the graph that it belongs to.
        self._path = ""
        self._info: GraphInfo | None = None
        self._problem = ""

    def update_from(self, topics: frozenset[Topic]) -> None:
        if "graph" in topics and self.state.info is not self._info:
            self.follow()
        if "lines" in topics:
            self.refresh()
            self._select_line_node()

    def head(self, width: int) -> list[Cells]:
        path = self.context.session.display_path(self._path)
        return [[(f" {path[-(width - 1) :]}", "dim")]]

    def empty(self, width: int) -> list[Cells]:
        message = self._problem or "the Python line of the selected node is unknown"
        return [[(f" {piece}", "dim")] for piece in wrap_text(message, max(width - 2, 10))]

    # ---- synchronisation ---------------------------------------------------------------------------------------------

    def mark_node(self, before: str) -> None:
        self.follow()

    def follow(self) -> None:
        """Go to the line of the selected node, unless this pane has focus."""
        if not self.context.layout.with_source:
            return
        path, line = self.context.selection.python_line
        if self.state.info is not self._info:
            self._follow_new_graph(path)
        elif not path or (self.has_focus and self._path):
            return
        elif path != self._path:
            self._path = path
            self._load_file(path)
        elif self._lines:
            self.center(min(line, self._lines - 1), notify=False)

    def _follow_new_graph(self, path: str) -> None:
        """Show the file of another graph or of a reloaded program; the file may have changed or may not exist."""
        self._info = self.state.info
        stays = self.cursor if self.has_focus and path == self._path else -1
        self._path = path
        if path:
            self._load_file(path, stays)
        else:
            self._set_text("", 0)

    @work(exclusive=True, group="source")
    async def _load_file(self, path: str, line: int = -1) -> None:
        """Load a file and show it at `line`, or, with -1, at the line of the node that is then selected."""
        problems: list[str] = []
        found = await Requester(self.context.session, problems.append).answered(self.context.session.open_python(path))
        text, lines = (found.text, found.lines) if found is not None else ("", 0)
        self._set_text(text, lines, "".join(problems))
        wanted, newer = self.context.selection.python_line
        line = newer if line < 0 and wanted == path else line
        if lines and line >= 0:
            self.center(min(line, lines - 1), notify=False)

    def _set_text(self, text: str, lines: int, problem: str = "") -> None:
        self._text, self._lines, self._problem = text, lines, problem
        self.cursor = self.left = 0
        self.rows_changed()

    def after_move(self) -> None:
        super().after_move()
        self._select_line_node()

    def _select_line_node(self) -> None:
        """Select a node of the line under the cursor, if this pane has focus."""
        line = self.line if self.has_focus else None
        if line is not None and line.nodes:
            self.context.selection.lead(line.nodes)

    # ---- actions -----------------------------------------------------------------------------------------------------

    def go_line_node(self) -> None:
        """Go to a node of the line in the graph pane."""
        if self.line is not None and self.line.nodes:
            self.context.selection.go_node(self.line.nodes)
        else:
            self.say("this line comes from no node of the graph")

    def source_left(self) -> None:
        self.sideways(-SIDEWAYS)

    def source_right(self) -> None:
        self.sideways(SIDEWAYS)

    def text_to_copy(self) -> str:
        return self.line.text if self.line is not None else ""
