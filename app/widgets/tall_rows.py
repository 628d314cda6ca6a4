"""Layout and scrolling of rows with several screen lines. No Textual.

Only rows near the screen are measured, so the cost does not depend on the number of rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

# The number of lines of a row, at least one.
Height = Callable[[int], int]


class RowLine(NamedTuple):
    """A line of a row; both start at 0."""

    row: int
    line: int = 0


def lines_below(top: RowLine, lines: int, count: int, height: Height) -> list[RowLine]:
    """The row lines shown on `lines` screen lines from `top`; fewer at the end of the `count` rows."""
    found: list[RowLine] = []
    row, line = top
    while row < count and len(found) < lines:
        found += [RowLine(row, k) for k in range(line, height(row))][: lines - len(found)]
        row, line = row + 1, 0
    return found


def line_above(spot: RowLine, lines: int, height: Height) -> RowLine:
    """The row line `lines` screen lines above `spot`, or the first one."""
    row, line = spot
    while lines > line and row > 0:
        lines -= line + 1
        row -= 1
        line = height(row) - 1
    return RowLine(row, max(0, line - lines))


def top_to_show(row: int, top: RowLine, page: int, height: Height) -> RowLine:
    """The scroll position nearest to `top` that shows the whole `row`, or as much of it as fits."""
    tall = height(row)
    if tall > page:
        return RowLine(row, min(top.line, tall - page) if top.row == row else 0)
    return max(line_above(RowLine(row, tall - 1), page - 1, height), min(top, RowLine(row)))


def scroll_top(top: RowLine, lines: int, page: int, count: int, height: Height) -> RowLine:
    """The scroll position `lines` lines further down (or up, if negative), within the ends."""
    if lines <= 0:
        return line_above(top, -lines, height)
    last = line_above(RowLine(count - 1, height(count - 1) - 1), page - 1, height)
    passed = lines_below(top, lines + 1, count, height)
    return max(top, min(last, passed[-1]))
