"""Rows that take several lines of the screen: which of them are on it, and how far to scroll. No Textual.

Only rows near the screen are ever measured, so that a million of them cost no more than a page.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# How many lines a row takes, at least one.
Height = Callable[[int], int]


class Spot(NamedTuple):
    """A line of a row, both counted from 0."""

    row: int
    line: int = 0


def below(top: Spot, lines: int, count: int, height: Height) -> list[Spot]:
    """What stands on `lines` lines of the screen from `top` on; fewer where the `count` rows end."""
    found: list[Spot] = []
    row, line = top
    while row < count and len(found) < lines:
        found += [Spot(row, k) for k in range(line, height(row))][: lines - len(found)]
        row, line = row + 1, 0
    return found


def above(spot: Spot, lines: int, height: Height) -> Spot:
    """What stands `lines` lines above `spot`, or the first line there is."""
    row, line = spot
    while lines > line and row > 0:
        lines -= line + 1
        row -= 1
        line = height(row) - 1
    return Spot(row, max(0, line - lines))


def showing(row: int, top: Spot, page: int, height: Height) -> Spot:
    """The top of the screen nearest to `top` with the whole of `row` on the screen, or as much of it as fits."""
    tall = height(row)
    if tall > page:
        return Spot(row, min(top.line, tall - page) if top.row == row else 0)
    return max(above(Spot(row, tall - 1), page - 1, height), min(top, Spot(row)))


def scrolled(top: Spot, lines: int, page: int, count: int, height: Height) -> Spot:
    """The top of the screen `lines` lines further down, or up, but not beyond the ends."""
    if lines <= 0:
        return above(top, -lines, height)
    last = above(Spot(count - 1, height(count - 1) - 1), page - 1, height)
    passed = below(top, lines + 1, count, height)
    return max(top, min(last, passed[-1]))
