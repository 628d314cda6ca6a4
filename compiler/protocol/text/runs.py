"""The differences of two sequences: items that occur once in both are the anchors, with Myers' algorithm between them.

The anchors are those of patience diff (Bram Cohen), the longest increasing run of pairs, found again within each gap. A
gap without anchors is compared by the algorithm of E. Myers, "An O(ND) Difference Algorithm and Its Variations" (1986),
with a bounded number of edits at a time: if more are needed, it continues from the furthest point it has reached.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import NamedTuple

# Maximum number of edits searched at a time in a gap without anchors; the work grows with its square. Kept small for
# texts with little in common.
MOST_EDITS = 128
FEW_EDITS = 16


class Hunk(NamedTuple):
    """`removed` items from `before` on in one sequence correspond to `added` items from `after` on in the other."""

    before: int
    removed: int
    after: int
    added: int


Pair = tuple[int, int]


def hunks(before: Sequence[Hashable], after: Sequence[Hashable]) -> list[Hunk]:
    """Returns what to replace in `before` to get `after`, in order; between the hunks both are equal."""
    numbers: dict[Hashable, int] = {}
    one = [numbers.setdefault(item, len(numbers)) for item in before]
    other = [numbers.setdefault(item, len(numbers)) for item in after]
    return between(matches(one, other), len(one), len(other))


def between(pairs: Sequence[Pair], before: int, after: int) -> list[Hunk]:
    """The hunks between the equal pairs of two sequences of those lengths."""
    found: list[Hunk] = []
    i = j = 0
    for x, y in (*pairs, (before, after)):
        if x > i or y > j:
            found.append(Hunk(i, x - i, j, y - j))
        i, j = x + 1, y + 1
    return found


def matches(one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """Pairs of equal items, increasing on both sides."""
    found: list[Pair] = []
    gaps = [(0, len(one), 0, len(other))]
    while gaps:
        a, b, c, d = gaps.pop()
        while a < b and c < d and one[a] == other[c]:
            found.append((a, c))
            a, c = a + 1, c + 1
        while a < b and c < d and one[b - 1] == other[d - 1]:
            b, d = b - 1, d - 1
            found.append((b, d))
        if a == b or c == d:
            continue
        anchors = _anchors(one, other, a, b, c, d)
        if anchors:
            found += anchors
            gaps += _gaps(anchors, a, b, c, d)
        else:
            found += [(a + x, c + y) for x, y in _by_edits(one[a:b], other[c:d])]
    found.sort()
    return found


def _gaps(anchors: list[Pair], a: int, b: int, c: int, d: int) -> list[tuple[int, int, int, int]]:
    gaps = []
    for x, y in (*anchors, (b, d)):
        if x > a and y > c:
            gaps.append((a, x, c, y))
        a, c = x + 1, y + 1
    return gaps


def _anchors(one: Sequence[int], other: Sequence[int], a: int, b: int, c: int, d: int) -> list[Pair]:
    """The longest increasing run of items that occur once in each of the two ranges."""
    left, right = _once(one, a, b), _once(other, c, d)
    pairs = [(place, right[item]) for item, place in left.items() if item in right]
    tails: list[int] = []
    ends: list[int] = []
    links: list[int] = []
    for k, (_, y) in enumerate(pairs):
        place = bisect_left(tails, y)
        links.append(ends[place - 1] if place else -1)
        tails[place : place + 1], ends[place : place + 1] = [y], [k]
    run: list[Pair] = []
    k = ends[-1] if ends else -1
    while k >= 0:
        run.append(pairs[k])
        k = links[k]
    return run[::-1]


def _once(items: Sequence[int], start: int, end: int) -> dict[int, int]:
    """The positions of the items that occur once in the range, in order."""
    places: dict[int, int] = {}
    again: set[int] = set()
    for place in range(start, end):
        if items[place] in places:
            again.add(items[place])
        places[items[place]] = place
    return {item: place for item, place in places.items() if item not in again}


def _by_edits(one: Sequence[int], other: Sequence[int]) -> list[Pair]:
    """Equal pairs along short edits, `MOST_EDITS` of them at a time; items of one side only are left out first."""
    common = set(one).intersection(other)
    left = [place for place, item in enumerate(one) if item in common]
    right = [place for place, item in enumerate(other) if item in common]
    here, there = [one[place] for place in left], [other[place] for place in right]
    pairs: list[Pair] = []
    i = j = 0
    while i < len(here) and j < len(there):
        found, x, y = _path(here[i:], there[j:], MOST_EDITS if len(pairs) * 8 >= i else FEW_EDITS)
        pairs += [(left[i + u], right[j + v]) for u, v in found]
        i, j = i + x, j + y
    return pairs


def _path(one: Sequence[int], other: Sequence[int], most: int) -> tuple[list[Pair], int, int]:
    """The pairs on a shortest edit path, and its end: the end of both sequences, or the furthest point within `most`
    edits.
    """
    n, m = len(one), len(other)
    furthest = {1: 0}
    trail: list[dict[int, int]] = []
    for edits in range(min(n + m, most) + 1):
        trail.append(dict(furthest))
        for k in range(-edits, edits + 1, 2):
            x = _entered(furthest, k, edits)[0]
            while x < n and 0 <= x - k < m and one[x] == other[x - k]:
                x += 1
            furthest[k] = x
            if x >= n and x - k >= m:
                return _walked_back(trail, n, m), n, m
    parity = (len(trail) - 1) % 2
    ends = [(x, x - k) for k, x in furthest.items() if (k - parity) % 2 == 0 and x <= n and 0 <= x - k <= m]
    x, y = max(ends, key=sum)
    return _walked_back(trail, x, y), x, y


def _entered(furthest: dict[int, int], k: int, edits: int) -> tuple[int, int]:
    """Where edit number `edits` enters diagonal `k`, and from which diagonal."""
    if k == -edits or (k != edits and furthest[k - 1] < furthest[k + 1]):
        return furthest[k + 1], k + 1
    return furthest[k - 1] + 1, k - 1


def _walked_back(trail: list[dict[int, int]], n: int, m: int) -> list[Pair]:
    """The pairs on the path to (n, m); `trail` has the furthest points before each edit."""
    pairs: list[Pair] = []
    x, y = n, m
    for edits in range(len(trail) - 1, -1, -1):
        came_from = _entered(trail[edits], x - y, edits)[1]
        start_x = trail[edits][came_from]
        start_y = start_x - came_from
        while x > start_x and y > start_y:
            x, y = x - 1, y - 1
            pairs.append((x, y))
        x, y = start_x, start_y
    return pairs[::-1]
