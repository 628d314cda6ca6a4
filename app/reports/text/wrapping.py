"""A long line in pieces that fit the screen. No Textual."""

from __future__ import annotations

from typing import NamedTuple

# What continues a line stands this far to the right of where the line begins, where there is room for that.
CONTINUED = 4
# A break between words leaves no more than this share of a piece empty.
LEAST_FILLED = 0.6


class Piece(NamedTuple):
    """Characters `first` to `last` of a line, drawn `indent` columns to the right."""

    first: int
    last: int
    indent: int


def pieces(text: str, room: int) -> list[Piece]:
    """`text` in pieces of at most `room` columns, broken behind a space or a comma where one is near the end."""
    if len(text) <= room or room <= 0:
        return [Piece(0, len(text), 0)]
    indent = min(len(text) - len(text.lstrip(" ")) + CONTINUED, room // 3)
    found: list[Piece] = []
    start, left = 0, 0
    while len(text) - start > room - left:
        end = _break(text, start, start + room - left)
        found.append(Piece(start, end, left))
        start, left = end, indent
    return [*found, Piece(start, len(text), left)]


def _break(text: str, start: int, end: int) -> int:
    """Where a piece that may reach `end` ends."""
    least = start + int((end - start) * LEAST_FILLED)
    return max(text.rfind(" ", least, end), text.rfind(",", least, end)) + 1 or end
