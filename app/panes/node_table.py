"""The base of the graph pane, a table of nodes: filter, tree of modules, picked nodes, neighbours, drawings."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.graph_nodes import (
    FilterError,
    ModuleRow,
    NodeFacts,
    NodeNeighbours,
    TreeRow,
    all_modules,
    draw_dot,
    draw_svg,
    op_kind,
    parse_filter,
    tree_rows,
)
from buddy.app.panes.pane import LinkedPane, TablePane
from buddy.app.reports.nodes import bytes_text
from buddy.app.reports.profile import TimedNode
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.widgets.look import Cells, align_both_ends
from buddy.app.widgets.table import Column, cells_text, columns_at, table_row
from buddy.compiler.protocol import Assignment, NodeRow
from buddy.compiler.protocol.recipe import EAGER

# The maximum distance, in edges, from a node to the other nodes of its drawing.
DRAWING_DISTANCE = 2


class NodeTable(LinkedPane, TablePane[NodeRow]):
    """A table of nodes. `rows` are the nodes that match the filter; `entries` are the rows of the table.

    With `as_tree`, `entries` also has rows for modules. `picked` are the stable names of the picked nodes: the user
    picks nodes for actions on several of them. `times` are the times of nodes in a profile, by stable name.
    """

    _columns: list[Column[NodeRow]]

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.rows: list[NodeRow] = []
        self.entries: list[TreeRow] = []
        # The filter of each graph, by `_graph_key`.
        self._filters: dict[tuple[int, str], str] = {}
        self.as_tree = False
        self.picked: set[str] = set()
        # The paths of the folded modules.
        self._folded: set[str] = set()
        self._neighbours = NodeNeighbours(())
        self.times: dict[str, TimedNode] = {}

    def assignment_of(self, row: NodeRow) -> Assignment | None:
        """The lowering of a node in the last compilation; `None` if the node is not lowered."""
        return self.state.assignments.get(row.stable)

    def lowering_of(self, row: NodeRow) -> str:
        """The registry that lowers the node under the current recipe; empty for rows that are not lowered."""
        raise NotImplementedError

    def memory_text(self, row: NodeRow) -> str:
        """The size of the result of a node, as text."""
        return bytes_text(row)

    def refill(self) -> None:
        """Filters and sorts the nodes again, and draws the table."""
        raise NotImplementedError

    # ---- rows ----------------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return len(self.entries)

    @property
    def entry(self) -> TreeRow | None:
        """The node or the module under the cursor."""
        return self.entries[self.cursor] if self.cursor < len(self.entries) else None

    @property
    def current(self) -> NodeRow | None:
        """The node under the cursor, `None` on a module."""
        return self.entry if isinstance(self.entry, NodeRow) else None

    @property
    def selected_rows(self) -> list[NodeRow]:
        """The nodes that an action applies to: the picked ones, or, without any, those of the row under the cursor."""
        if self.picked:
            return [row for row in self._all_rows() if row.stable in self.picked]
        if isinstance(self.entry, ModuleRow):
            return list(self.entry.nodes)
        return [self.entry] if self.entry is not None else []

    @property
    def _module_at_cursor(self) -> str:
        """The path of the module under the cursor, or of the module of the node under the cursor; "" without one."""
        entry = self.entry
        if isinstance(entry, ModuleRow):
            return entry.path
        return entry.module if entry else ""

    def _all_rows(self) -> tuple[NodeRow, ...]:
        """The nodes of the graph, including those that the filter excludes."""
        return self.state.info.rows if self.state.info else ()

    def update_entries(self) -> None:
        """Sets `entries` to `rows`, or, with `as_tree`, to the tree of their modules."""
        if self.as_tree:
            self.entries = tree_rows(sorted(self.rows, key=lambda row: row.index), self._folded)
        else:
            self.entries = list(self.rows)

    def row_of_node(self, stable: str) -> int | None:
        """The index of a node's row, or of the folded module with the node; `None` if the filter excludes the node."""
        for index, entry in enumerate(self.entries):
            if isinstance(entry, NodeRow):
                if entry.stable == stable:
                    return index
            elif entry.folded and any(row.stable == stable for row in entry.nodes):
                return index
        return None

    def row_text(self, row: int) -> str:
        entry = self.entries[row]
        return entry.name if isinstance(entry, ModuleRow) else cells_text(self._columns, entry)

    def row_cells(self, row: int, width: int) -> Cells:
        entry = self.entries[row]
        is_picked = isinstance(entry, NodeRow) and entry.stable in self.picked
        marks = ((">", row == self.cursor), ("+", is_picked), ("=", self.mark_of(row).is_linked))
        marker = (next((mark for mark, applies in marks if applies), " "), "key")
        if isinstance(entry, ModuleRow):
            return [marker, *self._module_cells(entry, width - 1)]
        cells = table_row(columns_at(self._columns, width), entry, width - 1, self.glyphs)
        if is_picked:
            cells = [(text, "key" if role == "text" else role) for text, role in cells]
        return [marker, *cells]

    def _module_cells(self, module: ModuleRow, width: int) -> Cells:
        """The cells of a module: its name, the number of its nodes, and how many of them run in eager."""
        n_nodes = len(module.nodes)
        n_eager = sum(self.lowering_of(row) == EAGER for row in module.nodes if self.assignment_of(row))
        sign = "+" if module.folded else "-"
        left: Cells = [("  " * module.depth + f"{sign} {module.name}", "title")]
        facts = [f"{n_nodes} node{'s' * (n_nodes != 1)}", f"{n_eager} in eager" if n_eager else ""]
        return align_both_ends(left, [(", ".join(filter(None, facts)) + " ", "dim")], width)

    # ---- the filter ----------------------------------------------------------------------------------------------

    @property
    def filter_text(self) -> str:
        """The filter of the graph on the screen; every graph has its own."""
        return self._filters.get(self._graph_key, "")

    @filter_text.setter
    def filter_text(self, text: str) -> None:
        self._filters[self._graph_key] = text

    @property
    def _graph_key(self) -> tuple[int, str]:
        """The number and the name of the graph on the screen. Extracted subgraphs may reuse a number."""
        return self.state.graph, self.state.info.name if self.state.info else ""

    def ask_filter(self) -> None:
        self.context.dialogs.ask("filter", self.filter_text, self._set_filter)

    def _set_filter(self, text: str) -> None:
        """Filters the nodes by `text`; for an invalid filter, shows the error instead."""
        try:
            parse_filter(text, self._unavailable_fields())
        except FilterError as error:
            self.say(str(error))
            return
        self.filter_text = text.strip()
        self.refill()

    def _unavailable_fields(self) -> dict[str, str]:
        """The numeric fields that have no values now, each with the error message for a filter that uses it."""
        if self.state.profile is not None:
            return {}
        return {"time": f"no node has been timed yet: press {key_of('profile')} to profile"}

    def filtered_rows(self) -> list[NodeRow]:
        """The nodes that match the filter. Also reads the edges of the graph, which the filter may need."""
        rows = self._all_rows()
        self._neighbours = NodeNeighbours(rows)
        if not self.filter_text:
            return list(rows)
        matches = parse_filter(self.filter_text)
        return [row for row in rows if matches(self._facts_of(row))]

    def _facts_of(self, row: NodeRow) -> NodeFacts:
        """The properties of a node that the filter can test."""
        assignment = self.assignment_of(row)
        function = assignment.function if assignment else ""
        numbers = self.state.graph_state.node_numbers.get(row.stable)
        deviations = (numbers.error, numbers.own_error) if numbers is not None else (None, None)
        err, own = (deviation.largest if deviation is not None else math.nan for deviation in deviations)
        users = len(self._neighbours.users(row))
        return NodeFacts(row, self.lowering_of(row), function, users, err, own, self.seconds(row))

    def seconds(self, row: NodeRow) -> float | None:
        """The time of the node in the profiled run, in seconds; `None` if it was not measured."""
        timed_node = self.times.get(row.stable)
        return timed_node.time.seconds if timed_node is not None else None

    # ---- the tree ------------------------------------------------------------------------------------------------

    def toggle_tree(self) -> None:
        self.as_tree = not self.as_tree
        self._folded.clear()
        self.refill()
        self.say(
            f"by module: press {key_of('graph.fold')} to fold one, {key_of('graph.fold-all')} to fold all"
            if self.as_tree
            else "flat table"
        )

    def toggle_fold(self) -> None:
        """Folds or unfolds the module under the cursor, or the module of the node under the cursor."""
        path = self._module_at_cursor
        if not self.as_tree or not path:
            self.say(f"nothing to fold here: press {key_of('graph.tree')} to show modules")
            return
        self._folded ^= {path}
        self.update_entries()
        self._move_to_module(path)

    def toggle_all_folds(self) -> None:
        """Unfolds all modules, or folds all modules if none is folded."""
        self._folded = set() if self._folded else all_modules(self.rows)
        self.update_entries()
        self._move_to_module("")

    def _move_to_module(self, path: str) -> None:
        """Moves the cursor to the row of the module `path` (for "", of the first node), if any, and draws the table."""
        paths = [entry.path if isinstance(entry, ModuleRow) else "" for entry in self.entries]
        self.cursor = paths.index(path) if path in paths else min(self.cursor, max(len(paths) - 1, 0))
        self.rows_changed()

    # ---- picking -------------------------------------------------------------------------------------------------

    def pick(self) -> None:
        """Picks or unpicks the node under the cursor, or all nodes of the module under the cursor."""
        entry = self.entry
        rows: Sequence[NodeRow] = ()
        if entry is not None:
            rows = entry.nodes if isinstance(entry, ModuleRow) else (entry,)
        names = {row.stable for row in rows}
        self.picked = self.picked - names if names <= self.picked else self.picked | names
        self._report_picked()
        if isinstance(entry, NodeRow):
            self.move_down()

    def pick_all(self) -> None:
        """Unpicks all nodes, or, if none is picked, picks every lowered node that matches the filter."""
        self.picked = set() if self.picked else {row.stable for row in self.rows if self.assignment_of(row)}
        self._report_picked()

    def pick_same_op(self) -> None:
        row = self.current
        if row is not None:
            self.picked |= {other.stable for other in self._all_rows() if other.target == row.target}
            self._report_picked()

    def pick_module(self) -> None:
        """Picks all nodes of the module under the cursor, or of the module of the node under the cursor."""
        path = self._module_at_cursor
        if path:
            inside = [row for row in self._all_rows() if row.module == path or row.module.startswith(f"{path}.")]
            self.picked |= {row.stable for row in inside}
        self._report_picked()

    def _report_picked(self) -> None:
        """Draws the marks of picked nodes, and shows how many are picked."""
        self.refresh()
        count = len(self.picked)
        nodes = f"{count} node{'s' * (count != 1)}"
        self.say(
            f"{nodes} picked: press {key_of('graph.toggle')} to run them in eager or compile them"
            if count
            else "no node picked"
        )

    # ---- neighbours ----------------------------------------------------------------------------------------------

    def choose_neighbour(self) -> None:
        """Lists the operands and the users of the node under the cursor, and goes to the chosen one."""
        row = self.current
        if row is None:
            return
        pairs = [("operand", other) for other in self._neighbours.producers(row)]
        pairs += [("user", other) for other in self._neighbours.users(row)]
        choices = [
            PickerChoice(
                other.display_name, f"{relation:<8} {op_kind(other)} {other.dtype} {other.shape}", other.stable
            )
            for relation, other in pairs
        ]
        if choices:
            self.app.push_screen(PickerScreen(f"Neighbours of {row.display_name}", choices), self.go_to_node)
        else:
            self.say(f"{row.display_name} has no operands and no users")

    def go_to_node(self, stable: str | None) -> None:
        """Moves the cursor to a node. Clears the filter if it excludes the node. Does nothing for `None`."""
        if stable is None:
            return
        if self.row_of_node(stable) is None:
            self.filter_text = ""
            self.refill()
        index = self.row_of_node(stable)
        if index is not None:
            self.center(index)

    def ask_drawing(self) -> None:
        """Asks for a file, and writes a drawing of the nodes around the node under the cursor to it."""
        row = self.current
        if row is not None:
            self.context.dialogs.ask(
                "draw neighbours to (.svg or .dot)", f"{row.name}.svg", lambda path: self._write_drawing(row, path)
            )

    def _write_drawing(self, row: NodeRow, path: str) -> None:
        if not path.strip():
            return
        nodes = self._neighbours.within(row, DRAWING_DISTANCE)
        draw = draw_svg if Path(path.strip()).suffix.lower() == ".svg" else draw_dot
        self.context.files.write(path.strip(), draw(nodes, row))
