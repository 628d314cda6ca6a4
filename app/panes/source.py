"""The source pane: the Python code of the selected node, linked line by line to the graph and the IR."""

from __future__ import annotations

from typing import ClassVar

from textual import work
from textual.binding import BindingType
from textual.worker import Worker

from buddy.app.actions import Pane as PaneId
from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.graph import GraphPane
from buddy.app.panes.pane import Pane
from buddy.app.reports import formatting
from buddy.app.reports.python_lines import (
    LineFacts,
    LineTimes,
    PythonLines,
    PythonLocation,
    facts_text,
    line_facts,
    missing_nodes_text,
    parse_location,
)
from buddy.app.session.requests import Requester
from buddy.app.session.state import Topic
from buddy.app.widgets.code_view import CodeView
from buddy.app.widgets.look import Cells, align_both_ends, wrap_text
from buddy.app.widgets.textual_helpers import pane_bindings
from buddy.app.workspace.files import FileStamp, read_stamp
from buddy.compiler.protocol import GraphInfo, NodeRow, PythonOpened
from buddy.compiler.protocol.recipe import EAGER

# The number of columns that a key scrolls sideways.
SCROLL_COLUMNS = 16
# How often the pane checks whether the file on the screen has changed on disk.
CHECK_SECONDS = 2.0
# With fewer columns, the time of a line is not shown.
MIN_WIDTH_FOR_TIMES = 60
# The note about a file that may differ from the captured code, by its state on disk. `{key}` captures again.
DISK_NOTES = {
    "changed": "changed on disk since the capture: lines marked ~ are old, {key} captures again",
    "deleted": "deleted on disk since the capture: {key} captures again",
    "uncertain": "written while the program ran: lines may be wrong, {key} captures again",
    "none": "code without a file",
}


class SourcePane(Pane, CodeView):
    """Shows one file at a time. It follows the selection; while it has focus, its cursor moves the selection."""

    pane_id: ClassVar[PaneId] = "source"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("source")
    BORDER_TITLE = "Source"
    selects_rows = True

    def __init__(self, context: WorkbenchContext, graph: GraphPane) -> None:
        CodeView.__init__(self, context.session.cache)
        self.context, self.id, self._graph = context, self.pane_id, graph
        # The graph to which the files belong.
        self._info: GraphInfo | None = None
        # The files of the graph that are open, by path.
        self._files: dict[str, PythonOpened] = {}
        # The reasons why files of the graph cannot be shown, by path.
        self._problems: dict[str, str] = {}
        # The sizes and times of files when they were opened, by path; `None` for files that do not exist.
        self._stamps: dict[str, FileStamp | None] = {}
        # The line that the cursor is on, or goes to as soon as its file is opened.
        self._location: PythonLocation | None = None
        # The path of the file on the screen.
        self._path = ""
        # What is known about lines of the file on the screen, by line.
        self._facts: dict[int, LineFacts] = {}
        self._times: LineTimes | None = None
        # The reasons of graph breaks, by the line of the break.
        self._breaks: dict[PythonLocation, str] = {}
        # The lines of the file on the screen that differ from the file on disk.
        self._old_lines: frozenset[int] = frozenset()
        self._rows: dict[str, NodeRow] = {}
        self._other_graphs: dict[str, PythonLines] = {}
        self._reopening: Worker[None] | None = None

    def on_mount(self) -> None:
        self.set_interval(CHECK_SECONDS, self._check_file)

    def on_focus(self) -> None:
        if self.context.session.is_remote and self._path:
            self._open_files([self._path])

    def update_from(self, topics: frozenset[Topic]) -> None:
        if "graph" in topics:
            self._read_graph()
            if self.state.info is not self._info:
                self.go_to_selected_node()
            self.rows_changed()
        if "lines" in topics:
            self.refresh()

    def _read_graph(self) -> None:
        """Reads the nodes, the graph breaks and the profile again."""
        info = self.state.info
        self._facts = {}
        self._rows = {row.stable: row for row in info.rows} if info is not None else {}
        report = self.state.profile
        self._times = LineTimes({time.node: time for time in report.nodes}, report.whole) if report else None
        locations = ((parse_location(info.break_line), info.break_reason) for info in self.state.graphs)
        self._breaks = {location: reason for location, reason in locations if location is not None}

    @property
    def _moves_selection(self) -> bool:
        """Whether the cursor of this pane moves the selection: it does while keys go to this pane."""
        return self.context.layout.pane_id == self.pane_id

    # ---- drawing -------------------------------------------------------------------------------------------------

    def head(self, width: int) -> list[Cells]:
        opened = self._files.get(self._path)
        note = DISK_NOTES.get(opened.on_disk, "").format(key=key_of("rerun")) if opened is not None else ""
        columns = max(width - len(note) - 4, 12)
        path = self.context.session.display_path(self._path or (self._location.path if self._location else ""))
        path = path if len(path) <= columns else f"{self.glyphs.ellipsis}{path[1 - columns :]}"
        return [align_both_ends([(f" {path}", "dim")], [(f"{note} ", "warn")] if note else [], width)]

    def empty(self, width: int) -> list[Cells]:
        problem = self._problems.get(self._location.path, "") if self._location else ""
        if problem and self._location is not None:
            problem = f"line {self._location.line + 1}: {problem}"
        message = problem or "the Python line of the selected node is unknown"
        return [[(f" {piece}", "dim")] for piece in wrap_text(message, max(width - 2, 10))]

    def foot(self, width: int) -> list[Cells]:
        if not self._line_count:
            return []
        text, role = self._line_note()
        return [[(f" {formatting.clip(text, width - 2, self.glyphs)}", role)]]

    def _line_note(self) -> tuple[str, str]:
        """The text about the line under the cursor, and the text's role.

        The text says what the line computes, or why no node comes from it.
        """
        location, facts = PythonLocation(self._path, self.cursor), self._facts_of(self.cursor)
        old_note = "the file on disk has another line here; " if self.cursor in self._old_lines else ""
        if location in self._breaks:
            return f"{old_note}graph break: {self._breaks[location]}", "bad"
        if facts.nodes:
            node = self._node_of(facts.nodes)
            text = facts_text(facts, self.context.selection.name_of(node))
            assignment = self.state.assignments.get(node)
            reason = assignment.reason if assignment is not None and assignment.lowering == EAGER else ""
            text += f": {reason}" if reason else ""
            return f"{old_note}{text}", "warn" if old_note or facts.n_eager else "dim"
        opened, lines = self._files.get(self._path), self.context.selection.python_lines
        reason = missing_nodes_text(location, opened.structure, lines, self._other_graphs) if opened is not None else ""
        return f"{old_note}no node: {reason}", "warn" if old_note else "dim"

    def _node_of(self, nodes: tuple[str, ...]) -> str:
        """The selected node if it is one of `nodes`, else the first one that runs in eager, else the first one."""
        if self.context.selection.node in nodes:
            return self.context.selection.node
        assignments = self.state.assignments
        eager = (node for node in nodes if node in assignments and assignments[node].lowering == EAGER)
        return next(eager, nodes[0])

    def gutter_cells(self, row: int) -> Cells:
        """The cells before the code of a line: its mark, number, lowering, time and share."""
        location, facts, selection = PythonLocation(self._path, row), self._facts_of(row), self.context.selection
        at_cursor, is_linked = row == self.cursor, location == selection.linked_location
        mark = ">" if at_cursor else ("=" if is_linked else " ")
        number_role = selection.python_lines.colour_at(location) or ("key" if at_cursor else "number")
        is_old, is_graph_break = row in self._old_lines, location in self._breaks
        cells: Cells = [(mark, "key"), (f"{row + 1:>5}", number_role), ("~" if is_old else " ", "stale")]
        cells.append(("! ", "bad") if is_graph_break else (f"{facts.mark} ", facts.role))
        if self._times is not None and self.width >= MIN_WIDTH_FOR_TIMES:
            # A line with the mark `:` calls the lines whose time it has.
            has_own_time = facts.mark != ":" and not self.state.profile_is_stale
            cells.append((f"{facts.time_text:>8} {facts.share_text:>4} ", "number" if has_own_time else "faint"))
        return cells

    def background(self, row: int) -> str:
        is_linked = PythonLocation(self._path, row) == self.context.selection.linked_location
        return super().background(row) if self._moves_selection or not is_linked else "linked-line"

    def _facts_of(self, row: int) -> LineFacts:
        """What is known about a line: its nodes, their lowerings, and its time."""
        if row not in self._facts:
            lines, location = self.context.selection.python_lines, PythonLocation(self._path, row)
            nodes = lines.nodes_of(location)
            lowerings = {node: self._graph.lowering_of(self._rows[node]) for node in nodes if node in self._rows}
            self._facts[row] = line_facts(lines, location, lowerings, self._times)
        return self._facts[row]

    # ---- files ---------------------------------------------------------------------------------------------------

    def go_to_selected_node(self) -> None:
        """Goes to the line of the selected node, unless this pane has focus or is hidden.

        If another graph is shown since the last call, opens its files.
        """
        if not self.context.layout.shows_source:
            return
        selection = self.context.selection
        location = selection.linked_location
        if self.state.info is not self._info:
            self._info, self._files, self._problems = self.state.info, {}, {}
            self._read_graph()
            others = (info for info in self.state.graphs if info is not self._info)
            self._other_graphs = {info.name: PythonLines(info.rows, info.caller_locations) for info in others}
            paths = [*([location.path] if location is not None else []), *selection.python_lines.paths]
            self._location = location
            self._open_files(list(dict.fromkeys(paths)))
        elif location is not None and not (self._moves_selection and self._path):
            self._go_to(location)

    def show_location(self, location: PythonLocation) -> None:
        """Shows and focuses the pane, with the cursor on the line `location`."""
        layout = self.context.layout
        layout.shows_source = True
        layout.show_pane("source")
        self.redraw_links()
        self.go_to_selected_node()
        self._go_to(location)

    def redraw_links(self) -> None:
        """Draws all panes again after this pane was shown or hidden: lines have colours only while it is shown."""
        for pane in self.context.layout.panes.values():
            pane.refresh()

    def _go_to(self, location: PythonLocation) -> None:
        """Goes to a line, as soon as its file is opened. If the line cannot be shown, shows the reason instead."""
        self._location = location
        opened = self._files.get(location.path)
        if opened is not None and location.line >= opened.lines:
            self._problems[location.path] = f"{location.path} has only {opened.lines} lines"
        if opened is None or location.path in self._problems:
            if location.path in self._problems:
                self._show_file("", None, 0)
            return
        if location.path != self._path or opened.text != self._text:
            self._show_file(location.path, opened, location.line)
        self.center(location.line, notify=False)

    def _show_file(self, path: str, opened: PythonOpened | None, line: int) -> None:
        """Shows a file with the cursor on `line`. For `None`, shows no file."""
        if path != self._path:
            self.left = 0
        self._path, self._facts = path, {}
        self._text, self._line_count = (opened.text, opened.lines) if opened is not None else ("", 0)
        old_ranges = opened.old if opened is not None else ()
        self._old_lines = frozenset(row for first, count in old_ranges for row in range(first, first + count))
        self.cursor = line
        self.rows_changed()

    @work(exclusive=True, group="source-files")
    async def _open_files(self, paths: list[str]) -> None:
        """Opens the files of the graph one by one, so that going to a node of another file does not wait later."""
        for path in paths:
            await self._open_file(path)

    @work(exclusive=True, group="source-file")
    async def _reopen_file(self, path: str) -> None:
        await self._open_file(path)

    async def _open_file(self, path: str) -> None:
        """Requests a file from the engine, and shows it or the reason why it cannot be shown."""
        problems: list[str] = []
        info, session = self._info, self.context.session
        stamp = None if session.is_remote else read_stamp(path)
        opened = await Requester(session, problems.append).await_answer(session.open_python(path))
        if info is not self._info:
            return
        self._stamps[path] = stamp
        if opened is None:
            self._files.pop(path, None)
            self._problems[path] = "".join(problems)
        else:
            self._files[path] = opened
            self._problems.pop(path, None)
        self._show_opened(path)

    def _show_opened(self, path: str) -> None:
        """Shows a file that was opened or opened again, if it is on the screen or the cursor has to go to the file."""
        opened = self._files.get(path)
        if opened is not None and path == self._path and self._moves_selection:
            # The user reads this file: keep the cursor on its line.
            self._show_file(path, opened, min(self.cursor, opened.lines - 1))
        elif self._location is not None and self._location.path == path:
            # Without its text, `_go_to` shows the file again.
            self._text = ""
            if opened is None:
                self._path = ""
            self._go_to(self._location)
        elif self._path not in self.context.selection.python_lines.paths:
            self._show_file("", None, 0)

    def _check_file(self) -> None:
        """Opens the file on the screen again if it has changed on disk, to mark the lines that differ from the disk."""
        session, path = self.context.session, self._path
        opened = self._files.get(path)
        if not self.context.layout.shows_source or session.is_remote or opened is None or opened.on_disk == "none":
            return
        # A request may take longer than `CHECK_SECONDS`. If each check started it again, it would never end.
        is_reopening = self._reopening is not None and not self._reopening.is_finished
        if not is_reopening and read_stamp(path) != self._stamps.get(path):
            self._reopening = self._reopen_file(path)

    # ---- synchronisation -----------------------------------------------------------------------------------------

    def selection_changed(self, previous: str) -> None:
        """Goes to the line of the selected node. If that is the cursor's line, draws the marks of the line again."""
        row, facts = self.cursor, self._facts.get(self.cursor)
        self.go_to_selected_node()
        # If the cursor has moved, both rows and the foot are drawn already.
        if row == self.cursor or facts is None:
            self.refresh_row(row)
            self.refresh_edges()

    def after_move(self) -> None:
        super().after_move()
        if self._moves_selection and self._path:
            self._location = PythonLocation(self._path, self.cursor)
            self.context.selection.link_line(self._location)

    # ---- actions -------------------------------------------------------------------------------------------------

    def go_to_node_of_line(self) -> None:
        """Goes to a node of the line under the cursor in the graph pane, or reports why no node comes from it."""
        nodes = self._facts_of(self.cursor).nodes if self._path else ()
        if nodes:
            self.context.selection.go_to_one_of(nodes)
        elif self._path:
            note, _ = self._line_note()
            self.say(f"line {self.cursor + 1}: {note}")

    def source_left(self) -> None:
        self.scroll_sideways(-SCROLL_COLUMNS)

    def source_right(self) -> None:
        self.scroll_sideways(SCROLL_COLUMNS)

    def text_to_copy(self) -> str:
        return self.line.text if self.line is not None else ""

    def copy(self) -> None:
        rows = self.selected_range
        if len(rows) == 1:
            super().copy()
        else:
            self.context.jobs.begin("copy", self.copy_lines, [(self._text, row) for row in rows])
