"""Searches for a minimal subset of items. Independent of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

Item = TypeVar("Item")
Verdict = Literal["good", "bad", "neither"]


def smallest_failing(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Returns a 1-minimal failing subset of `items`, which fail together: `ddmin` of Zeller and Hildebrandt,
    "Simplifying and Isolating Failure-Inducing Input", 2002.
    """
    left, parts = list(items), 2
    while len(left) > 1:
        chunks = _split(left, parts)
        found = next((chunk for chunk in chunks if fails(chunk)), None)
        if found is not None:
            left, parts = found, 2
            continue
        without = (_without(left, chunk) for chunk in chunks) if parts > 2 else iter(())
        found = next((rest for rest in without if fails(rest)), None)
        if found is not None:
            left, parts = found, max(parts - 1, 2)
        elif parts == len(left):
            break
        else:
            parts = min(len(left), 2 * parts)
    return left


def _split(items: list[Item], parts: int) -> list[list[Item]]:
    """Splits into runs of neighbours of nearly equal length."""
    ends = [len(items) * number // parts for number in range(parts + 1)]
    return [items[first:last] for first, last in pairwise(ends) if first < last]


def _without(items: list[Item], chunk: list[Item]) -> list[Item]:
    gone = set(map(id, chunk))
    return [item for item in items if id(item) not in gone]


def turning_point(count: int, verdict: Callable[[int], Verdict]) -> tuple[int, int]:
    """Where the first `n` of `count` things turn from good to bad: `(low, high)`, where those below `low` are good
    and those below `high` bad. They are one apart unless all between them are neither.

    `verdict(0)` is good, `verdict(count)` is bad.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        nearest = sorted(range(low + 1, high), key=lambda place: abs(place - middle))
        for place in nearest:
            found = verdict(place)
            if found != "neither":
                low, high = (place, high) if found == "good" else (low, place)
                break
        else:
            break
    return low, high
