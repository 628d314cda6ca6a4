"""Draws the jumps of an assembly function as arrows in the margin. No Textual.

Jumps to the same label share one arrow. Each arrow gets the innermost lane that is free over its length, the shortest
arrows first, so inner loops are drawn inside outer ones. Arrows without a visible lane are marked only at their ends.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.reports.formatting import Glyphs

LANES = 6
Cell = tuple[str, str]


class Arrow(NamedTuple):
    """An arrow from lines `sources` to the label in line `target`, from line `first` to `last` in lane `lane`."""

    first: int
    last: int
    target: int
    sources: frozenset[int]
    lane: int = LANES


class JumpArrows:
    """Arrows for `jumps`, which are pairs of a jump's line and its label's line."""

    def __init__(self, jumps: Sequence[tuple[int, int]]) -> None:
        self._lanes: list[list[Arrow]] = [[] for _ in range(LANES)]
        self._ends: dict[int, Arrow] = {}
        sources: defaultdict[int, set[int]] = defaultdict(set)
        for source, target in jumps:
            sources[target].add(source)
        arrows = [Arrow(min(*of, to), max(*of, to), to, frozenset(of)) for to, of in sources.items()]
        for arrow in sorted(arrows, key=lambda one: (one.last - one.first, one.first)):
            self._place(arrow)

    def _place(self, arrow: Arrow) -> None:
        free = (lane for lane, placed in enumerate(self._lanes) if not _overlaps(placed, arrow))
        arrow = arrow._replace(lane=next(free, LANES))
        if arrow.lane < LANES:
            insort(self._lanes[arrow.lane], arrow)
        self._ends |= dict.fromkeys((arrow.target, *arrow.sources), arrow)

    def cells(self, line: int, cursor: int, lanes: int, glyphs: Glyphs) -> list[Cell]:
        """The margin of `line`, of `lanes` + 1 columns. Arrows that start or end at line `cursor` are highlighted."""
        end, marked = self._ends.get(line), self._ends.get(cursor)
        reach = end.lane if end is not None and end.lane < lanes else 0
        drawn = []
        for lane in reversed(range(lanes)):
            arrow = self._over(lane, line)
            if arrow is not None and arrow == end:
                kind = "top" if line == arrow.first else "bottom" if line == arrow.last else "branch"
            elif lane < reach:
                kind = "across" if arrow is None else "cross"
            else:
                kind = "" if arrow is None else "bar"
            stands_out = marked is not None and marked in (arrow, end if lane < reach else None)
            drawn.append((_glyph(kind, glyphs), "key" if stands_out else "dim"))
        return [*drawn, (_head(line, end, lanes, glyphs), "key" if end is not None and end == marked else "dim")]

    def below(self, line: int, lanes: int, glyphs: Glyphs) -> list[Cell]:
        """The margin of the continuation lines of `line`."""
        arrows = [self._over(lane, line) for lane in reversed(range(lanes))]
        bars = [(_glyph("bar" if one is not None and line < one.last else "", glyphs), "dim") for one in arrows]
        return [*bars, (" ", "dim")]

    def _over(self, lane: int, line: int) -> Arrow | None:
        placed = self._lanes[lane]
        found = bisect_right(placed, line, key=lambda arrow: arrow.first) - 1
        return placed[found] if found >= 0 and line <= placed[found].last else None


def _overlaps(placed: list[Arrow], arrow: Arrow) -> bool:
    """Whether `arrow` overlaps one of the arrows of a lane, which are sorted and disjoint."""
    before = bisect_right(placed, arrow.last, key=lambda one: one.first) - 1
    return before >= 0 and placed[before].last >= arrow.first


def _head(line: int, end: Arrow | None, lanes: int, glyphs: Glyphs) -> str:
    """The column next to the text: the tip or the shaft of an arrow, or the direction of an arrow without a lane."""
    if end is None:
        return " "
    if line == end.target:
        return glyphs.arrow
    if end.lane < lanes:
        return _glyph("across", glyphs)
    return "v" if end.target > line else "^"


_KINDS = ("top", "bottom", "bar", "branch", "across", "cross")


def _glyph(kind: str, glyphs: Glyphs) -> str:
    return glyphs.jump[_KINDS.index(kind)] if kind else " "
