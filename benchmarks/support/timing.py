"""Calls timed in turn, so that a slow minute of the machine falls on all of them, and what their times come to."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

Call = Callable[[], object]
Seconds = dict[str, list[float]]


def seconds_of(call: Call) -> float:
    """How long one call takes."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turn(calls: Mapping[str, Call], repeats: int) -> Seconds:
    """Seconds of `repeats` rounds over the calls, after one that is not timed; each round begins with another call."""
    names, found = list(calls), {name: list[float]() for name in calls}
    for call in calls.values():
        call()
    for number in range(repeats):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(seconds_of(calls[name]))
    return found


def spread(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median, quartiles and number of the values, rounded to `digits` significant digits."""
    several = values if len(values) > 1 else list(values) * 2
    low, median, high = statistics.quantiles(several, n=4, method="inclusive")
    figures = {"median": median, "low": low, "high": high}
    return {**{name: float(f"{value:.{digits}g}") for name, value in figures.items()}, "runs": len(values)}


def ratios(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The spread of `above / below`, taken pair by pair."""
    return spread([a / b for a, b in zip(above, below, strict=True)])
