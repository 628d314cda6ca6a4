"""The graph pane: the table of FX nodes, with the lowering of each node."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType

from buddy.app.actions import Pane as PaneId
from buddy.app.actions import key_of
from buddy.app.panes.node_columns import NodeColumns
from buddy.app.panes.pane import RowMark
from buddy.app.reports import nodes, numerics
from buddy.app.reports.formatting import short_location
from buddy.app.reports.nodes import (
    path_details,
    role_and_bytes,
    role_text,
    training_memory,
    training_summary,
)
from buddy.app.reports.profile import node_time_summary
from buddy.app.reports.progress_texts import waiting_texts
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.session.state import Topic
from buddy.app.widgets.look import Cells, align_both_ends
from buddy.app.widgets.textual_helpers import pane_bindings
from buddy.app.workspace.inputs import relative_to_working_directory
from buddy.compiler.protocol import Assignment, NodeRow
from buddy.compiler.protocol.recipe import EAGER, F32, PRECISIONS, Precision

# The value of the picker's entry that restores the default lowering and precision.
RESET_CHOICE = ""
# The prefix of the values of the picker's entries that are precisions.
_PRECISION_PREFIX = "precision:"


class GraphPane(NodeColumns):
    """The table of nodes. Moving the cursor selects its node in every pane."""

    pane_id: ClassVar[PaneId] = "graph"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("graph")
    BORDER_TITLE = "Graph"

    # ---- below the table -----------------------------------------------------------------------------------------

    def foot(self, width: int) -> list[Cells]:
        return [*self._training_lines(width), self._node_line(width)] if self.rows else []

    def _training_lines(self, width: int) -> list[Cells]:
        """For a graph of training, a line with the memory that is saved for the backward graph, and recomputed."""
        if self._training_memory is None:
            return []
        return [[(f" {training_summary(self._training_memory, width - 1)}", "dim")]]

    def _node_line(self, width: int) -> Cells:
        row = self.current
        right: Cells = [(f" {self._position_text()}", "number")]
        left: Cells = [(" ", "text"), *(self._node_facts(row) if row is not None else [])]
        return align_both_ends(left, right, width)

    def _node_facts(self, row: NodeRow) -> Cells:
        """The facts about `row`, the node under the cursor, for the line under the table."""
        assignment = self.assignment_of(row)
        if self.workspace.recipe.is_dump:
            return [(short_location(row.location), "dim")]
        parts = [nodes.short_target(row.target), role_and_bytes(row), short_location(row.location)]
        if assignment is not None:
            parts += [assignment.reason, assignment.integers, assignment.precision, assignment.precision_reason]
            parts += [f"in @{assignment.function}" if assignment.function else ""]
        return [(f" {self.glyphs.dot} ".join(part for part in parts if part), "dim")]

    def _position_text(self) -> str:
        """The number of picked nodes, the filter, the order, and `N/TOTAL`.

        N is the number of nodes that match the filter, or, without a filter, the position of the cursor.
        """
        info = self.state.info
        total = len(info.rows) if info else 0
        order = f"by {self.order.sorted_by}" if self.order.sorted_by and not self.as_tree else ""
        position = self.rows.index(self.current) + 1 if self.current in self.rows else self.cursor + 1
        count = f"{len(self.rows)}/{total}" if self.filter_text else f"{position}/{total}"
        picked = f"{len(self.picked)} picked" if self.picked else ""
        quoted_filter = f"'{self.filter_text}'" if self.filter_text else ""
        return " ".join(filter(None, (picked, quoted_filter, order, count)))

    def empty(self, width: int) -> list[Cells]:
        if self.filter_text:
            return [
                [(f" no node matches {self.filter_text!r}; press {key_of('graph.filter')} to change the filter", "dim")]
            ]
        if "open" in self.state.problems:
            return [[(" the program could not be captured: see Outputs", "dim")]]
        return [[(f" {text}", "dim")] for text in waiting_texts(self.state, "graph", "capture", self.glyphs)]

    # ---- rows ----------------------------------------------------------------------------------------------------

    def update_from(self, topics: frozenset[Topic]) -> None:
        if "graph" in topics:
            self.refill()

    def refill(self) -> None:
        """Filters and sorts the nodes again. The cursor stays on its node if possible."""
        current = self.current
        self._read_times()
        rows = self.filtered_rows()
        self.picked &= {row.stable for row in self._all_rows()}
        assignments, recipe = self.state.assignments.values(), self.workspace.recipe
        sets_precision = recipe.precision != F32 or bool(recipe.precisions)
        has_precision = any(assignment.precision or assignment.integers for assignment in assignments)
        self._training_memory = training_memory(self.state.info) if self.state.info is not None else None
        self._columns = self._make_columns(
            with_reasons=any(assignment.reason for assignment in assignments),
            with_profile=self.state.profile is not None,
            with_precisions=sets_precision or has_precision,
        )
        self.rows = self.order.sorted(rows, self._columns)
        self.update_entries()
        self._restore_cursor(current)
        self.rows_changed()

    def _restore_cursor(self, node: NodeRow | None) -> None:
        """Moves the cursor to the row of `node`; for `None`, to the first node that is not an input or weight."""
        if node is not None:
            self.cursor = self.row_of_node(node.stable) or 0
            return
        rows = ((index, entry) for index, entry in enumerate(self.entries) if isinstance(entry, NodeRow))
        self.cursor = next((index for index, row in rows if row.opcode not in ("placeholder", "get_attr")), 0)
        if self.rows:
            # Two of the inputs stay visible above the cursor.
            self.call_after_refresh(self.scroll_to, y=max(0, self.cursor - 2), animate=False, force=True)

    def after_move(self) -> None:
        # A message would select the node later: this way, the move and the new selection are drawn together.
        self.context.selection.select_row(self.current)
        super().after_move()

    def selection_changed(self, previous: str) -> None:
        """Redraws the rows whose marks have changed: the selected node, and the nodes of its Python line."""
        self.refresh_marks()

    def mark_of(self, row: int) -> RowMark:
        entry, selection = self.entries[row], self.context.selection
        if not isinstance(entry, NodeRow):
            return RowMark()
        return RowMark(entry.stable == selection.node, entry.stable in selection.linked_nodes)

    def show_graph(self, node: str) -> None:
        """Shows another graph, with the cursor on `node`; for "", on the first node that is not an input."""
        self.rows, self.entries, self.cursor, self.picked = [], [], 0, set()
        self.refill()
        if node:
            self.show_node(node)

    def show_node(self, stable: str) -> None:
        """Moves the cursor to a node, if it has a row, without calling `after_move`."""
        index = self.row_of_node(stable)
        if index is not None:
            self.center(index, notify=False)

    # ---- actions -------------------------------------------------------------------------------------------------

    def toggle_eager(self) -> None:
        """Runs the nodes of `selected_rows` in eager. If all of them run in eager already, compiles them."""
        rows = [row for row in self.selected_rows if self._can_toggle(row)]
        if not rows:
            self.say("these nodes can only run in eager")
            return
        compiled_rows = [row for row in rows if self.lowering_of(row) != EAGER]
        recipe = self.workspace.recipe
        for row in compiled_rows or rows:
            recipe = recipe.with_choice(row.stable, EAGER if compiled_rows else self._restored_lowering(row))
        names = rows[0].name if len(rows) == 1 else f"{len(compiled_rows or rows)} nodes"
        self.context.edits.edit(recipe, f"{names} {'in eager' if compiled_rows else 'compiled'}")

    def _can_toggle(self, row: NodeRow) -> bool:
        """Whether a node is compiled, or runs in eager and could be compiled."""
        assignment = self.assignment_of(row)
        return assignment is not None and (assignment.lowering != EAGER or bool(assignment.compiled_choices))

    def _restored_lowering(self, row: NodeRow) -> str | None:
        """The lowering to set in the recipe so that a node in eager is compiled; `None` removes the recipe's choice.

        If the recipe has a choice for the node, it is eager, and must be removed. Otherwise, eager is the default
        lowering of the node, so the recipe must choose the first other one.
        """
        assignment = self.assignment_of(row)
        choices = assignment.compiled_choices if assignment else []
        return None if self._recipe_choice(row) else next(iter(choices), None)

    def choose_lowering(self) -> None:
        """Lists the lowerings and the precisions of the node under the cursor, and uses the chosen one."""
        row = self.current
        assignment = self.assignment_of(row) if row else None
        if row is None or assignment is None:
            return
        lowering, precision = self.lowering_of(row), self.precision_of(row)
        choices = [
            PickerChoice(name, nodes.lowering_summary(name, assignment), name, marked=name == lowering)
            for name in dict.fromkeys((*assignment.choices, EAGER))
        ]
        if assignment.multiplies:
            choices += [
                PickerChoice(name, nodes.PRECISION_TEXTS[name], _PRECISION_PREFIX + name, marked=name == precision)
                for name in PRECISIONS
            ]
        default = f"first registry that supports the op ({self.workspace.recipe.dialect}-first)"
        choices.append(PickerChoice("reset", default, RESET_CHOICE))
        subject = "Lowering and precision" if assignment.multiplies else "Lowering"
        title = f"{subject} of {row.display_name} ({nodes.short_target(row.target)})"
        self.app.push_screen(PickerScreen(title, choices), lambda choice: self._use_choice(row, assignment, choice))

    def _use_choice(self, row: NodeRow, assignment: Assignment, choice: str | None) -> None:
        """Sets what the user has chosen for `row`: a lowering, a precision, or the defaults; `None` changes nothing.

        If the compiler has reported that the lowering cannot lower the node, shows the reason instead.
        """
        recipe = self.workspace.recipe
        if choice is not None and choice.startswith(_PRECISION_PREFIX):
            self._set_precision(row, choice.removeprefix(_PRECISION_PREFIX))  # type: ignore[arg-type]
            return
        rejection = assignment.rejection(choice or "")
        if rejection:
            self.say(f"{row.display_name} cannot be lowered by {choice}: {rejection}")
            return
        if choice == RESET_CHOICE:
            reset_recipe = recipe.with_choice(row.stable, None).with_precision(row.stable, None)
            self.context.edits.edit(reset_recipe, f"{row.display_name}: default lowering")
        elif choice is not None:
            self.context.edits.edit(recipe.with_choice(row.stable, choice), f"{row.display_name}: lowering {choice}")

    def _set_precision(self, row: NodeRow, precision: Precision) -> None:
        """Sets the precision of the picked nodes that multiply float32, or, without such nodes, of `row`."""
        recipe = self.workspace.recipe
        multiplying = [other for other in self.selected_rows if self.precision_of(other)] if self.picked else []
        rows = multiplying or [row]
        for other in rows:
            recipe = recipe.with_precision(other.stable, None if precision == recipe.precision else precision)
        names = f"{len(rows)} nodes" if len(rows) > 1 else rows[0].display_name
        self.context.edits.edit(recipe, f"{names}: precision {precision}")

    def sort_rows(self) -> None:
        if self.as_tree:
            self.say(f"modules are in the order of the graph: press {key_of('graph.tree')} for the flat table")
        self.refill()

    def open_code(self) -> None:
        """Shows the graph as Python code, at the line of the node under the cursor."""
        self.context.jobs.begin_opening("code", self._open_code)

    async def _open_code(self) -> None:
        """Loads the code of the graph and the line of the node under the cursor, then opens the screen."""
        info, row = self.state.info, self.current
        if info is None:
            return
        line_and_count = await self.context.queries.find_first_line(info.code, row.stable if row else "")
        if line_and_count is not None:
            from buddy.app.screens.detail import CodeScreen

            line, line_count = line_and_count
            screen = CodeScreen(info.name, self.context.session.cache, info.code, line_count, line)
            self.app.push_screen(screen, lambda nodes: self.go_to_node(nodes[0] if nodes else None))

    def details(self) -> None:
        row = self.current
        if row is not None:
            self.app.push_screen(DetailScreen(row.display_name, self._detail_lines(row)))

    def _detail_lines(self, row: NodeRow) -> list[Cells]:
        """The known facts about a node, one per line, and the remarks of passes about the node."""
        assignment = self.assignment_of(row)
        facts = {
            "opcode": row.opcode,
            "target": row.target,
            "arguments": row.args,
            "keywords": row.kwargs,
            "result": f"{row.dtype}[{row.shape}]" if row.shape or row.dtype else "",
            "strides": row.strides,
            "memory": self.memory_text(row),
            "training": role_text(row),
            "operands": ", ".join(other.name for other in self._neighbours.producers(row)),
            "users": ", ".join(other.name for other in self._neighbours.users(row)),
            "time": self._time_summary(row),
            "module": row.module,
            "line": relative_to_working_directory(row.location),
            "name": row.stable,
            "lowering": self.lowering_of(row) + (" (set in the recipe)" if self._recipe_choice(row) else ""),
            "choices": ", ".join(assignment.choices) if assignment else "",
            "why": assignment.reason if assignment else "",
            "precision": self._precision_text(row),
            **(path_details(assignment) if assignment else {}),
            **numerics.node_details(self.state.graph_state.node_numbers.get(row.stable)),
            "function": assignment.function if assignment else "",
        }
        lines: list[Cells] = [[(f"{title:<11}", "dim"), (text, "text")] for title, text in facts.items() if text]
        remarks = [(name, text) for name, node, text in self.state.remarks if node in (row.stable, row.name)]
        if remarks:
            lines += [[], [("remarks of passes", "title")]]
            lines += [[(f"{name:<28} ", "accent"), (text, "text")] for name, text in remarks]
        return lines

    def _precision_text(self, row: NodeRow) -> str:
        """The precision in which a node multiplies, and the reason if the recipe sets another one.

        Empty if the node multiplies no float32.
        """
        assignment = self.assignment_of(row)
        if assignment is None:
            return ""
        recipe, precision = self.workspace.recipe, self.precision_of(row)
        return nodes.precision_summary(row.stable, recipe, assignment, precision, self._gain(row))

    def _time_summary(self, row: NodeRow) -> str:
        """The profile of a node as text; empty if it was not measured."""
        node = self.times.get(row.stable)
        return node_time_summary(node, self._short_names, self.state.profile_is_stale) if node is not None else ""

    def text_to_copy(self) -> str:
        row = self.current
        return f"{row.display_name}\t{row.target}\t{row.args}\t{row.shape}\t{row.dtype}" if row else ""
