"""The graph pane: the table of FX nodes, with the lowering of each node."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Literal

from textual.binding import BindingType

from buddy.app.actions import Pane as PaneId
from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.node_table import NodeTable
from buddy.app.panes.pane import RowMark
from buddy.app.reports import lowerings, numerics
from buddy.app.reports.formatting import short_location
from buddy.app.reports.node_history import path_details
from buddy.app.reports.profile import TimedNode, node_time_summary, node_time_text, rate_text, share_text
from buddy.app.reports.progress_texts import waiting_texts
from buddy.app.reports.training_memory import (
    TrainingMemory,
    node_bytes,
    role_and_bytes,
    role_text,
    training_memory,
    training_summary,
)
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.session.state import Topic
from buddy.app.widgets.bindings import pane_bindings
from buddy.app.widgets.look import Cell, Cells, align_both_ends
from buddy.app.widgets.table import Column
from buddy.app.workspace.inputs import relative_to_working_directory
from buddy.compiler.protocol import Assignment, NodeRow, Peak
from buddy.compiler.protocol.numerics import Deviation, NodeNumbers
from buddy.compiler.protocol.recipe import EAGER, F32, PRECISIONS, Precision

# The value of the picker's entry that restores the default lowering and precision.
RESET_CHOICE = ""
# The prefix of the values of the picker's entries that are precisions.
_PRECISION_PREFIX = "precision:"


class GraphPane(NodeTable):
    """The table of nodes. Moving the cursor selects its node in every pane."""

    pane_id: ClassVar[PaneId] = "graph"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("graph")
    BORDER_TITLE = "Graph"

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self._short_names: dict[str, str] = {}
        # The bytes that a graph of training saves and recomputes; `None` for other graphs.
        self._training_memory: TrainingMemory | None = None
        self._columns = self._make_columns()

    # ---- the table -----------------------------------------------------------------------------------------------

    def _make_columns(
        self, *, with_reasons: bool = False, with_profile: bool = False, with_precisions: bool = False
    ) -> list[Column[NodeRow]]:
        """Create the columns.

        `with_reasons` adds the reasons why nodes are not lowered by the first registry, `with_profile` the numbers of a
        profile, and `with_precisions` the precisions in which nodes multiply.
        """
        if self.workspace.recipe.is_dump:  # The rows of a dump are source lines.
            return [
                Column("", 3, self._state_cell),
                Column("#", 4, self._number_cell, right_aligned=True, key=lambda row: row.index, starts_ascending=True),
                Column("line", 0, lambda row: (self._shown_name(row), self._name_role(row)), keeps_end=True),
            ]
        is_training = self._training_memory is not None
        reason_columns = [Column("why", 24, self._reason_cell, min_width=88)] if with_reasons else []
        return [
            Column("", 3, self._state_cell),
            Column("#", 4, self._number_cell, right_aligned=True, key=lambda row: row.index, starts_ascending=True),
            Column("name", 0, lambda row: (self._shown_name(row), self._name_role(row)), keeps_end=True),
            Column(
                "target",
                22,
                lambda row: (lowerings.short_target(row.target), "dim"),
                # In training, the column with the bytes is shown in narrower panes than this one.
                min_width=100 if is_training else 72,
            ),
            Column("shape", 13, lambda row: (row.shape, "syntax:number"), min_width=36),
            Column("dtype", 6, lambda row: (row.dtype, "syntax:type"), min_width=86),
            Column("lowering", 8, self._lowering_cell, key=lambda row: self.lowering_of(row) or None),
            *([self._training_column()] if is_training else []),
            *(self._precision_columns() if with_precisions else []),
            *(self._error_columns() if self.state.graph_state.node_numbers else []),
            *(self._time_columns() if with_profile else []),
            *reason_columns,
            Column(
                "memory",
                7,
                lambda row: (self.memory_text(row), "dim"),
                min_width=76 if is_training else 96,
                right_aligned=True,
                key=lambda row: node_bytes(row) or None,
            ),
            Column("arguments", 0, lambda row: (row.args, "dim"), min_width=124 if with_reasons else 100),
            Column("strides", 13, lambda row: (row.strides, "dim"), min_width=150),
            Column("module", 0, lambda row: (row.module, "dim"), min_width=136 if with_reasons else 124),
            Column("line", 20, lambda row: (short_location(row.location), "dim"), min_width=150),
        ]

    def _training_column(self) -> Column[NodeRow]:
        """The role of nodes in training: saved for the backward graph, read again by it, or recomputed."""

        def cell(row: NodeRow) -> Cell:
            return (row.training, {"saved": "accent", "recomputed": "warn"}.get(row.training, "dim"))

        return Column("training", 10, cell, min_width=52, key=lambda row: row.training or None)

    def _precision_columns(self) -> list[Column[NodeRow]]:
        """The precision in which nodes multiply, and the error and the time that it saves if they are measured."""
        columns = [Column("precision", 12, self._precision_cell, min_width=60, key=self._precision_sort_key)]
        gains = [self._gain(row) for row in self._all_rows()]
        if any(gain.error is not None for gain in gains):
            columns.append(self._gain_column("its err", lambda gain: gain.error_text, lambda gain: gain.error))
        if any(gain.saved_seconds is not None for gain in gains):
            columns.append(self._gain_column("saves ms", lambda gain: gain.saved_text, lambda gain: gain.saved_seconds))
        return columns

    def _gain_column(
        self,
        title: str,
        text_of: Callable[[numerics.PrecisionGain], str],
        value_of: Callable[[numerics.PrecisionGain], float | None],
    ) -> Column[NodeRow]:
        """A column with one of the two numbers of `PrecisionGain`."""

        def cell(row: NodeRow) -> Cell:
            return (text_of(self._gain(row)), "number")

        return Column(title, 8, cell, min_width=68, right_aligned=True, key=lambda row: value_of(self._gain(row)))

    def _gain(self, row: NodeRow) -> numerics.PrecisionGain:
        """The error of a node in a low precision, and the time that the precision saves, if they are measured."""
        precision, state = self.precision_of(row), self.state.graph_state
        if precision in ("", F32):
            return numerics.PrecisionGain(None, False, None)
        node, profiled_recipe = self._own_time(row), state.profiled_recipe
        seconds = None
        # A profile of a recipe with another precision of this node does not tell the time in this one.
        if node is not None and profiled_recipe is not None and profiled_recipe.precision_of(row.stable) == precision:
            seconds = node.time.seconds
        numbers, tuned = state.node_numbers.get(row.stable), state.precisions.get(row.stable)
        return numerics.precision_gain(precision, numbers, state.f32_seconds.get(row.stable), seconds, tuned)

    def _number_cell(self, row: NodeRow) -> Cell:
        """The number of a node, in the colour of its Python line."""
        return (str(row.index), self.context.selection.colour_of((row.stable,)) or "number")

    def _error_columns(self) -> list[Column[NodeRow]]:
        """The columns with the error of a node in the program, and with its error if it is compiled alone."""
        return [
            self._error_column("err", "error", 44),
            self._error_column("own", "own_error", 52),
        ]

    def _error_column(self, title: str, field: Literal["error", "own_error"], min_width: int) -> Column[NodeRow]:
        """A column with the errors that `field` selects, sorted by size."""
        return Column(
            title,
            7,
            lambda row: self._error_cell(row, field),
            min_width,
            right_aligned=True,
            key=lambda row: self._error_size(row, field),
        )

    def _error_size(self, row: NodeRow, field: Literal["error", "own_error"]) -> float | None:
        """The error of a node as a number, by which rows are sorted; `None` if it was not compared."""
        numbers = self.state.graph_state.node_numbers.get(row.stable)
        deviation = _deviation_of(numbers, field) if numbers is not None else None
        return numerics.error_size(deviation) if deviation is not None else None

    def _error_cell(self, row: NodeRow, field: Literal["error", "own_error"]) -> Cell:
        """The error of a node; `fused` for a node that has no value of its own. Dim after an edit of the recipe."""
        numbers = self.state.graph_state.node_numbers.get(row.stable)
        if numbers is None:
            return ("", "text")
        deviation = _deviation_of(numbers, field)
        if deviation is None:
            is_fused = field == "error" and numbers.value_state == "fused"
            return (numbers.value_state if is_fused else "", "dim")
        comparison = self.state.graph_state.comparison
        is_stale = comparison is not None and comparison.recipe != self.workspace.recipe
        role = "dim" if is_stale else "number" if deviation.ok else "bad"
        return (numerics.error_text(deviation), role)

    def _time_columns(self) -> list[Column[NodeRow]]:
        """The columns of a profile. `ms?` is the title if the profile is of an earlier recipe."""
        return [
            Column(
                "ms?" if self.state.profile_is_stale else "ms",
                10,
                self._time_cell,
                min_width=44,
                right_aligned=True,
                key=self.seconds,
            ),
            self._profile_column("GFLOP/s", lambda node: rate_text(node.rate), lambda node: node.rate),
            self._profile_column("peak", share_text, lambda node: node.share),
        ]

    def _profile_column(
        self, title: str, text_of: Callable[[TimedNode], str], value_of: Callable[[TimedNode], float]
    ) -> Column[NodeRow]:
        """A column with a number of the profile; empty for nodes without a time of their own."""

        def sort_key(row: NodeRow) -> float | None:
            node = self._own_time(row)
            return value_of(node) or None if node is not None else None

        def cell(row: NodeRow) -> Cell:
            node = self._own_time(row)
            return (text_of(node) if node is not None else "", "dim")

        return Column(title, 7, cell, min_width=90, right_aligned=True, key=sort_key)

    def _own_time(self, row: NodeRow) -> TimedNode | None:
        """The profile of a node; `None` if it was not measured, or is fused into a node whose time includes its own."""
        node = self.times.get(row.stable)
        return node if node is not None and not node.time.into else None

    def _time_cell(self, row: NodeRow) -> Cell:
        node = self.times.get(row.stable)
        text = node_time_text(node.time, self._short_names) if node is not None else ""
        return (text, "dim" if self.state.profile_is_stale or text.startswith("in ") else "number")

    def lowering_of(self, row: NodeRow) -> str:
        """The registry that lowers the node under the current recipe; empty for rows that are not lowered."""
        assignment = self.assignment_of(row)
        if assignment is None:
            return ""
        # Until the recipe is compiled, show its choice for the node. The compiler may be unable to apply the choice.
        is_compiled = self.state.compiled_recipe == self.workspace.recipe
        return assignment.lowering if is_compiled else self._recipe_choice(row) or assignment.lowering

    def _recipe_choice(self, row: NodeRow) -> str:
        """The registry that the recipe selects for the node, or an empty string."""
        return self.workspace.recipe.choice_map().get(row.stable, "")

    def _state_cell(self, row: NodeRow) -> Cell:
        """The mark of a node: failed, in eager, or compiled; empty for rows that are not lowered."""
        problem = self.state.problem
        # A diagnostic names its node by the stable name or by the FX name.
        if problem is not None and problem.node and problem.node in (row.stable, row.name):
            return ("[!]", "bad")
        lowering = self.lowering_of(row)
        if not lowering:
            return ("", "text")
        return ("[ ]", "warn") if lowering == EAGER else ("[x]", "ok")

    def _shown_name(self, row: NodeRow) -> str:
        """The name of a node. In the tree of modules, it lacks the path of the module, which a row above shows."""
        return row.short_name if self.as_tree else row.display_name

    def _name_role(self, row: NodeRow) -> str:
        if row.stable == self.context.selection.node:
            return "linked"
        return "text" if self.assignment_of(row) else "dim"

    def _lowering_cell(self, row: NodeRow) -> Cell:
        lowering = self.lowering_of(row)
        if lowering in ("", EAGER):
            return (lowering or lowerings.opcode_text(row.opcode), "dim")
        assignment = self.assignment_of(row)
        return (lowering, "warn" if assignment is not None and assignment.reason else "accent")

    def precision_of(self, row: NodeRow) -> str:
        """The precision in which the node multiplies under the current recipe; empty if it multiplies no float32."""
        assignment = self.assignment_of(row)
        if assignment is None or not (assignment.multiplies or assignment.precision):
            return ""
        # Until the recipe is compiled, show its choice, which the compiler may be unable to apply.
        recipe = self.workspace.recipe
        if self.state.compiled_recipe == recipe:
            return assignment.precision or F32
        return recipe.precision_of(row.stable)

    def _shown_precision(self, row: NodeRow) -> str:
        """The precision in which the node multiplies; for integers of a quantised program, their type."""
        assignment = self.assignment_of(row)
        return (assignment.integers if assignment is not None else "") or self.precision_of(row)

    def _precision_cell(self, row: NodeRow) -> Cell:
        precision, assignment = self._shown_precision(row), self.assignment_of(row)
        is_rejected = assignment is not None and bool(assignment.precision_reason)
        return (precision, "warn" if is_rejected else "accent" if precision != F32 else "dim")

    def _precision_sort_key(self, row: NodeRow) -> str | None:
        return self._shown_precision(row) or None

    def _reason_cell(self, row: NodeRow) -> Cell:
        """The first reason why the registry that the recipe's dialect prefers does not lower the node."""
        assignment = self.assignment_of(row)
        return (assignment.reason.partition("; ")[0] if assignment else "", "dim")

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
        """The facts about the node under the cursor in the line under the table."""
        assignment = self.assignment_of(row)
        if self.workspace.recipe.is_dump:
            return [(short_location(row.location), "dim")]
        parts = [lowerings.short_target(row.target), role_and_bytes(row), short_location(row.location)]
        if assignment is not None:
            parts += [assignment.reason, assignment.integers, assignment.precision, assignment.precision_reason]
            parts += [f"in @{assignment.function}" if assignment.function else ""]
        return [(f" {self.glyphs.dot} ".join(part for part in parts if part), "dim")]

    def _position_text(self) -> str:
        """The numbers of picked and filtered nodes, the filter, the order, and the position of the cursor."""
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
        """Filter and sort the nodes again. The cursor stays on its node if possible."""
        current = self.current
        self._read_times()
        rows = self.filtered_rows()
        self.picked &= {row.stable for row in self._all_rows()}
        assignments, recipe = self.state.assignments.values(), self.workspace.recipe
        has_low_precision = recipe.precision != F32 or bool(recipe.precisions)
        self._training_memory = training_memory(self.state.info) if self.state.info is not None else None
        self._columns = self._make_columns(
            with_reasons=any(assignment.reason for assignment in assignments),
            with_profile=self.state.profile is not None,
            with_precisions=has_low_precision or any(entry.precision or entry.integers for entry in assignments),
        )
        self.rows = self.order.sorted(rows, self._columns)
        self.update_entries()
        self._restore_cursor(current)
        self.rows_changed()

    def _restore_cursor(self, node: NodeRow | None) -> None:
        """Move the cursor to the row of `node`; for `None`, to the first node that is not an input or weight."""
        if node is not None:
            self.cursor = self.row_of_node(node.stable) or 0
            return
        nodes = ((index, entry) for index, entry in enumerate(self.entries) if isinstance(entry, NodeRow))
        self.cursor = next((index for index, row in nodes if row.opcode not in ("placeholder", "get_attr")), 0)
        if self.rows:
            self.call_after_refresh(self.scroll_to, y=max(0, self.cursor - 2), animate=False, force=True)

    def _read_times(self) -> None:
        """Read the times of the nodes from the profile."""
        rows, report = self._all_rows(), self.state.profile
        self._short_names = {row.stable: row.short_name for row in rows}
        by_name = {row.stable: row for row in rows}
        times = report.nodes if report is not None else ()
        peak = report.peak if report is not None else Peak()
        self.times = {time.node: TimedNode(by_name[time.node], time, peak) for time in times if time.node in by_name}

    def after_move(self) -> None:
        # Called directly instead of by a message, so that the move and the change of the selection are drawn together.
        self.context.selection.select_row(self.current)
        super().after_move()

    def selection_changed(self, previous: str) -> None:
        """Draw the rows again whose marks have changed: the selected node, and the nodes of its Python line."""
        self.refresh_marks()

    def mark_of(self, row: int) -> RowMark:
        entry, selection = self.entries[row], self.context.selection
        if not isinstance(entry, NodeRow):
            return RowMark()
        return RowMark(entry.stable == selection.node, entry.stable in selection.linked_nodes)

    def show_graph(self, node: str) -> None:
        """Show another graph, with the cursor on `node`, or, if it is empty, on the first node that is not an input."""
        self.rows, self.entries, self.cursor, self.picked = [], [], 0, set()
        self.refill()
        if node:
            self.show_node(node)

    def show_node(self, stable: str) -> None:
        """Move the cursor to a node, without a `Moved` message."""
        index = self.row_of_node(stable)
        if index is not None:
            self.center(index, notify=False)

    # ---- actions -------------------------------------------------------------------------------------------------

    def toggle_eager(self) -> None:
        """Run the nodes of `selected_rows` in eager. If all of them run in eager already, compile them."""
        rows = [row for row in self.selected_rows if self._can_toggle(row)]
        if not rows:
            self.say("these nodes can only run in eager")
            return
        compiled = [row for row in rows if self.lowering_of(row) != EAGER]
        rows_to_change = compiled or rows
        recipe = self.workspace.recipe
        for row in rows_to_change:
            recipe = recipe.with_choice(row.stable, EAGER if compiled else self._restored_lowering(row))
        names = rows[0].name if len(rows) == 1 else f"{len(rows_to_change)} nodes"
        self.context.edits.edit(recipe, f"{names} {'in eager' if compiled else 'compiled'}")

    def _can_toggle(self, row: NodeRow) -> bool:
        """Whether a node is compiled, or runs in eager and could be compiled."""
        assignment = self.assignment_of(row)
        return assignment is not None and (assignment.lowering != EAGER or bool(assignment.compiled_choices))

    def _restored_lowering(self, row: NodeRow) -> str | None:
        """The choice to set in the recipe so that a node in eager is compiled; `None` removes the choice of the recipe.

        If the recipe has a choice for the node, it is eager, and is removed. Otherwise, eager is the default lowering
        of the node, so the first other lowering is chosen.
        """
        assignment = self.assignment_of(row)
        choices = assignment.compiled_choices if assignment else []
        return None if self._recipe_choice(row) else next(iter(choices), None)

    def choose_lowering(self) -> None:
        """List the lowerings and the precisions of the node under the cursor, and use the chosen one."""
        row = self.current
        assignment = self.assignment_of(row) if row else None
        if row is None or assignment is None:
            return
        names = dict.fromkeys((*assignment.choices, EAGER))
        choices = [
            PickerChoice(name, lowerings.lowering_summary(name, assignment), name, name == self.lowering_of(row))
            for name in names
        ]
        if assignment.multiplies:
            selected = self.precision_of(row)
            choices += [
                PickerChoice(name, lowerings.PRECISION_TEXTS[name], f"{_PRECISION_PREFIX}{name}", name == selected)
                for name in PRECISIONS
            ]
        subject = "Lowering and precision" if assignment.multiplies else "Lowering"
        default = f"first registry that supports the op ({self.workspace.recipe.dialect}-first)"
        self.app.push_screen(
            PickerScreen(
                f"{subject} of {row.display_name} ({lowerings.short_target(row.target)})",
                [*choices, PickerChoice("reset", default, RESET_CHOICE)],
            ),
            lambda choice: self._use_choice(row, assignment, choice),
        )

    def _use_choice(self, row: NodeRow, assignment: Assignment, choice: str | None) -> None:
        """Set what the user has chosen for `row`: a lowering, a precision, or the defaults; `None` changes nothing.

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
            default = recipe.with_choice(row.stable, None).with_precision(row.stable, None)
            self.context.edits.edit(default, f"{row.display_name}: default lowering")
        elif choice is not None:
            self.context.edits.edit(recipe.with_choice(row.stable, choice), f"{row.display_name}: lowering {choice}")

    def _set_precision(self, row: NodeRow, precision: Precision) -> None:
        """Set the precision of the picked nodes that multiply float32; without picked nodes, that of `row`."""
        recipe = self.workspace.recipe
        picked = [other for other in self.selected_rows if self.precision_of(other)] if self.picked else []
        rows = picked or [row]
        for other in rows:
            recipe = recipe.with_precision(other.stable, None if precision == recipe.precision else precision)
        names = f"{len(rows)} nodes" if len(rows) > 1 else rows[0].display_name
        self.context.edits.edit(recipe, f"{names}: precision {precision}")

    def sort_rows(self) -> None:
        if self.as_tree:
            self.say(f"modules are in the order of the graph: press {key_of('graph.tree')} for the flat table")
        self.refill()

    def open_code(self) -> None:
        """Show the graph as Python code, at the line of the node under the cursor."""
        self.context.jobs.begin_opening("code", self._open_code)

    async def _open_code(self) -> None:
        """Load the code of the graph and the line of the node under the cursor, then open the screen."""
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
        """Show all facts about the node under the cursor."""
        row = self.current
        if row is not None:
            self.app.push_screen(DetailScreen(row.display_name, self._detail_lines(row)))

    def _detail_lines(self, row: NodeRow) -> list[Cells]:
        """The facts about a node that are known, one per line, and the remarks of passes about it."""
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
        """The precision in which a node multiplies, and why not in the recipe's; empty if it multiplies no float32."""
        assignment = self.assignment_of(row)
        if assignment is None:
            return ""
        recipe, precision = self.workspace.recipe, self.precision_of(row)
        return lowerings.precision_summary(row.stable, recipe, assignment, precision, self._gain(row))

    def _time_summary(self, row: NodeRow) -> str:
        """The profile of a node as text; empty if it was not measured."""
        node = self.times.get(row.stable)
        return node_time_summary(node, self._short_names, self.state.profile_is_stale) if node is not None else ""

    def text_to_copy(self) -> str:
        row = self.current
        return f"{row.display_name}\t{row.target}\t{row.args}\t{row.shape}\t{row.dtype}" if row else ""


def _deviation_of(numbers: NodeNumbers, field: Literal["error", "own_error"]) -> Deviation | None:
    return numbers.error if field == "error" else numbers.own_error
