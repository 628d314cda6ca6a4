"""The source pane: the Python file that the selected node comes from, in step with the other panes both ways."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.binding import BindingType

from buddy.app.actions import Pane as PaneId
from buddy.app.bindings import pane_bindings
from buddy.app.lines import LineCache, UnavailableError
from buddy.app.panes.pane import Pane
from buddy.app.state import Topic
from buddy.app.widgets.code_view import CodeView
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import PythonOpened

SIDEWAYS = 16


class SourcePane(Pane, CodeView):
    """Follows the selection, a file at a time; where it has the keys itself, the other panes follow it."""

    pane_id: ClassVar[PaneId] = "source"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("source")
    BORDER_TITLE = "Source"

    def __init__(self, cache: LineCache) -> None:
        super().__init__(cache)
        self.id = "source"
        # The graph and the file that are shown, or asked for.
        self._file: tuple[int, str] | None = None
        self._problem = ""

    def update_from(self, topics: frozenset[Topic]) -> None:
        if "graph" in topics and self.bench.arrangement.with_source:
            # The program may have been loaded anew, or another graph have come.
            self._file = None
            self.follow()
        elif "lines" in topics:
            self.refresh()
            self._lead()

    def head(self, width: int) -> list[Cells]:
        path = self.bench.session.told_path(self._file[1]) if self._file is not None else ""
        return [[(f" {path[-(width - 1) :]}", "dim")]]

    def empty(self, width: int) -> list[Cells]:
        return [[(f" {self._problem or 'no Python line is known of the selected node'}", "dim")]]

    # ---- following and leading -----------------------------------------------------------------------------------

    def follow(self) -> None:
        """Go to the selected node's line, unless this pane has the keys and is at one of its lines' nodes."""
        if not self.bench.arrangement.with_source or (self.has_focus and self._file is not None):
            return
        path, line = self.bench.selection.python_line
        if not path:
            return
        file = (self.state.graph, path)
        if file != self._file:
            self._file = file
            self._open(path, line)
        elif self._lines:
            self.center(min(line, self._lines - 1), tell=False)

    @work(exclusive=True, group="source")
    async def _open(self, path: str, line: int) -> None:
        try:
            found = await self.bench.session.ask(self.bench.provenance.python_file(path), PythonOpened)
        except UnavailableError as error:
            self._problem, self._text, self._lines = str(error), "", 0
        else:
            self._problem, self._text, self._lines, self.left = "", found.text, found.lines, 0
        self.cursor = 0
        self.rows_changed()
        # Meanwhile the selection may have gone on in the same file.
        wanted, newer = self.bench.selection.python_line
        if self._lines:
            self.center(min(newer if wanted == path else line, self._lines - 1), tell=False)

    def moved(self) -> None:
        super().moved()
        self._lead()

    def _lead(self) -> None:
        """Select a node of the line under the cursor, if it has one and this pane has the keys."""
        line = self.line if self.has_focus else None
        if line is not None and line.nodes:
            self.bench.selection.lead(line.nodes)

    # ---- actions -------------------------------------------------------------------------------------------------

    def go_line_node(self) -> None:
        """The graph pane, at a node of the line."""
        if self.line is not None and self.line.nodes:
            self.bench.selection.go_node(self.line.nodes)
        else:
            self.bench.say("no node of the graph comes from this line")

    def source_left(self) -> None:
        self.sideways(-SIDEWAYS)

    def source_right(self) -> None:
        self.sideways(SIDEWAYS)

    def copied(self) -> str:
        return self.line.text if self.line is not None else ""
