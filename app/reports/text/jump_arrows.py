"""Draws the jumps of an assembly function as arrows in the margin. Does not import Textual.

Jumps to the same label share one arrow. Each arrow gets the innermost lane that is free over its length, the shortest
arrows first, so inner loops are drawn inside outer ones. Arrows without a visible lane are marked only at their ends.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.reports.formatting import Glyphs

# The maximum number of columns for the vertical parts of arrows.
LANES = 6
# A text and its role, as in `buddy.app.widgets.look`.
Cell = tuple[str, str]


class Arrow(NamedTuple):
    """An arrow from the lines `sources` to the label in line `target`. It covers lines `first` to `last` of `lane`.

    Lane 0 is next to the text. An arrow without a lane has the lane `LANES`.
    """

    first: int
    last: int
    target: int
    sources: frozenset[int]
    lane: int = LANES


class JumpArrows:
    """The arrows for `jumps`, which are pairs of lines: of a jump, and of its label."""

    def __init__(self, jumps: Sequence[tuple[int, int]]) -> None:
        self._lanes: list[list[Arrow]] = [[] for _ in range(LANES)]
        self._ends: dict[int, Arrow] = {}
        sources: defaultdict[int, set[int]] = defaultdict(set)
        for source, target in jumps:
            sources[target].add(source)
        arrows = [
            Arrow(min(*lines, target), max(*lines, target), target, frozenset(lines))
            for target, lines in sources.items()
        ]
        for arrow in sorted(arrows, key=lambda arrow: (arrow.last - arrow.first, arrow.first)):
            self._place_arrow(arrow)

    def _place_arrow(self, arrow: Arrow) -> None:
        """Puts an arrow into the first lane that is free over its length, if any."""
        free_lanes = (lane for lane, placed in enumerate(self._lanes) if not _overlaps(placed, arrow))
        arrow = arrow._replace(lane=next(free_lanes, LANES))
        if arrow.lane < LANES:
            insort(self._lanes[arrow.lane], arrow)
        self._ends |= dict.fromkeys((arrow.target, *arrow.sources), arrow)

    def at(self, line: int) -> Arrow | None:
        """Returns the arrow that starts or ends at a line."""
        return self._ends.get(line)

    def cells(self, line: int, cursor: int, lanes: int, glyphs: Glyphs) -> list[Cell]:
        """Returns the margin of `line`, of `lanes` + 1 columns.

        Arrows that start or end at line `cursor` are highlighted.
        """
        # The arrow that starts or ends at `line`, and the one that starts or ends at the cursor.
        own_arrow, cursor_arrow = self._ends.get(line), self._ends.get(cursor)
        # The horizontal part of `own_arrow` crosses the lanes below this number.
        own_lane = own_arrow.lane if own_arrow is not None and own_arrow.lane < lanes else 0
        cells = []
        for lane in reversed(range(lanes)):
            vertical = self._arrow_in(lane, line)
            horizontal = own_arrow if lane < own_lane else None
            if vertical is not None and vertical == own_arrow:
                kind = "top" if line == vertical.first else "bottom" if line == vertical.last else "branch"
            elif horizontal is not None:
                kind = "across" if vertical is None else "cross"
            else:
                kind = "" if vertical is None else "bar"
            is_highlighted = cursor_arrow is not None and cursor_arrow in (vertical, horizontal)
            cells.append((_glyph(kind, glyphs), "key" if is_highlighted else "dim"))
        tip_role = "key" if own_arrow is not None and own_arrow == cursor_arrow else "dim"
        return [*cells, (_tip(line, own_arrow, lanes, glyphs), tip_role)]

    def continuation_cells(self, line: int, lanes: int, glyphs: Glyphs) -> list[Cell]:
        """Returns the margin of the continuation lines of `line`, if `line` is wrapped."""
        arrows = [self._arrow_in(lane, line) for lane in reversed(range(lanes))]
        kinds = ["bar" if arrow is not None and line < arrow.last else "" for arrow in arrows]
        return [*((_glyph(kind, glyphs), "dim") for kind in kinds), (" ", "dim")]

    def _arrow_in(self, lane: int, line: int) -> Arrow | None:
        """Returns the arrow that covers `line` in `lane`."""
        arrows = self._lanes[lane]
        index = bisect_right(arrows, line, key=lambda arrow: arrow.first) - 1
        return arrows[index] if index >= 0 and line <= arrows[index].last else None


def _overlaps(placed: list[Arrow], arrow: Arrow) -> bool:
    """Whether `arrow` overlaps one of the arrows in a lane. `placed` is sorted and its arrows are disjoint."""
    index = bisect_right(placed, arrow.last, key=lambda other: other.first) - 1
    return index >= 0 and placed[index].last >= arrow.first


def _tip(line: int, own_arrow: Arrow | None, lanes: int, glyphs: Glyphs) -> str:
    """Returns the column next to the text: the tip or shaft of an arrow, or the direction of one without a lane."""
    if own_arrow is None:
        return " "
    if line == own_arrow.target:
        return glyphs.arrow
    if own_arrow.lane < lanes:
        return _glyph("across", glyphs)
    return "v" if own_arrow.target > line else "^"


# The kinds of line-drawing characters, in the order of `Glyphs.jump`.
_GLYPH_KINDS = ("top", "bottom", "bar", "branch", "across", "cross")


def _glyph(kind: str, glyphs: Glyphs) -> str:
    return glyphs.jump[_GLYPH_KINDS.index(kind)] if kind else " "
