"""What panes, screens and commands share: the layout, the selected node, and the context with all shared parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from textual.app import App
from textual.timer import Timer
from textual.widget import Widget

from buddy.app import actions
from buddy.app.panes.jobs import Jobs, StageQueries, Status
from buddy.app.reports.formatting import Glyphs, short_location
from buddy.app.reports.python_lines import PythonLines, PythonLocation
from buddy.app.screens.modal import Dialogs, FileWriter
from buddy.app.screens.results import Results
from buddy.app.session.requests import RecipeEditor
from buddy.app.session.session import Session
from buddy.app.session.state import State
from buddy.app.workspace.session_file import Bookmarks
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol import GraphInfo, NodeRow

# ---- layout ----------------------------------------------------------------------------------------------------------


# A screen with fewer columns is narrow: it shows only one pane.
MIN_WIDTH_OF_SEVERAL_PANES = 100
# A screen with at least this many columns has the wide layout.
MIN_WIDE_WIDTH = 140
# A narrow screen with at least this many lines also shows the source pane, below the one pane.
MIN_HEIGHT_OF_SPLIT = 20


class Layout:
    """Shows all panes or, on a narrow screen or when zoomed, only the pane that has focus, `pane_id`.

    On a narrow but high screen, the source pane, if it is turned on, is shown below that pane. `shows_source` and
    `shows_plugin` are whether the source pane and the plug-in pane are turned on. `panes` are the widgets to arrange,
    by their ids; the application sets them before it runs.
    """

    def __init__(self, app: App[Any], status: Status) -> None:
        self._app, self._status = app, status
        self.panes: Mapping[actions.Pane, Widget] = {}
        self.pane_id: actions.Pane = "graph"
        self.zoomed = False
        self.shows_source = self.shows_plugin = False
        # Titles that replace those of `PANE_TITLES`.
        self.titles: dict[actions.Pane, str] = {}
        # The last pane that had focus, other than the source pane. On a split screen, it is above the source pane.
        self._pane_above_source: actions.Pane = "graph"

    @property
    def visible_order(self) -> tuple[actions.Pane, ...]:
        """The panes that are not turned off, in tab order."""
        is_turned_on = {"source": self.shows_source, "plugin": self.shows_plugin}
        return tuple(pane for pane in actions.PANES if is_turned_on.get(pane, True))

    @property
    def shows_one_pane(self) -> bool:
        """Whether only the pane that has focus is shown, apart from the source pane below it."""
        return self._app.screen_stack[0].has_class("-folded")

    def arrange(self, width: int | None = None, height: int | None = None) -> None:
        """Sets the titles of panes, and the CSS classes by which `workbench.tcss` arranges screen, columns and panes.

        The default for `width` and `height`, in cells, is the size of the screen.
        """
        width, height = width or self._app.size.width, height or self._app.size.height
        screen = self._app.screen_stack[0]
        narrow = width < MIN_WIDTH_OF_SEVERAL_PANES
        is_split = narrow and self.shows_source and not self.zoomed and height >= MIN_HEIGHT_OF_SPLIT
        if self.pane_id != "source":
            self._pane_above_source = self.pane_id
        # The visible panes of a narrow or zoomed screen.
        shown = {self._pane_above_source, "source"} if is_split else {self.pane_id}
        screen.set_class(narrow or self.zoomed, "-folded")
        screen.set_class(is_split, "-split")
        screen.set_class(width >= MIN_WIDE_WIDTH, "-wide")
        screen.set_class(self.shows_source, "-source")
        screen.set_class(self.shows_plugin, "-plugin")
        for pane_id, pane in self.panes.items():
            pane.set_class(pane_id in shown, "-shown")
            pane.border_title = "" if self.shows_one_pane and not is_split else self.title_of(pane_id)
        for side in ("left", "right"):
            column = screen.query_one(f"#{side}")
            in_column = {pane_id for pane_id in shown if self.panes[pane_id].parent is column}
            column.set_class(bool(in_column), "-shown")
            column.set_class(in_column == {"source"} and is_split, "-strip")

    def title_of(self, pane: actions.Pane) -> str:
        return self.titles.get(pane, actions.PANE_TITLES[pane])

    def note_focus(self, pane: actions.Pane) -> None:
        """Updates the layout after `pane` has got focus without `show_pane`, for example by the mouse."""
        if pane != self.pane_id:
            self.pane_id = pane
            self.arrange()

    # ---- actions -------------------------------------------------------------------------------------------------

    def show_pane(self, pane: actions.Pane) -> None:
        """Moves the focus to a pane. If only one pane is shown, shows this one."""
        self.pane_id = pane
        self.arrange()
        self._focus()
        self._status.redraw()

    def _focus(self) -> None:
        pane = self.panes[self.pane_id]
        # The next key belongs to this pane, and `pane.focus` would move the focus only later.
        pane.screen.set_focus(pane)

    def next_pane(self) -> None:
        """Moves the focus to the next pane in tab order; after the last one, to the first."""
        self._focus_neighbour(1)

    def previous_pane(self) -> None:
        """Moves the focus to the previous pane in tab order; before the first one, to the last."""
        self._focus_neighbour(-1)

    def _focus_neighbour(self, offset: int) -> None:
        index = self.visible_order.index(self.pane_id)
        self.show_pane(self.visible_order[(index + offset) % len(self.visible_order)])

    def toggle_source(self) -> None:
        self.shows_source = not self.shows_source
        if not self.shows_source and self.pane_id == "source":
            self.show_pane(self._pane_above_source)
            return
        self.arrange()
        if self.shows_source and self.shows_one_pane and not self.panes["source"].has_class("-shown"):
            self.show_pane("source")

    def show_plugin(self) -> None:
        """Shows the plug-in pane, and focuses it."""
        self.shows_plugin = True
        self.show_pane("plugin")

    def hide_plugin(self) -> None:
        """Hides the plug-in pane. If it has focus, moves the focus to the IR pane."""
        self.shows_plugin = False
        if self._pane_above_source == "plugin":
            self._pane_above_source = "ir"
        if self.pane_id == "plugin":
            self.show_pane(self._pane_above_source)
        self.arrange()

    def toggle_zoom(self) -> None:
        """Shows only the pane that has focus, or all panes again."""
        self.zoomed = not self.zoomed
        self.arrange()
        self._focus()


# ---- selection -------------------------------------------------------------------------------------------------------


# The time that the cursor must stay on a node before other panes go to the node.
FOLLOW_SECONDS = 0.12


class SelectionView(Protocol):
    """A pane that shows the selection."""

    def selection_changed(self, previous: str) -> None:
        """Updates the marks of rows. `previous` is the stable name of the node that was selected before."""

    def show_node(self, stable: str) -> None:
        """Moves the cursor to the row of the node with that stable name, and scrolls to it."""

    def follow_selection(self) -> object:
        """Moves the cursor to the selected node. Called when the cursor of another pane has stayed on the node."""


class _LinkedNodes(NamedTuple):
    """The nodes of the linked Python line `location`, as `lines` has them."""

    location: PythonLocation | None
    lines: PythonLines
    nodes: frozenset[str]


class Selection:
    """The selected node, which all panes mark, and the linked Python line, whose nodes they highlight.

    `node` is the stable name of the selected node, "" for none. A stable name stays the same if nodes are renumbered;
    all nodes are given by their stable names here. `views` are the panes; the application sets them before it runs.
    """

    def __init__(self, jobs: Jobs, dialogs: Dialogs, layout: Layout) -> None:
        self._jobs, self._dialogs, self._layout = jobs, dialogs, layout
        self.views: Sequence[SelectionView] = ()
        self._follow_timer: Timer | None = None
        self._info: GraphInfo | None = None
        # The name in the graph, and the Python file and line, of each node.
        self._names: dict[str, str] = {}
        self._locations: dict[str, str] = {}
        self.node = ""
        self.python_lines = PythonLines()
        # The line under the cursor of the source pane, if that cursor has moved after the last selection of a node.
        self._source_line: PythonLocation | None = None
        # The cached result of `linked_nodes`, and what it depends on.
        self._linked = _LinkedNodes(None, self.python_lines, frozenset())

    def set_graph(self, info: GraphInfo) -> None:
        """Reads the names and the Python lines of the nodes of a graph, unless it is the current graph."""
        if info is self._info:
            return
        self._info, self._source_line = info, None
        self._names = {row.stable: row.display_name for row in info.rows}
        self._locations = {row.stable: row.location for row in info.rows}
        self.python_lines = PythonLines(info.rows, info.caller_locations)

    def name_of(self, stable: str) -> str:
        """The name in the graph of the node with that stable name."""
        return self._names.get(stable, stable)

    def short_location(self, stable: str) -> str:
        """The file and the line that a node comes from: `model.py:12`."""
        return short_location(self._locations.get(stable, ""))

    @property
    def linked_location(self) -> PythonLocation | None:
        """The linked Python line: if the source pane's cursor moved last, its line; else the selected node's line."""
        return self._source_line or self.python_lines.location_of(self.node)

    @property
    def linked_nodes(self) -> frozenset[str]:
        """The nodes of the linked line, which all panes highlight; none while the source pane is hidden."""
        if not self._layout.shows_source:
            return frozenset()
        location, lines = self.linked_location, self.python_lines
        if (self._linked.location, self._linked.lines) != (location, lines):
            nodes = frozenset(lines.nodes_of(location)) if location is not None else frozenset[str]()
            self._linked = _LinkedNodes(location, lines, nodes)
        return self._linked.nodes

    def colour_of(self, nodes: Sequence[str]) -> str:
        """The role that colours the Python line of `nodes` in every pane; "" while the source pane is hidden."""
        return self.python_lines.colour_of(nodes) if self._layout.shows_source else ""

    def select_node(self, stable: str) -> None:
        self._source_line = None
        self._select(stable)

    def _select(self, stable: str) -> None:
        """Selects a node, and lets all panes update their marks. The linked line of the source pane remains."""
        previous, self.node = self.node, stable
        for view in self.views:
            view.selection_changed(previous)

    def select_row(self, row: NodeRow | None) -> None:
        """Selects the node of a graph row. The IR pane goes to it when the cursor has stayed on the row."""
        if row is not None:
            self.select_node(row.stable)
            self._schedule_follow()

    def _schedule_follow(self) -> None:
        """Lets the panes go to the selected node after `FOLLOW_SECONDS`, unless another one is selected before."""
        if self._follow_timer is not None:
            self._follow_timer.stop()
        self._follow_timer = self._jobs.call_later(FOLLOW_SECONDS, self._follow)

    def _follow(self) -> None:
        """Lets the other panes go to the selected node."""
        for view in self.views:
            view.follow_selection()

    def link_line(self, location: PythonLocation) -> None:
        """Links a Python line. Goes to its first node in every pane, unless one of its nodes is selected."""
        self._source_line = location
        nodes = self.python_lines.nodes_of(location)
        keeps_node = not nodes or self.node in nodes
        # Also if the node stays the same: the panes must mark the nodes of the line.
        self._select(self.node if keeps_node else nodes[0])
        if not keeps_node:
            for view in self.views:
                view.show_node(self.node)
            self._schedule_follow()

    def select_one_of(self, nodes: Sequence[str]) -> None:
        """Selects the first of `nodes`, the nodes of a line, and shows its row, unless one of them is selected."""
        if nodes and self.node not in nodes:
            self._select_and_show(nodes[0])

    def _select_and_show(self, node: str) -> None:
        self.select_node(node)
        for view in self.views:
            view.show_node(node)

    def go_to_one_of(self, nodes: tuple[str, ...]) -> None:
        """Goes to the node that a line comes from, in the graph pane. Of several `nodes`, the user picks one."""
        if len(nodes) == 1:
            self._go_to_picked(nodes[0])
            return
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(self.name_of(node), node, node, marked=node == self.node) for node in nodes]
        self._dialogs.open(PickerScreen("This line comes from", choices), self._go_to_picked)

    def _go_to_picked(self, node: str | None) -> None:
        if node is not None:
            self._select_and_show(node)
            self._layout.show_pane("graph")


# ---- context ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkbenchContext:
    """The parts of a workbench that its panes and commands share. The application creates it and passes it to them.

    | to … | use |
    |---|---|
    | read the state of the engine | `state` |
    | ask the engine | `session`; `queries`, which shows a message if a request fails |
    | change the recipe | `edits`; `workspace` has the current one |
    | show a message | `say` |
    | ask the user something | `dialogs` |
    | write a file | `files` |
    | show the result of a job | `results` |
    | run a job in the background | `jobs` |
    | go to a pane or a node | `layout`, `selection` |
    """

    session: Session
    queries: StageQueries
    edits: RecipeEditor
    status: Status
    dialogs: Dialogs
    files: FileWriter
    results: Results
    jobs: Jobs
    layout: Layout
    selection: Selection
    bookmarks: Bookmarks
    glyphs: Glyphs

    @property
    def state(self) -> State:
        return self.session.state

    @property
    def workspace(self) -> Workspace:
        return self.session.workspace

    def say(self, message: str) -> None:
        self.status.say(message)
