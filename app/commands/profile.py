"""Profiles the program, and shows the profile: flame graph, roofline, instructions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app.actions import key_of
from buddy.app.reports import formatting, profile
from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.app.reports.results import profile_result
from buddy.app.session.stages import StagePosition
from buddy.compiler.protocol import GraphInfo, HotSpot, ProfileReport
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane


# The roofline starts at the lowest operational intensity (of the nodes and of the ridge point) divided by this factor,
# and ends at the highest one multiplied by it.
_ROOF_MARGIN_FACTOR = 2.0


class ProfileCommands:
    """Profiles the current recipe without changing it, and shows the results."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane) -> None:
        self._context, self._graph, self._ir = context, graph, ir
        self._job = context.jobs.single_job("profile", f"a profile is running: press {key_of('cancel')} to stop it")

    def profile_program(self) -> None:
        """Compile the recipe with instrumentation, and run it in the background."""
        if not self._job.may_begin():
            return
        recipe = self._context.workspace.recipe
        self._context.say(f"profiling{self._context.glyphs.ellipsis} press {key_of('cancel')} to cancel")
        self._job.begin(self._profile, recipe)

    async def _profile(self, recipe: Recipe) -> None:
        """Wait for the profile, store it in the state, and show it."""
        progress = self._context.jobs.progress_callback(lambda activity: f"profiling: {activity}")
        request = self._context.session.profile(recipe, progress)
        report = await self._job.result_of(
            request, "not profiled", f"Cancelled. Press {key_of('profile')} to profile again"
        )
        if report is None:
            return
        state = self._context.state
        previous, info = state.graph_state_of(report.graph).profile, state.graphs[report.graph]
        state.record_profile(recipe, report)
        self._context.session.notify(frozenset({"graph"}))
        self._context.results.show(profile_result(report, previous, info))

    def show_flame_graph(self) -> None:
        """Show a flame graph: the time of each `torch.nn` module and of each node in it."""
        from buddy.app.screens.profile import FlameScreen

        profile_and_graph = self._profile_and_graph()
        if profile_and_graph is not None:
            report, info = profile_and_graph
            summary = " ".join(profile.summary_lines(report)[:1])
            self._context.dialogs.open(FlameScreen(profile.flame_tree(report, info), summary), self._go_to_node)

    def show_roofline(self) -> None:
        """Plot the rate of each node under the roofline of the machine."""
        from buddy.app.screens.plot import PlotScreen

        profile_and_graph = self._profile_and_graph()
        if profile_and_graph is None:
            return
        plot = roofline(*profile_and_graph)
        if plot is None:
            self._context.say("no node has both an operation count and a byte count")
            return
        screen = PlotScreen([plot], self._context.glyphs, choose_hint="goes to the node")
        self._context.dialogs.open(screen, self._go_to_named_node)

    def show_hot_spots(self) -> None:
        """List the instructions with the most samples, if the system allows sampling."""
        from buddy.app.screens.profile import HotSpotScreen

        profile_and_graph = self._profile_and_graph()
        if profile_and_graph is None:
            return
        report, info = profile_and_graph
        if not report.sampling.spots:
            self._context.say(profile.sampling_text(report.sampling))
            return
        names = {row.stable: row.display_name for row in info.rows}
        self._context.dialogs.open(HotSpotScreen(report.sampling, names), self._go_to_instruction)

    def _go_to_instruction(self, spot: HotSpot | None) -> None:
        """Go to the assembly line of an instruction, unless the recipe has changed since the profile."""
        if spot is None or spot.line < 0:
            return
        rows = self._context.state.board.rows()
        assembly_row = next((row for row in rows if row.stage.language == "asm"), None)
        if assembly_row is None or self._context.state.profile_is_stale:
            self._context.say(
                f"the profile is out of date, because the recipe changed: press {key_of('profile')} to profile again"
            )
            return
        self._context.layout.show_pane("ir")
        self._ir.jumps.go_to_position(StagePosition(assembly_row.key, spot.line))

    def _profile_and_graph(self) -> tuple[ProfileReport, GraphInfo] | None:
        """The profile of the shown graph, and that graph; `None` without a profile."""
        report, info = self._context.state.profile, self._context.state.info
        return (report, info) if report is not None and info is not None else None

    def _go_to_named_node(self, name: str | None) -> None:
        """Go to the node with this displayed name."""
        info = self._context.state.info
        rows = info.rows if info is not None else ()
        self._go_to_node(next((row.stable for row in rows if row.display_name == name), None))

    def _go_to_node(self, node: str | None) -> None:
        """Go to the node with this stable name. `None` means that the user chose none."""
        if node is not None:
            self._context.layout.show_pane("graph")
            self._graph.go_to_node(node)


def roofline(report: ProfileReport, info: GraphInfo) -> Plot | None:
    """Plots the operations per second of each node over its operations per byte, with the roofline of the machine.

    Returns `None` if no node has both numbers.
    """
    nodes = [node for node in profile.timed_nodes(report, info) if node.rate and node.intensity]
    if not nodes:
        return None
    points = Series(
        "nodes",
        tuple(node.intensity for node in nodes),
        tuple(node.rate / 1e9 for node in nodes),
        "points",
        tuple(node.row.display_name for node in nodes),
    )
    series = (points, _roof(report, nodes)) if report.peak.gflops and report.peak.gbytes else (points,)
    note = "the peak of the machine was not measured"
    if report.peak.gflops:
        note = (
            f"{report.peak.gflops:.0f} GFLOP/s in f32 and {report.peak.gbytes:.1f} GB/s from memory, with "
            f"{formatting.thread_count(report.plain.threads)}; reads from caches can exceed it"
        )
    x = PlotAxis("operations per byte", log=True, format=_three_digits)
    y = PlotAxis("GFLOP/s", log=True, format=_three_digits)
    return Plot("Roofline", series, x, y, note)


def _roof(report: ProfileReport, nodes: list[profile.TimedNode]) -> Series:
    """The roofline: limited by memory bandwidth up to the ridge point, then by peak arithmetic."""
    gflops, gb_per_s = report.peak.gflops, report.peak.gbytes
    ridge = gflops / gb_per_s
    intensities = [node.intensity for node in nodes]
    x = (min(*intensities, ridge) / _ROOF_MARGIN_FACTOR, ridge, max(*intensities, ridge) * _ROOF_MARGIN_FACTOR)
    y = tuple(min(gflops, intensity * gb_per_s) for intensity in x)
    return Series("roof", x, y, names=("memory", "ridge point", "arithmetic"))


def _three_digits(value: float) -> str:
    return f"{value:.3g}"
