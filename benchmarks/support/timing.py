"""Interleaved timing of calls, so that a slow minute of the machine affects all of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from buddy.compiler.tools.bench.report import median_and_quartiles, summarize_ratios

__all__ = ["Call", "Seconds", "in_turn", "median_and_quartiles", "seconds_of", "summarize_ratios"]

Call = Callable[[], object]
Seconds = dict[str, list[float]]


def seconds_of(call: Call) -> float:
    """Returns the duration of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def in_turn(calls: Mapping[str, Call], repeats: int) -> Seconds:
    """Seconds of `repeats` rounds over the calls, after one untimed round; each round begins with another call."""
    names, found = list(calls), {name: list[float]() for name in calls}
    for call in calls.values():
        call()
    for number in range(repeats):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            found[name].append(seconds_of(calls[name]))
    return found
