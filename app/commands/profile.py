"""Profiling: the time of each node in the graph table, as a tree of modules, and as a roofline plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app.reports import formatting, profile
from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.app.session.stages import StagePosition
from buddy.compiler.protocol import GraphInfo, HotSpot, ProfileReport
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane

# The factor by which the roofline extends beyond the nodes and beyond its ridge point.
_ROOF_MARGIN = 2.0


class ProfileCommands:
    """Profiles the current recipe without changing it, and shows the results."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane) -> None:
        self._context, self._graph, self._ir = context, graph, ir
        self._job = context.jobs.single("profile", "a profile is running: press ctrl+c to stop it")

    def profile_program(self) -> None:
        """Run instrumented code of the recipe in the background."""
        if not self._job.may_begin():
            return
        recipe = self._context.workspace.recipe
        self._context.say(f"profiling{self._context.glyphs.ellipsis} press ctrl+c to cancel")
        self._job.begin(self._profile, recipe)

    async def _profile(self, recipe: Recipe) -> None:
        progress = self._context.jobs.progress(lambda what: f"profiling: {what}")
        report = await self._job.result_of(self._context.session.profile(recipe, progress), "not profiled")
        if report is None:
            return
        self._context.state.record_profile(recipe, report)
        self._context.session.changed(frozenset({"graph"}))
        self._context.say(
            f"{profile.summary_lines(report)[0]}; g C: modules, g R: roofline, g H: instructions, s: sort"
        )

    def show_flame(self) -> None:
        """Show the time of each module."""
        from buddy.app.screens.flame import FlameScreen

        found = self._profile_and_graph()
        if found is not None:
            report, info = found
            story = " ".join(profile.summary_lines(report)[:1])
            self._context.dialogs.open(FlameScreen(profile.flame_tree(report, info), story), self._go_to_node)

    def show_roofline(self) -> None:
        """Plot the rate of each node under the roofline of the machine."""
        from buddy.app.screens.plot import PlotScreen

        found = self._profile_and_graph()
        plot = roofline(*found) if found is not None else None
        if plot is not None:
            self._context.dialogs.open(
                PlotScreen([plot], self._context.glyphs, chooses="goes to the node"), self._go_to_named_node
            )
        elif found is not None:
            self._context.say("no node has both an operation count and a byte count")

    def show_hot(self) -> None:
        """List the instructions with the most samples, if the system allows sampling."""
        from buddy.app.screens.hot_spots import HotSpotScreen

        found = self._profile_and_graph()
        if found is None:
            return
        report, info = found
        if not report.sampling.spots:
            self._context.say(profile.sampling_text(report.sampling))
            return
        names = {row.stable: row.name for row in info.rows}
        self._context.dialogs.open(HotSpotScreen(report.sampling, names), self._go_to_instruction)

    def _go_to_instruction(self, spot: HotSpot | None) -> None:
        """Go to the assembly line of an instruction, unless the recipe has changed since the profile."""
        rows = self._context.state.board.rows()
        stage = next((row for row in rows if row.stage.language == "asm"), None)
        if spot is None or spot.line < 0:
            return
        if stage is None or self._context.state.profile_is_stale:
            self._context.say("the profile is out of date, because the recipe changed: press g c to profile again")
            return
        self._context.layout.show_pane("ir")
        self._ir.jumps.go_from_here(StagePosition(stage.key, spot.line))

    def _profile_and_graph(self) -> tuple[ProfileReport, GraphInfo] | None:
        report, info = self._context.state.profile, self._context.state.info
        return (report, info) if report is not None and info is not None else None

    def _go_to_named_node(self, name: str | None) -> None:
        info = self._context.state.info
        rows = info.rows if info is not None else ()
        self._go_to_node(next((row.stable for row in rows if row.name == name), None))

    def _go_to_node(self, node: str | None) -> None:
        if node is not None:
            self._context.layout.show_pane("graph")
            self._graph.go_to_node(node)


def roofline(report: ProfileReport, info: GraphInfo) -> Plot | None:
    """Plots operations per second over operations per byte, with the roofline; `None` if no node has both."""
    nodes = [each for each in profile.timed_nodes(report, info) if each.rate and each.intensity]
    if not nodes:
        return None
    reached = Series(
        "nodes",
        tuple(each.intensity for each in nodes),
        tuple(each.rate / 1e9 for each in nodes),
        "points",
        tuple(each.row.name for each in nodes),
    )
    series = (reached, _roof(report, nodes)) if report.peak.gflops and report.peak.gbytes else (reached,)
    note = (
        f"{report.peak.gflops:.0f} GFLOP/s in f32 and {report.peak.gbytes:.1f} GB/s from memory, with "
        f"{formatting.thread_count(report.plain.threads)}; caches are faster"
    )
    x, y = (
        PlotAxis("operations per byte", log=True, format=_three_digits),
        PlotAxis("GFLOP/s", log=True, format=_three_digits),
    )
    return Plot("Roofline", series, x, y, note if report.peak.gflops else "the peak of the machine was not measured")


def _roof(report: ProfileReport, nodes: list[profile.TimedNode]) -> Series:
    """The roofline: limited by memory bandwidth up to the ridge point, then by peak arithmetic."""
    gflops, gbytes = report.peak.gflops, report.peak.gbytes
    edge = gflops / gbytes
    reached = [each.intensity for each in nodes]
    x = (min(*reached, edge) / _ROOF_MARGIN, edge, max(*reached, edge) * _ROOF_MARGIN)
    return Series("roof", x, tuple(min(gflops, at * gbytes) for at in x), names=("memory", "edge", "arithmetic"))


def _three_digits(value: float) -> str:
    return f"{value:.3g}"
