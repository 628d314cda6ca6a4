"""Comparison of two recipes, and profiles of a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from buddy.app.panes.ir_comparison import ComparedStages, Side
from buddy.app.reports import formatting, profile
from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.app.session.stages import StagePosition
from buddy.app.workspace.inputs import parse_path, read_file
from buddy.compiler.protocol import GraphInfo, HotSpot, ProfileReport
from buddy.compiler.protocol.recipe import Recipe, claims, from_toml, refusal

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane


class CompareCommands:
    """Compiles other recipes for a comparison. The current recipe does not change."""

    def __init__(self, context: WorkbenchContext, ir: IrPane) -> None:
        self._context, self._ir = context, ir

    def sides(self) -> list[tuple[Side, str]]:
        """The recipes that can be compared with the current one, each with a description."""
        workspace, state = self._context.workspace, self._context.state
        mine, now = workspace.recipe, "compare later edits with the current state"
        found = [(Side("the current recipe", mine), now)]
        found += [
            (Side(f"preset {preset.name}", workspace.from_preset(preset.recipe)), preset.summary)
            for preset in state.presets
        ]
        found += [
            (Side(f"after: {edit.title}" if edit.title else "the first recipe", edit.recipe), "an earlier edit")
            for edit in workspace.edits
        ]
        found += [
            (Side(f"graph {number}, {info.name}", workspace.recipe_of(number)), f"{len(info.rows)} nodes, its recipe")
            for number, info in enumerate(state.graphs)
            if number != state.graph
        ]
        return found

    def choose_other(self) -> None:
        """Ask for the other recipe, compile it, and show the differences of each stage."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(side.title, what, side) for side, what in self.sides()]
        choices.append(PickerChoice("a recipe file", "as for `buddy-tui run --recipe`", "file"))
        self._context.dialogs.open(PickerScreen("Compare with", choices), self._compare_with_choice)

    def _compare_with_choice(self, side: Side | Literal["file"] | None) -> None:
        if side == "file":
            self._context.dialogs.ask("compare with the recipe in", "", self._compare_with_file)
        elif side is not None:
            self.compare_with(side)

    def _compare_with_file(self, path: str) -> None:
        if not path.strip():
            return
        try:
            found = from_toml(read_file(parse_path(path)))
        except (OSError, ValueError) as error:
            self._context.say(f"{path.strip()}: {getattr(error, 'strerror', None) or error}")
            return
        # The plug-ins of the file are not used (see below), so they need no trust.
        asked = claims(replace(found, plugins=()))
        if asked and not self._context.session.trusts:
            self._context.say(f"{path.strip()} is rejected: {refusal(asked)}")
            return
        mine = self._context.workspace.recipe
        # Plug-ins are code: use those that the user has loaded, not those that the file names.
        side = replace(found, source=mine.source, arguments=mine.arguments, graph=mine.graph, plugins=mine.plugins)
        self.compare_with(Side(Path(path.strip()).name, side))

    def compare_with(self, side: Side) -> None:
        """Compile `side` in the background, then show the differences in the IR pane."""
        self._context.say(f"compiling {side.title}{self._context.glyphs.ellipsis} press ctrl+c to cancel")
        self._context.jobs.begin("versus", self._compile_and_compare, side)

    async def _compile_and_compare(self, side: Side) -> None:
        compiled = await self._context.jobs.result_of(
            self._context.session.compile_for_comparison(side.recipe), side.title
        )
        if compiled is not None:
            self._context.layout.show_pane("ir")
            self._ir.comparison.compare_with(ComparedStages(side.title, compiled.stages))

    def compare_presets(self) -> None:
        """Compile the program with every suitable preset, and compare the measurements."""
        from buddy.app.screens.presets import PresetsScreen

        mine, presets = self._context.workspace.recipe, self._context.state.presets
        sides = [
            (preset.name, self._context.workspace.from_preset(preset.recipe))
            for preset in presets
            if preset.suits(mine)
        ]
        if mine not in [recipe for _, recipe in sides]:
            sides.insert(0, ("(as edited)", mine))
        self._context.dialogs.open(PresetsScreen(self._context.session, sides), self._use_preset_answer)

    def _use_preset_answer(self, answer: tuple[str, Side] | None) -> None:
        if answer is None:
            return
        act, side = answer
        if act == "compare":
            self.compare_with(side)
        else:
            self._context.edits.edit(side.recipe, f"preset {side.title}")


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
        self._context.session.notify(frozenset({"graph"}))
        self._context.say(
            f"{profile.summary_lines(report)[0]}; g C: modules, g R: roofline, g H: instructions, s: sort"
        )

    def show_flame(self) -> None:
        """Show the time of each module."""
        from buddy.app.screens.profile import FlameScreen

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
        from buddy.app.screens.profile import HotSpotScreen

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
