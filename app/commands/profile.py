"""Profiling in the workbench: where the time of a run goes, in the graph's table, as a tree, and under the roof."""

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

# The roof reaches this far to both sides of the nodes, and of the edge between memory and arithmetic.
_BEYOND = 2.0


class ProfileCommands:
    """Profiles the recipe on the screen, which stays as it is, and shows what came of it."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane) -> None:
        self._context, self._graph, self._ir = context, graph, ir
        self._job = context.jobs.single("profile", "a profile is being taken: ctrl+c stops it")

    def profile_program(self) -> None:
        """Run the recipe with counters in its code, in the background."""
        if not self._job.may_begin():
            return
        recipe = self._context.workspace.recipe
        self._context.say(f"profiling{self._context.glyphs.ellipsis} ctrl+c cancels")
        self._job.begin(self._profile, recipe)

    async def _profile(self, recipe: Recipe) -> None:
        progress = self._context.jobs.progress(lambda what: f"profiling: {what}")
        report = await self._job.result_of(self._context.session.profile(recipe, progress), "not profiled")
        if report is None:
            return
        self._context.state.profiled(recipe, report)
        self._context.session.changed(frozenset({"graph"}))
        self._context.say(
            f"{profile.summary_lines(report)[0]}; g C shows modules, g R the roof, g H instructions, s sorts"
        )

    def show_flame(self) -> None:
        """The modules with their times."""
        from buddy.app.screens.flame import FlameScreen

        found = self._found()
        if found is not None:
            report, info = found
            story = " ".join(profile.summary_lines(report)[:1])
            self._context.dialogs.open(FlameScreen(profile.flame_tree(report, info), story), self._go)

    def show_roofline(self) -> None:
        """What nodes reach, under the roof of what the machine can do."""
        from buddy.app.screens.plot import PlotScreen

        found = self._found()
        plot = roofline(*found) if found is not None else None
        if plot is not None:
            self._context.dialogs.open(
                PlotScreen([plot], self._context.glyphs, chooses="goes to the node"), self._go_named
            )
        elif found is not None:
            self._context.say("of no node both operations and bytes are known")

    def show_hot(self) -> None:
        """The instructions that take the time, as far as the system lets them be sampled."""
        from buddy.app.screens.hot_spots import HotSpotScreen

        found = self._found()
        if found is None:
            return
        report, info = found
        if not report.sampling.spots:
            self._context.say(profile.sampling_text(report.sampling))
            return
        names = {row.stable: row.name for row in info.rows}
        self._context.dialogs.open(HotSpotScreen(report.sampling, names), self._go_instruction)

    def _go_instruction(self, spot: HotSpot | None) -> None:
        """The line of the assembly on the screen, which is that of the profile unless the recipe was edited since."""
        rows = self._context.state.board.rows()
        stage = next((row for row in rows if row.stage.language == "asm"), None)
        if spot is None or spot.line < 0:
            return
        if stage is None or self._context.state.profile_is_stale:
            self._context.say("the recipe has been edited since: g c profiles it as it stands")
            return
        self._context.layout.show_pane("ir")
        self._ir.jumps.go_from_here(StagePosition(stage.key, spot.line))

    def _found(self) -> tuple[ProfileReport, GraphInfo] | None:
        report, info = self._context.state.profile, self._context.state.info
        return (report, info) if report is not None and info is not None else None

    def _go_named(self, name: str | None) -> None:
        info = self._context.state.info
        rows = info.rows if info is not None else ()
        self._go(next((row.stable for row in rows if row.name == name), None))

    def _go(self, node: str | None) -> None:
        if node is not None:
            self._context.layout.show_pane("graph")
            self._graph.go_to_node(node)


def roofline(report: ProfileReport, info: GraphInfo) -> Plot | None:
    """Operations a second over operations a byte, the roof over both; `None` where no node has a place."""
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
        f"{report.peak.gflops:.0f} GFLOP/s in f32 and {report.peak.gbytes:.1f} GB/s from memory, on "
        f"{formatting.thread_count(report.plain.threads)}; data in caches come faster"
    )
    x, y = PlotAxis("operations a byte", log=True, told=_short), PlotAxis("GFLOP/s", log=True, told=_short)
    return Plot("Roofline", series, x, y, note if report.peak.gflops else "what the machine can do was not measured")


def _roof(report: ProfileReport, nodes: list[profile.TimedNode]) -> Series:
    """The most that memory lets through, up to the most that arithmetic does."""
    gflops, gbytes = report.peak.gflops, report.peak.gbytes
    edge = gflops / gbytes
    reached = [each.intensity for each in nodes]
    x = (min(*reached, edge) / _BEYOND, edge, max(*reached, edge) * _BEYOND)
    return Series("roof", x, tuple(min(gflops, at * gbytes) for at in x), names=("memory", "edge", "arithmetic"))


def _short(value: float) -> str:
    return f"{value:.3g}"
