"""Profiles the program, shows the profile as flame graph, roofline and instructions, and tunes the recipe."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from buddy.app.actions import key_of
from buddy.app.reports import formatting, profile
from buddy.app.reports.plots import Plot, PlotAxis, Series
from buddy.app.reports.results import PLOT, USE, precisions_result, profile_result, tuning_result
from buddy.app.reports.searches import VariationError, attempt_line, error_time_plot, read_variation, tuning_plot
from buddy.app.session.stages import StagePosition
from buddy.compiler.protocol import Attempted, GraphInfo, HotSpot, ProfileReport, Tune, Tuned, Variation
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.searches import default_seconds

if TYPE_CHECKING:
    from buddy.app.commands.graphs import GraphCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane


# ---- profile ---------------------------------------------------------------------------------------------------------


# The roofline extends by this factor below the lowest and above the highest operational intensity of the nodes and the
# ridge point.
_ROOF_MARGIN_FACTOR = 2.0


class ProfileCommands:
    """Profiles the current recipe without changing it, and shows the results."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane) -> None:
        self._context, self._graph, self._ir = context, graph, ir
        self._job = context.jobs.single_job("profile", f"a profile is running: press {key_of('cancel')} to stop it")

    def profile_program(self) -> None:
        """Compiles the recipe with instrumentation, and runs it in the background."""
        if not self._job.may_begin():
            return
        recipe = self._context.workspace.recipe
        self._context.say(f"profiling{self._context.glyphs.ellipsis} press {key_of('cancel')} to cancel")
        self._job.begin(self._profile, recipe)

    async def _profile(self, recipe: Recipe) -> None:
        """Waits for the profile, stores it in the state, and shows it."""
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
        """Shows a flame graph: the time of each `torch.nn` module and of each node in it."""
        from buddy.app.screens.profile import FlameScreen

        profile_and_graph = self._profile_and_graph()
        if profile_and_graph is not None:
            report, info = profile_and_graph
            summary = " ".join(profile.summary_lines(report)[:1])
            self._context.dialogs.open(FlameScreen(profile.flame_tree(report, info), summary), self._go_to_node)

    def show_roofline(self) -> None:
        """Plots the rate of each node under the roofline of the machine."""
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
        """Lists the instructions with the most samples, if the system allows sampling."""
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
        """Goes to the assembly line of an instruction, unless the recipe has changed since the profile."""
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
        """Goes to the node with this displayed name."""
        info = self._context.state.info
        rows = info.rows if info is not None else ()
        self._go_to_node(next((row.stable for row in rows if row.display_name == name), None))

    def _go_to_node(self, node: str | None) -> None:
        """Goes to the node with this stable name. `None` means that the user chose none."""
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


# ---- search for the fastest recipe -----------------------------------------------------------------------------------


_TUNE_PROMPT = (
    "seconds, then SETTING=VALUE,VALUE … to vary (default: block sizes, passes), or max-error=1e-2 for precisions"
)
_MAX_ERROR = "max-error"
# Longer than any search that a user waits for: 11 days.
_MAX_SECONDS = 1e6


class TuneCommands:
    """Searches for the fastest variation of the current recipe. The recipe changes only if the user accepts it."""

    def __init__(self, context: WorkbenchContext, graphs: GraphCommands) -> None:
        self._context, self._graphs = context, graphs
        # The recipes that the running search, or else the latest one, has tried.
        self._attempts: list[Attempted] = []
        self._search_job = context.jobs.single_job("tune", f"a search is running: press {key_of('cancel')} to stop it")
        self._progress = context.jobs.progress_callback(lambda activity: f"tuning: {activity}")

    def ask_tuning(self) -> None:
        """Asks for the limits of a search, and starts it."""
        if self._search_job.may_begin():
            self._context.dialogs.ask(_TUNE_PROMPT, f"{Tune(0, Recipe()).seconds:g}", self._begin_search)

    def _begin_search(self, text: str) -> None:
        """Starts a search with the limits and variations in `text`."""
        try:
            seconds, variations, max_error = parse_tune_request(text)
        except ValueError as error:
            self._context.say(str(error))
            return
        self._search_job.begin(self._search, self._context.workspace.recipe, seconds, variations, max_error)

    async def _search(
        self, recipe: Recipe, seconds: float, variations: tuple[Variation, ...], max_error: float | None
    ) -> None:
        """Waits for the search of the engine, and shows the result."""
        self._attempts = []
        frame = Tune(0, recipe, variations=variations, seconds=seconds, max_error=max_error)
        request = self._context.session.request(frame, self._show_progress)
        tuned = await self._search_job.result_of(
            request, "not tuned", f"Cancelled. Press {key_of('passes.tune')} in Passes to tune again"
        )
        if tuned is not None:
            self._show_result(recipe, tuned)

    def _show_progress(self, frame: object) -> None:
        """Shows a tried recipe, or the progress of the search."""
        if isinstance(frame, Attempted):
            self._attempts.append(frame)
            stop = f"press {key_of('cancel')} to stop"
            message = f"tuning, {attempt_line(frame)}{self._context.glyphs.ellipsis} {stop}"
            self._context.status.show_progress(message)
        else:
            self._progress(frame)

    def _show_result(self, recipe: Recipe, tuned: Tuned) -> None:
        """Shows the fastest recipes, of which the user may use the first, or the chosen precisions and their errors."""
        attempts, is_better = list(self._attempts), tuned.recipe != recipe

        def use_answer(answer: str) -> None:
            if answer == USE:
                self._use_recipe(tuned.recipe)
            elif answer == PLOT:
                self._plot(tuned, attempts)

        if not tuned.nodes:
            self._context.results.show(tuning_result(tuned, attempts, is_better), use_answer)
            return
        state = self._context.session.state
        state.record_precisions(recipe.graph, tuned.nodes)
        info = state.graphs[recipe.graph] if recipe.graph < len(state.graphs) else None
        names = {row.stable: row.display_name for row in (info.rows if info is not None else ())}
        self._context.results.show(precisions_result(tuned, attempts, is_better, names), use_answer)

    def _plot(self, tuned: Tuned, attempts: list[Attempted]) -> None:
        """Plots the time of each attempt over its error, if precisions were chosen, and over the time of the search."""
        from buddy.app.screens.plot import PlotScreen

        plots = [*([error_time_plot(tuned, attempts)] if tuned.nodes else []), tuning_plot(attempts)]
        self._context.dialogs.open(PlotScreen(plots, self._context.glyphs))

    def _use_recipe(self, recipe: Recipe) -> None:
        self._graphs.show(recipe.graph)
        self._context.edits.edit(recipe, "the fastest recipe found")


def parse_tune_request(text: str) -> tuple[float, tuple[Variation, ...], float | None]:
    """Returns the time limit in seconds, the variations and the maximum error in `text`, which is like `_TUNE_PROMPT`.

    Without a time limit, returns that of `default_seconds`. Without a maximum error, returns `None` for it. Raises
    `VariationError` for an invalid word.
    """
    seconds, variations, max_error = None, list[Variation](), None
    for word in text.split():
        name, _, value = word.partition("=")
        if name == _MAX_ERROR:
            max_error = _parse_error(value)
            continue
        if "=" in word:
            variations.append(read_variation(word))
            continue
        try:
            seconds = float(word)
        except ValueError:
            raise VariationError(f"{word!r} is neither a number of seconds nor SETTING=VALUES") from None
        if not 0 < seconds < _MAX_SECONDS:
            raise VariationError(f"{word} is not a time limit: give more than 0 and less than a million seconds")
    return seconds or default_seconds(max_error, variations), tuple(variations), max_error


def _parse_error(text: str) -> float:
    """The value of `max-error`. Raises `VariationError`."""
    try:
        error = float(text)
    except ValueError:
        error = math.nan
    if not 0 <= error < math.inf:
        raise VariationError(f"{_MAX_ERROR}={text} is not an error: give a number of at least 0, such as 1e-2")
    return error
