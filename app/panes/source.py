"""The source pane: the Python file of the selected node."""

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

# Columns per step to the left or to the right.
SCROLL_COLUMNS = 16


class SourcePane(Pane, CodeView):
    """Shows one file at a time. It follows the selection; while it has focus, its cursor moves the selection."""

    pane_id: ClassVar[PaneId] = "source"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("source")
    BORDER_TITLE = "Source"
    selects_rows = True

    def __init__(self, context: WorkbenchContext) -> None:
        CodeView.__init__(self, context.session.cache)
        self.context, self.id = context, self.pane_id
        # The path of the file that is shown or requested, and the graph whose node comes from it.
        self._path = ""
        self._info: GraphInfo | None = None
        self._problem = ""

    def update_from(self, topics: frozenset[Topic]) -> None:
        if "graph" in topics and self.state.info is not self._info:
            self.go_to_selected_node()
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
        self.go_to_selected_node()

    def go_to_selected_node(self) -> None:
        """Go to the line of the selected node, unless this pane has focus or is hidden."""
        if not self.context.layout.with_source:
            return
        path, line = self.context.selection.python_line
        if self.state.info is not self._info:
            self._show_new_graph(path)
        elif not path or (self.has_focus and self._path):
            return
        elif path != self._path:
            self._path = path
            self._load_file(path)
        elif self._lines:
            self.center(min(line, self._lines - 1), notify=False)

    def _show_new_graph(self, path: str) -> None:
        """Load the file of another graph or of a graph that was captured again; the file may have changed."""
        self._info = self.state.info
        # If the user reads this file, keep the cursor on its line.
        line = self.cursor if self.has_focus and path == self._path else -1
        self._path = path
        if path:
            self._load_file(path, line)
        else:
            self._set_text("", 0)

    @work(exclusive=True, group="source")
    async def _load_file(self, path: str, line: int = -1) -> None:
        """Load a file, and show it at `line`; for -1, at the line of the node that is selected by then."""
        problems: list[str] = []
        file = await Requester(self.context.session, problems.append).await_answer(
            self.context.session.open_python(path)
        )
        text, lines = (file.text, file.lines) if file is not None else ("", 0)
        self._set_text(text, lines, "".join(problems))
        selected_path, selected_line = self.context.selection.python_line
        line = selected_line if line < 0 and selected_path == path else line
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
            self.context.selection.go_to_line_nodes(line.nodes)

    # ---- actions -----------------------------------------------------------------------------------------------------

    def go_to_node_of_line(self) -> None:
        """Go to a node of the line under the cursor in the graph pane."""
        if self.line is not None and self.line.nodes:
            self.context.selection.go_node(self.line.nodes)
        else:
            self.say("this line comes from no node of the graph")

    def source_left(self) -> None:
        self.sideways(-SCROLL_COLUMNS)

    def source_right(self) -> None:
        self.sideways(SCROLL_COLUMNS)

    def text_to_copy(self) -> str:
        return self.line.text if self.line is not None else ""

    def copy(self) -> None:
        """Copy the line at the cursor, or the selected lines."""
        rows = self.selected_range
        if len(rows) == 1:
            super().copy()
        else:
            self.context.jobs.begin("copy", self.copy_lines, [(self._text, row) for row in rows])
