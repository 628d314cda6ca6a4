"""The columns of the graph pane, and the facts about nodes that they show: lowerings, precisions, errors, times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.node_table import NodeTable
from buddy.app.reports import nodes, numerics
from buddy.app.reports.formatting import short_location
from buddy.app.reports.nodes import TrainingMemory, node_bytes
from buddy.app.reports.profile import TimedNode, node_time_text, rate_text, share_text
from buddy.app.widgets.look import Cell
from buddy.app.widgets.table import Column
from buddy.compiler.protocol import NodeRow, Peak
from buddy.compiler.protocol.numerics import Deviation, NodeNumbers
from buddy.compiler.protocol.recipe import EAGER, F32


class NodeColumns(NodeTable):
    """A table of nodes with the columns whose values are known. `GraphPane` adds the actions."""

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        # The names of nodes without the paths of their modules, by stable name.
        self._short_names: dict[str, str] = {}
        # The bytes that a graph of training saves and recomputes; `None` for other graphs.
        self._training_memory: TrainingMemory | None = None
        self._columns = self._make_columns()

    # ---- all columns ---------------------------------------------------------------------------------------------

    def _make_columns(
        self, *, with_reasons: bool = False, with_profile: bool = False, with_precisions: bool = False
    ) -> list[Column[NodeRow]]:
        """Returns the columns.

        `with_reasons` adds the reasons why nodes are not lowered by the first registry, `with_profile` the numbers of a
        profile, and `with_precisions` the precisions in which nodes multiply. Columns for errors and for training are
        added if the graph has them.
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
                lambda row: (nodes.short_target(row.target), "dim"),
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

    def _number_cell(self, row: NodeRow) -> Cell:
        return (str(row.index), self.context.selection.colour_of((row.stable,)) or "number")

    # ---- training, precisions and errors -------------------------------------------------------------------------

    def _training_column(self) -> Column[NodeRow]:
        """The role of nodes in training: saved for the backward graph, read again by it, or recomputed."""

        def cell(row: NodeRow) -> Cell:
            return (row.training, {"saved": "accent", "recomputed": "warn"}.get(row.training, "dim"))

        return Column("training", 10, cell, min_width=52, key=lambda row: row.training or None)

    def _precision_columns(self) -> list[Column[NodeRow]]:
        """The columns with the precision in which nodes multiply, and, if measured, its error and the time it saves."""
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
        """A column with one of the two numbers of `PrecisionGain`, which `value_of` returns, and `text_of` as text."""

        def cell(row: NodeRow) -> Cell:
            return (text_of(self._gain(row)), "number")

        return Column(title, 8, cell, min_width=68, right_aligned=True, key=lambda row: value_of(self._gain(row)))

    def _gain(self, row: NodeRow) -> numerics.PrecisionGain:
        """The error of a node in a low precision, and the time that the precision saves, if they are measured."""
        precision, state, node = self.precision_of(row), self.state.graph_state, row.stable
        if precision in ("", F32):
            return numerics.PrecisionGain(None, False, None)
        timed_node, profiled_recipe = self._own_time(row), state.profiled_recipe
        seconds = None
        # Only the profile of a recipe with the same precision of the node has the node's time in this precision.
        if timed_node is not None and profiled_recipe is not None and profiled_recipe.precision_of(node) == precision:
            seconds = timed_node.time.seconds
        return numerics.precision_gain(
            precision, state.node_numbers.get(node), state.f32_seconds.get(node), seconds, state.precisions.get(node)
        )

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
        """The error of a node, dim after an edit of the recipe; `fused` for a node without a value of its own."""
        numbers = self.state.graph_state.node_numbers.get(row.stable)
        if numbers is None:
            return ("", "text")
        deviation = _deviation_of(numbers, field)
        if deviation is None:
            is_fused = field == "error" and numbers.value_state == "fused"
            return (numbers.value_state if is_fused else "", "dim")
        comparison = self.state.graph_state.comparison
        if comparison is not None and comparison.recipe != self.workspace.recipe:
            return (numerics.error_text(deviation), "dim")
        return (numerics.error_text(deviation), "number" if deviation.ok else "bad")

    # ---- times ---------------------------------------------------------------------------------------------------

    def _read_times(self) -> None:
        """Sets `times` from the profile, and `_short_names`."""
        rows, report = self._all_rows(), self.state.profile
        self._short_names = {row.stable: row.short_name for row in rows}
        row_of = {row.stable: row for row in rows}
        times = report.nodes if report is not None else ()
        peak = report.peak if report is not None else Peak()
        self.times = {time.node: TimedNode(row_of[time.node], time, peak) for time in times if time.node in row_of}

    def _time_columns(self) -> list[Column[NodeRow]]:
        """The columns of a profile. The title `ms?` means that the profile is of an earlier recipe."""
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
            # 0 means that the number is unknown.
            return (value_of(node) or None) if node is not None else None

        def cell(row: NodeRow) -> Cell:
            node = self._own_time(row)
            return (text_of(node) if node is not None else "", "dim")

        return Column(title, 7, cell, min_width=90, right_aligned=True, key=sort_key)

    def _own_time(self, row: NodeRow) -> TimedNode | None:
        """The time of a node; `None` if it was not measured, or if the node is fused into another one."""
        node = self.times.get(row.stable)
        return node if node is not None and not node.time.into else None

    def _time_cell(self, row: NodeRow) -> Cell:
        node = self.times.get(row.stable)
        text = node_time_text(node.time, self._short_names) if node is not None else ""
        return (text, "dim" if self.state.profile_is_stale or text.startswith("in ") else "number")

    # ---- lowerings, and the precisions of the recipe -------------------------------------------------------------

    def lowering_of(self, row: NodeRow) -> str:
        """The registry that lowers the node under the current recipe; empty for rows that are not lowered."""
        assignment = self.assignment_of(row)
        if assignment is None:
            return ""
        if self.state.compiled_recipe == self.workspace.recipe:
            return assignment.lowering
        # Until the recipe is compiled, show its choice for the node. The compiler may be unable to apply the choice.
        return self._recipe_choice(row) or assignment.lowering

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
            return (lowering or nodes.opcode_text(row.opcode), "dim")
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
        """The precision in which the node multiplies; the integer type for a node of a quantised program."""
        assignment = self.assignment_of(row)
        return (assignment.integers if assignment is not None else "") or self.precision_of(row)

    def _precision_cell(self, row: NodeRow) -> Cell:
        precision, assignment = self._shown_precision(row), self.assignment_of(row)
        is_rejected = assignment is not None and bool(assignment.precision_reason)
        if is_rejected:
            return (precision, "warn")
        return (precision, "accent" if precision != F32 else "dim")

    def _precision_sort_key(self, row: NodeRow) -> str | None:
        return self._shown_precision(row) or None

    def _reason_cell(self, row: NodeRow) -> Cell:
        """The first reason why the registry that the recipe's dialect prefers does not lower the node."""
        assignment = self.assignment_of(row)
        return (assignment.reason.partition("; ")[0] if assignment else "", "dim")


def _deviation_of(numbers: NodeNumbers, field: Literal["error", "own_error"]) -> Deviation | None:
    """Returns the deviation of a node from eager: in the program, or (`own_error`) if the node is compiled alone."""
    return numbers.error if field == "error" else numbers.own_error
