"""Delta debugging: finds a minimal failing subset of items, or the item at which a sequence starts to fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal, TypeVar

Item = TypeVar("Item")
Verdict = Literal["good", "bad", "neither"]


def smallest_failing(items: Sequence[Item], fails: Callable[[Sequence[Item]], bool]) -> list[Item]:
    """Returns a 1-minimal failing subset of the failing `items`: without any one of its items, it does not fail."""
    return smallest_failing_by(items, lambda subsets: next((subset for subset in subsets if fails(subset)), None))


def smallest_failing_by(
    items: Sequence[Item], first_failing: Callable[[Iterable[Sequence[Item]]], Sequence[Item] | None]
) -> list[Item]:
    """Like `smallest_failing`; `first_failing` returns the first of several subsets that fails, or `None`.

    `first_failing` may try several at once. The algorithm is `ddmin` of Zeller and Hildebrandt, "Simplifying and
    Isolating Failure-Inducing Input", 2002.
    """
    subset, part_count = list(items), 2
    while len(subset) > 1:
        chunks = _split(subset, part_count)
        failing_chunk = first_failing(chunks)
        if failing_chunk is not None:
            subset, part_count = list(failing_chunk), 2
            continue
        # With two parts, the complement of a part is the other part, which has been tested.
        complements = (_without(subset, chunk) for chunk in chunks) if part_count > 2 else iter(())
        failing_complement = first_failing(complements)
        if failing_complement is not None:
            subset, part_count = list(failing_complement), max(part_count - 1, 2)
        elif part_count == len(subset):
            break
        else:
            part_count = min(len(subset), 2 * part_count)
    return subset


def _split(items: list[Item], parts: int) -> list[list[Item]]:
    """Splits items into runs of neighbours of nearly equal length."""
    ends = [len(items) * number // parts for number in range(parts + 1)]
    return [items[first:last] for first, last in pairwise(ends) if first < last]


def _without(items: list[Item], chunk: list[Item]) -> list[Item]:
    removed = set(map(id, chunk))
    return [item for item in items if id(item) not in removed]


def turning_point(count: int, verdict: Callable[[int], Verdict]) -> tuple[int, int]:
    """Returns where the prefixes of `count` items turn from good to bad: the lengths `low` and `high` of two prefixes.

    `verdict(n)` is the verdict on the first `n` items; `verdict(0)` must be good and `verdict(count)` bad. In the
    result, `verdict(low)` is good, `verdict(high)` is bad, and `verdict(n)` is neither for all `n` between them.
    """
    low, high = 0, count
    while high - low > 1:
        middle = (low + high) // 2
        # A verdict may be "neither", so the prefixes are tried from the middle outwards.
        for n in sorted(range(low + 1, high), key=lambda n: abs(n - middle)):
            result = verdict(n)
            if result != "neither":
                low, high = (n, high) if result == "good" else (low, n)
                break
        else:
            break
    return low, high
