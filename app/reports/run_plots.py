"""Plots of the state: timings over the runs, time per pass, distributions of output values."""

from __future__ import annotations

from buddy.app.reports import formatting
from buddy.app.reports.plots import Plot, PlotAxis, Series, bar_series
from buddy.app.session.state import State
from buddy.app.workspace.runs import RunRecord, recipe_summary
from buddy.compiler.protocol import OutputReport, Stage


def plots_of(state: State) -> list[Plot]:
    """All plots available for the graph on the screen."""
    runs = [run for run in state.runs if run.recipe.graph == state.graph]
    stages = [row.stage for row in state.board.rows() if row.stage.milliseconds > 0]
    outputs = state.report.outputs if state.report else ()
    found = [timings(runs)] * bool(runs) + [pass_times(stages)] * bool(stages)
    return [*found, *(spread(output) for output in outputs if output.histogram)]


def timings(runs: list[RunRecord]) -> Plot:
    """The seconds of compiled code and of eager for each run."""
    numbers = tuple(float(number + 1) for number in range(len(runs)))
    names = tuple(_run_label(run) for run in runs)
    return Plot(
        "Timings over the runs",
        (
            Series("buddy", numbers, tuple(run.report.compiled.median for run in runs), names=names),
            Series("eager", numbers, tuple(run.report.eager.median for run in runs), names=names),
        ),
        PlotAxis("run"),
        PlotAxis("median", format=formatting.seconds),
    )


def _run_label(run: RunRecord) -> str:
    return f"{run.clock} {recipe_summary(run.recipe, None)}"


def pass_times(stages: list[Stage]) -> Plot:
    """The time of each pass."""
    names = [stage.name for stage in stages]
    series = bar_series(names, [stage.milliseconds for stage in stages], "milliseconds")
    return Plot(
        "Time per pass", (series,), PlotAxis("pass", names=names), PlotAxis("time", format=formatting.milliseconds)
    )


def spread(output: OutputReport) -> Plot:
    """A histogram of the values of an output."""
    width = (output.high - output.low) / len(output.histogram)
    starts = [output.low + width * place for place in range(len(output.histogram))]
    names = [f"{start:.3g}" for start in starts]
    series = bar_series(names, output.histogram, "values")
    statistics = f"mean {output.mean:.3g}, standard deviation {output.deviation:.3g}, {output.zeros} zeros"
    return Plot(f"Values of {output.name}", (series,), PlotAxis("from", names=names), PlotAxis("values"), statistics)
