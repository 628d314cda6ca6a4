"""Plots as plain data, their scales, and the plots of a graph: timings of runs, times of passes, values of outputs.

`buddy.app.screens.plot` draws a `Plot`. Imports neither Textual nor NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from buddy.app.reports import formatting
from buddy.app.session.state import State
from buddy.app.workspace.session_file import RunRecord, recipe_summary
from buddy.compiler.protocol import OutputReport, Stage

SeriesKind = Literal["line", "points", "bars"]


def _axis_text(value: float) -> str:
    """Returns the default format of the values of an axis."""
    return f"{value:.6g}"


@dataclass(frozen=True)
class PlotAxis:
    """An axis of a plot.

    On a logarithmic axis, 0 is drawn a decade below the smallest other value, and negative values are omitted.
    `format` returns the label of a value. If `names` are given, values are indices into them.
    """

    label: str = ""
    log: bool = False
    format: Callable[[float], str] = _axis_text
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Series:
    """A series of points: the values `y` over the values `x`, of the same number.

    `names` are those of the points, if any.
    """

    label: str
    x: Sequence[float]
    y: Sequence[float]
    kind: SeriesKind = "line"
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Plot:
    """Series with common axes `x` and `y`, and a `note` shown below. Bars start at 0, so they need a linear `y`."""

    title: str
    series: tuple[Series, ...]
    x: PlotAxis = PlotAxis()
    y: PlotAxis = PlotAxis()
    note: str = ""

    @property
    def has_bars(self) -> bool:
        """Whether one of the series is drawn as bars."""
        return any(series.kind == "bars" for series in self.series)

    def with_log(self, log: bool) -> Plot:
        """Returns the same plot with a logarithmic or a linear vertical axis."""
        return replace(self, y=replace(self.y, log=log))


def bar_series(labels: Sequence[str], values: Sequence[float], label: str = "") -> Series:
    """Returns a bar plot of labelled values; `labels` become the names of the horizontal axis."""
    return Series(label, tuple(map(float, range(len(labels)))), tuple(values), "bars", tuple(labels))


class PlotPoint(NamedTuple):
    """The position of a point, mapped by both scales. `number` is the index of the point in its series."""

    x: float
    y: float
    number: int


@dataclass(frozen=True)
class PlotScale:
    """The mapping of values to positions on an axis: linear, or the decimal logarithm with `zero` as logarithm of 0."""

    axis: PlotAxis
    zero: float = -math.inf

    def position(self, value: float) -> float | None:
        """Returns the position of `value`, `None` if it cannot be drawn."""
        if not math.isfinite(value) or (self.axis.log and value < 0):
            return None
        if not self.axis.log:
            return value
        return math.log10(value) if value > 0 else self.zero

    def ticks(self, low: float, high: float, max_count: int) -> list[float]:
        """Returns the positions of the ticks from `low` to `high`, about `max_count` at most."""
        if self.axis.names:
            first, last = max(0, math.ceil(low)), min(len(self.axis.names) - 1, math.floor(high))
            stride = max(1, math.ceil((last - first + 1) / max_count))
            return [float(index) for index in range(first, last + 1, stride)]
        return _decades(low, high, max_count) if self.axis.log else round_steps(low, high, max_count)

    def label_at(self, position: float) -> str:
        """Returns the label of the value at a position."""
        if self.axis.names:
            return self.axis.names[round(position)] if 0 <= round(position) < len(self.axis.names) else ""
        if not self.axis.log:
            return self.axis.format(position)
        return self.axis.format(0.0 if position <= self.zero else 10**position)


def scale_of(axis: PlotAxis, values: Iterable[float]) -> PlotScale:
    """Returns a scale for `values`.

    On a logarithmic axis, 0 is a decade below the decade of the smallest positive value.
    """
    drawn = [value for value in values if math.isfinite(value) and value >= 0]
    positive = [value for value in drawn if value > 0]
    if len(positive) == len(drawn):
        return PlotScale(axis)
    zero = math.floor(math.log10(min(positive))) - 1.0 if positive else 0.0
    return PlotScale(axis, zero)


def scales(plot: Plot) -> tuple[PlotScale, PlotScale]:
    """Returns the horizontal and the vertical scale of a plot."""
    x_values = (value for series in plot.series for value in series.x)
    y_values = (value for series in plot.series for value in series.y)
    return scale_of(plot.x, x_values), scale_of(plot.y, y_values)


def visible_points(series: Series, x_scale: PlotScale, y_scale: PlotScale) -> list[PlotPoint]:
    """Returns the points of a series that can be drawn, in order."""
    points = []
    for index, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        x_position, y_position = x_scale.position(x), y_scale.position(y)
        if x_position is not None and y_position is not None:
            points.append(PlotPoint(x_position, y_position, index))
    return points


def thin_points(points: Sequence[PlotPoint], low: float, high: float, columns: int) -> list[PlotPoint]:
    """Returns the points that are needed to draw a line in `columns` columns, which cover x from `low` to `high`.

    They are the first, last, lowest and highest point of each column; all points if there are at most 4 per column.
    """
    if len(points) <= 4 * columns or high <= low:
        return list(points)
    by_column: dict[int, list[PlotPoint]] = {}
    for point in points:
        by_column.setdefault(math.floor((point.x - low) / (high - low) * columns), []).append(point)
    thinned: list[PlotPoint] = []
    for column in by_column.values():
        lowest, highest = min(column, key=lambda point: point.y), max(column, key=lambda point: point.y)
        selected = {point.number: point for point in (column[0], lowest, highest, column[-1])}
        thinned += [selected[index] for index in sorted(selected)]
    return thinned


def round_steps(low: float, high: float, max_count: int) -> list[float]:
    """Returns the multiples of a step from `low` to `high`. The step is 1, 2 or 5 times a power of ten.

    The step is the smallest one with at most about `max_count` multiples.
    """
    if high <= low:
        return [low]
    min_step = (high - low) / max(max_count, 1)
    unit = 10.0 ** math.floor(math.log10(min_step))
    # 1e-9 allows for rounding errors.
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= min_step * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def _decades(low: float, high: float, max_count: int) -> list[float]:
    """Returns the ticks of a logarithmic axis. `low`, `high` and the ticks are decimal logarithms of values.

    The values at ticks are powers of ten, or round values if there are fewer than two powers.
    """
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    if last - first < 1:
        return [math.log10(value) for value in round_steps(10**low, 10**high, max_count) if value > 0]
    stride = max(1, math.ceil((last - first + 1) / max(max_count, 1)))
    return [float(decade) for decade in range(first, last + 1, stride)]


def plots_of(state: State) -> list[Plot]:
    """Returns all plots that are available for the current graph."""
    runs = [run for run in state.runs if run.recipe.graph == state.graph]
    stages = [row.stage for row in state.board.rows() if row.stage.milliseconds > 0]
    outputs = state.report.outputs if state.report else ()
    plots = []
    if runs:
        plots.append(_timing_plot(runs))
    if stages:
        plots.append(_pass_time_plot(stages))
    return plots + [_value_histogram(output) for output in outputs if output.histogram]


def _timing_plot(runs: list[RunRecord]) -> Plot:
    """Returns the median times of compiled code and of eager in each run."""
    numbers = tuple(map(float, range(1, len(runs) + 1)))
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
    """Returns the name of a run in the plot: its time of day, and its recipe."""
    return f"{run.end_time} {recipe_summary(run.recipe, None)}"


def _pass_time_plot(stages: list[Stage]) -> Plot:
    """Returns the time of each pass."""
    names = [stage.name for stage in stages]
    series = bar_series(names, [stage.milliseconds for stage in stages], "milliseconds")
    return Plot(
        "Time per pass", (series,), PlotAxis("pass", names=names), PlotAxis("time", format=formatting.milliseconds)
    )


def _value_histogram(output: OutputReport) -> Plot:
    """Returns a histogram of the values of an output."""
    width = (output.high - output.low) / len(output.histogram)
    starts = [output.low + width * index for index in range(len(output.histogram))]
    names = [f"{start:.3g}" for start in starts]
    series = bar_series(names, output.histogram, "values")
    statistics = f"mean {output.mean:.3g}, standard deviation {output.deviation:.3g}, {output.zeros} zeros"
    return Plot(f"Values of {output.name}", (series,), PlotAxis("from", names=names), PlotAxis("values"), statistics)
