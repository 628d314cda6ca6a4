"""What a plot shows, as plain data: series of numbers over an axis each way, and what is said of a point.

No Textual and no NumPy: whoever has numbers makes a `Plot` of them, and `buddy.app.screens.plot` draws it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

Kind = Literal["line", "points", "bars"]


def number(value: float) -> str:
    """A value of an axis as it is written where its plot says nothing else."""
    return f"{value:.6g}"


@dataclass(frozen=True)
class Axis:
    """What stands along one side.

    On a logarithmic axis a 0 stands a decade below the least other value, and what is negative is left out. `told`
    writes a value. `names` are those of the whole numbers from 0 on, where the axis counts things.
    """

    label: str = ""
    log: bool = False
    told: Callable[[float], str] = number
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Series:
    """`y` over `x`, as many of each. `names` say what each point is: the one chosen is what a plot's screen returns."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    kind: Kind = "line"
    names: Sequence[str] = ()


@dataclass(frozen=True)
class Plot:
    """Series over a common pair of axes; `note` is a sentence to stand below. Bars stand on 0, so on no logarithm."""

    title: str
    series: tuple[Series, ...]
    x: Axis = Axis()
    y: Axis = Axis()
    note: str = ""

    @property
    def bars(self) -> bool:
        return any(series.kind == "bars" for series in self.series)

    def with_log(self, log: bool) -> Plot:
        """The same, its upright axis logarithmic or not."""
        return replace(self, y=replace(self.y, log=log))


def counted(labels: Sequence[str], values: Sequence[float], label: str = "") -> Series:
    """Bars for things side by side; the plot's `x` names them as `labels`."""
    return Series(label, tuple(map(float, range(len(labels)))), tuple(values), "bars", tuple(labels))


class Point(NamedTuple):
    """Where point `number` of its series stands, in the places of both scales."""

    x: float
    y: float
    number: int


@dataclass(frozen=True)
class Scale:
    """Where values stand along an axis: as they are, or by their decades, a 0 at `zero`."""

    axis: Axis
    zero: float = -math.inf

    def place(self, value: float) -> float | None:
        """Where `value` stands, `None` for one that has no place."""
        if not math.isfinite(value) or (self.axis.log and value < 0):
            return None
        if not self.axis.log:
            return value
        return math.log10(value) if value > 0 else self.zero

    def ticks(self, low: float, high: float, most: int) -> list[float]:
        """At most about `most` places to be marked from `low` to `high`."""
        if self.axis.names:
            first, last = max(0, math.ceil(low)), min(len(self.axis.names) - 1, math.floor(high))
            return [float(place) for place in range(first, last + 1, max(1, math.ceil((last - first + 1) / most)))]
        return _decades(low, high, most) if self.axis.log else round_steps(low, high, most)

    def told(self, place: float) -> str:
        """What is written at a place."""
        if self.axis.names:
            return self.axis.names[round(place)] if 0 <= round(place) < len(self.axis.names) else ""
        if not self.axis.log:
            return self.axis.told(place)
        return self.axis.told(0.0 if place <= self.zero else 10**place)


def scale_of(axis: Axis, values: Iterable[float]) -> Scale:
    """The scale on which all of `values` that have a place can stand."""
    found = [value for value in values if math.isfinite(value) and value >= 0]
    positive = [value for value in found if value > 0]
    if len(positive) == len(found):
        return Scale(axis)
    return Scale(axis, math.floor(math.log10(min(positive))) - 1.0 if positive else 0.0)


def scales(plot: Plot) -> tuple[Scale, Scale]:
    """The scales along and upright."""
    along = (value for series in plot.series for value in series.x)
    upright = (value for series in plot.series for value in series.y)
    return scale_of(plot.x, along), scale_of(plot.y, upright)


def placed(series: Series, along: Scale, upright: Scale) -> list[Point]:
    """The points of a series that have a place, in its order."""
    points = []
    for index, (x, y) in enumerate(zip(series.x, series.y, strict=True)):
        across, up = along.place(x), upright.place(y)
        if across is not None and up is not None:
            points.append(Point(across, up, index))
    return points


def thinned(points: Sequence[Point], low: float, high: float, columns: int) -> list[Point]:
    """As many of a line's points as `columns` from `low` to `high` can show: of each column its ends and extremes."""
    if len(points) <= 4 * columns or high <= low:
        return list(points)
    by_column: dict[int, list[Point]] = {}
    for point in points:
        by_column.setdefault(math.floor((point.x - low) / (high - low) * columns), []).append(point)
    kept: list[Point] = []
    for found in by_column.values():
        least, greatest = min(found, key=lambda point: point.y), max(found, key=lambda point: point.y)
        chosen = {point.number: point for point in (found[0], least, greatest, found[-1])}
        kept += [chosen[index] for index in sorted(chosen)]
    return kept


def round_steps(low: float, high: float, most: int) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten from `low` to `high`, at most about `most`."""
    if high <= low:
        return [low]
    raw = (high - low) / max(most, 1)
    unit = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * unit for factor in (1, 2, 5, 10) if factor * unit >= raw * (1 - 1e-9))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [count * step for count in range(first, last + 1)]


def _decades(low: float, high: float, most: int) -> list[float]:
    """Whole decades, or, where there are not two of them, round values between."""
    first, last = math.ceil(low - 1e-9), math.floor(high + 1e-9)
    if last - first < 1:
        return [math.log10(value) for value in round_steps(10**low, 10**high, most) if value > 0]
    stride = max(1, math.ceil((last - first + 1) / max(most, 1)))
    return [float(decade) for decade in range(first, last + 1, stride)]
