"""The table that compares every node with eager: the first mismatch is at the top, then come the largest errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType

from buddy.app.reports import numerics
from buddy.app.reports.nodes import short_target
from buddy.app.reports.results import GoToNode, Result, ResultAnswer, numerics_result
from buddy.app.screens.modal import TableScreen
from buddy.app.session.requests import Requester
from buddy.app.widgets.look import Cell
from buddy.app.widgets.table import Column
from buddy.compiler.protocol import Frame, GraphInfo, Progress
from buddy.compiler.protocol.numerics import Deviation, NodeNumbers, NumericsReport, Reference
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.session.session import Session


class NumericsScreen(TableScreen[NodeNumbers]):
    """A table of nodes with errors. Returns the stable name of the chosen node, or `None`.

    Shows the latest comparison of `recipe`, or else starts one. `info` is the graph. `log` is called with the result
    of each comparison. Closing the screen cancels a running comparison.
    """

    TITLE_TEXT = "Every node compared with eager"
    KEYS_TEXT = (
        "enter node, i by op, module and line, d compares with double precision, e eager, p plot, s sorts, q closes"
    )
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "compare('float64')", "Double precision", show=False),
        Binding("e", "compare('eager')", "Eager", show=False),
        Binding("p", "plot", "Plot", show=False),
        Binding("i", "summarize", "Summary", show=False),
    ]

    def __init__(
        self, session: Session, recipe: Recipe, info: GraphInfo, log: Callable[[Result], object] = lambda _: None
    ) -> None:
        self._session, self._recipe, self._info, self._log = session, recipe, info, log
        self._rows = numerics.rows_by_stable_name(info)
        # The report on the screen, and the report of the comparison before it.
        self._report: NumericsReport | None = None
        self._previous_report: NumericsReport | None = None
        super().__init__(self._columns())

    def on_mount(self) -> None:
        latest = self._session.state.graph_state_of(self._recipe.graph).comparison
        if latest is not None and latest.recipe == self._recipe:
            self._show_report(latest.report)
        else:
            self._compare("eager")

    def _columns(self) -> list[Column[NodeNumbers]]:
        return [
            Column(
                "#",
                4,
                lambda row: (str(self._index(row)), "number"),
                right_aligned=True,
                key=self._index,
                starts_ascending=True,
            ),
            Column("node", 0, lambda row: (self._node_name(row), "text" if row.ok else "bad")),
            Column("target", 20, lambda row: (short_target(self._rows[row.node].target), "dim"), min_width=92),
            Column("shape", 13, lambda row: (self._rows[row.node].shape, "syntax:number"), min_width=72),
            Column("value", 12, lambda row: (row.value_state, "dim")),
            Column(
                "err",
                7,
                lambda row: _error_cell(row.error),
                right_aligned=True,
                key=lambda row: _error_size(row.error),
            ),
            Column(
                "own",
                7,
                lambda row: _error_cell(row.own_error),
                right_aligned=True,
                key=lambda row: _error_size(row.own_error),
            ),
            Column(
                "of tolerance",
                12,
                lambda row: (numerics.tolerance_multiple_text(_largest_deviation(row)), "dim"),
                min_width=50,
                right_aligned=True,
                key=_largest_multiple,
            ),
        ]

    def _index(self, row: NodeNumbers) -> int:
        """The number of the node in the graph."""
        return self._rows[row.node].index

    def _node_name(self, row: NodeNumbers) -> str:
        return self._rows[row.node].name

    def foot_text(self, row: NodeNumbers) -> str:
        """The summary of the report. If the cursor is not on the first mismatch, only the first line of the summary."""
        if self._report is None:
            return ""
        summary = numerics.summary_lines(self._report, self._info)
        return ". ".join(summary[:3]) if self._report.first in ("", row.node) else summary[0]

    @work(exclusive=True, group="numerics")
    async def _compare(self, reference: Reference) -> None:
        """Compares all nodes with `reference`, then shows the report and adds it to the log."""
        self.show_progress("compiling")
        latest = self._session.state.graph_state_of(self._recipe.graph).comparison
        request = self._session.compare_nodes(self._recipe, reference, self._show_frame)
        report = await Requester(self._session, self.show_progress).await_answer(request)
        if report is not None:
            self._previous_report = latest.report if latest is not None else None
            self._show_report(report)
            self._log(numerics_result(report, self._previous_report, self._info))

    def _show_frame(self, frame: Frame) -> None:
        if isinstance(frame, Progress):
            self.show_progress(frame.activity)

    def _show_report(self, report: NumericsReport) -> None:
        """Shows how many nodes are out of tolerance in the title, and the nodes in the table."""
        self._report = report
        n_mismatches = sum(not node.ok for node in report.nodes)
        if n_mismatches:
            summary = f"{n_mismatches} of {len(report.nodes)} nodes out of tolerance"
        else:
            summary = "all nodes within tolerance"
        self.show_progress(f"{summary} (compared with {numerics.REFERENCES[report.reference]})")
        self._show_rows()

    def _show_rows(self) -> None:
        """Shows the nodes of the report: the first one out of tolerance, then the others, the worst first."""
        assert self._report is not None
        rows = numerics.worst_nodes(self._report, len(self._report.nodes))
        self.show([row for row in rows if row.node in self._rows])

    def action_compare(self, reference: Reference) -> None:
        self._compare(reference)

    def action_choose(self) -> None:
        if self.current is not None:
            self.dismiss(self.current.node)

    def action_summarize(self) -> None:
        """Shows the largest errors by op kind, module and source line."""
        if self._report is not None:
            from buddy.app.screens.results import ResultScreen

            result = numerics_result(self._report, self._previous_report, self._info)
            self.app.push_screen(ResultScreen(result), self._use_answer)

    def _use_answer(self, answer: ResultAnswer | None) -> None:
        if isinstance(answer, GoToNode):
            self.dismiss(answer.name)

    def action_plot(self) -> None:
        if self._report is None:
            return
        from buddy.app.screens.plot import PlotScreen

        plot = numerics.error_growth(self._report, self._info)
        screen = PlotScreen([plot], self._table.glyphs, choose_hint="goes to the node")
        self.app.push_screen(screen, self._choose_point)

    def _choose_point(self, name: str | None) -> None:
        """Closes with the node of the point that the user has chosen in the plot."""
        node = next((row.stable for row in self._rows.values() if row.display_name == name), None)
        if node is not None:
            self.dismiss(node)


def _error_cell(deviation: Deviation | None) -> Cell:
    role = "number" if deviation is None or deviation.ok else "bad"
    return (numerics.error_text(deviation), role)


def _error_size(deviation: Deviation | None) -> float | None:
    """Returns the size of an error, by which rows are sorted; `None` if the error was not measured."""
    return numerics.error_size(deviation) if deviation is not None else None


def _largest_deviation(node: NodeNumbers) -> Deviation | None:
    """Returns the error or the own error of a node, whichever is the larger multiple of its tolerance, if measured."""
    deviations = [deviation for deviation in (node.error, node.own_error) if deviation is not None]
    return max(deviations, key=numerics.tolerance_multiple, default=None)


def _largest_multiple(node: NodeNumbers) -> float | None:
    """Returns `_largest_deviation` as a multiple of its tolerance; `None` without one."""
    deviation = _largest_deviation(node)
    return numerics.tolerance_multiple(deviation) if deviation is not None else None
