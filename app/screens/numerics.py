"""Every node compared with eager, in the background. The first mismatch is at the top."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType

from buddy.app.panes.graph import short_target
from buddy.app.panes.pane import Column
from buddy.app.reports import numerics
from buddy.app.screens.tables import TableScreen
from buddy.app.session.requests import Requester
from buddy.app.widgets.look import Cell
from buddy.compiler.protocol import Frame, GraphInfo, Progress
from buddy.compiler.protocol.numerics import Deviation, NodeNumbers, NumericsReport, Reference
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.session.session import Session


class NumericsScreen(TableScreen[NodeNumbers]):
    """Returns the stable name of the chosen node, or `None`. Closing the screen cancels a running comparison."""

    TITLE_TEXT = "Every node compared with eager"
    KEYS_TEXT = "enter goes to the node, d double, e eager, p plot, s order, q closes"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("d", "compare('float64')", "Double precision", show=False),
        Binding("e", "compare('eager')", "Eager", show=False),
        Binding("p", "plot", "Plot", show=False),
        Binding("s", "order", "Order", show=False),
    ]

    def __init__(self, session: Session, recipe: Recipe, info: GraphInfo) -> None:
        self._session, self._recipe, self._info = session, recipe, info
        self._rows = numerics.rows_of(info)
        self._report: NumericsReport | None = None
        self._in_graph_order = False
        super().__init__(self._columns())

    def on_mount(self) -> None:
        known = self._session.state.of(self._recipe.graph).numerics
        if known is not None and known[0] == self._recipe:
            self._show_report(known[1])
        else:
            self._compare("eager")

    def _columns(self) -> list[Column[NodeNumbers]]:
        return [
            Column("node", 0, lambda found: (self._node_name(found), "text" if found.ok else "bad")),
            Column("target", 20, lambda found: (short_target(self._rows[found.node].target), "dim"), since=92),
            Column("shape", 13, lambda found: (self._rows[found.node].shape, "syntax:number"), since=72),
            Column("value", 12, lambda found: (found.seen, "dim")),
            Column("err", 7, lambda found: _cell(found.error), right=True),
            Column("own", 7, lambda found: _cell(found.own), right=True),
            Column("of tolerance", 12, lambda found: (_share(found), "dim"), since=50, right=True),
        ]

    def _node_name(self, found: NodeNumbers) -> str:
        return self._rows[found.node].name

    def about(self, row: NodeNumbers) -> str:
        if self._report is None:
            return ""
        told = numerics.summary_lines(self._report, self._info)
        return ". ".join(told[:3]) if row.node == self._report.first or not self._report.first else told[0]

    @work(exclusive=True, group="numerics")
    async def _compare(self, reference: Reference) -> None:
        self.show_progress("compiling")
        request = self._session.compare_nodes(self._recipe, reference, self._progress)
        report = await Requester(self._session, self.show_progress).answered(request)
        if report is not None:
            self._show_report(report)

    def _progress(self, frame: Frame) -> None:
        if isinstance(frame, Progress):
            self.show_progress(frame.what)

    def _show_report(self, report: NumericsReport) -> None:
        self._report = report
        wrong = sum(not found.ok for found in report.nodes)
        beside = numerics.REFERENCES[report.reference]
        self.show_progress(
            f"{wrong} of {len(report.nodes)} nodes out of tolerance ({beside})"
            if wrong
            else f"all nodes within tolerance ({beside})"
        )
        self._show()

    def _show(self) -> None:
        assert self._report is not None
        count = len(self._report.nodes)
        rows = numerics.worst_nodes(self._report, count)
        known = [found for found in rows if found.node in self._rows]
        self.show(sorted(known, key=lambda found: self._rows[found.node].index) if self._in_graph_order else known)

    def action_compare(self, reference: Reference) -> None:
        self._compare(reference)

    def action_order(self) -> None:
        """Sort by error, or in graph order."""
        self._in_graph_order = not self._in_graph_order
        if self._report is not None:
            self._show()

    def action_choose(self) -> None:
        if self.current is not None:
            self.dismiss(self.current.node)

    def action_plot(self) -> None:
        if self._report is None:
            return
        from buddy.app.screens.plot import PlotScreen

        plot = numerics.error_growth(self._report, self._info)
        screen = PlotScreen([plot], self._table.glyphs, chooses="goes to the node")
        self.app.push_screen(screen, self._point_chosen)

    def _point_chosen(self, name: str | None) -> None:
        found = next((row.stable for row in self._rows.values() if row.name == name), None)
        if found is not None:
            self.dismiss(found)


def _cell(found: Deviation | None) -> Cell:
    role = "number" if found is None or found.ok else "bad"
    return (numerics.error_text(found), role)


def _share(found: NodeNumbers) -> str:
    worst = max((d for d in (found.error, found.own) if d is not None), key=lambda d: d.share, default=None)
    return numerics.share_text(worst)
