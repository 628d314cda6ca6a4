"""Searches for a minimal subset of items. Independent of programs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

Item = TypeVar("Item")
Verdict = Literal["good", "bad", "neither"]


def smallest_failing(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """A 1-minimal failing subset of `items`, which together fail.

    The algorithm is `ddmin` of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing Input", 2002.
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
    """Splits items into runs of neighbours of nearly equal length."""
    ends = [len(items) * number // parts for number in range(parts + 1)]
    return [items[first:last] for first, last in pairwise(ends) if first < last]


def _without(items: list[Item], chunk: list[Item]) -> list[Item]:
    gone = set(map(id, chunk))
    return [item for item in items if id(item) not in gone]


def turning_point(count: int, verdict: Callable[[int], Verdict]) -> tuple[int, int]:
    """The number of items at which a prefix of `count` items turns from good to bad, as `(low, high)`.

    `verdict(n)` is that of the first `n` items; `verdict(0)` is good and `verdict(count)` bad. `verdict(low)` is good
    and `verdict(high)` bad; their difference is 1 unless the verdict on all numbers between them is neither.
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
