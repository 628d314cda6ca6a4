"""Wraps long lines. No Textual."""

from __future__ import annotations

from typing import NamedTuple

# Indentation of continuation pieces, relative to the line, if there is room.
CONTINUED = 4
# Maximum share of a piece that a break between words may leave empty.
LEAST_FILLED = 0.6


class WrappedSegment(NamedTuple):
    """Characters `first` to `last` of a line, indented by `indent` columns."""

    first: int
    last: int
    indent: int


def wrap_segments(text: str, room: int) -> list[WrappedSegment]:
    """`text` in pieces of at most `room` columns, broken after a space or a comma if one is near the end."""
    if len(text) <= room or room <= 0:
        return [WrappedSegment(0, len(text), 0)]
    indent = min(len(text) - len(text.lstrip(" ")) + CONTINUED, room // 3)
    found: list[WrappedSegment] = []
    start, left = 0, 0
    while len(text) - start > room - left:
        end = _break(text, start, start + room - left)
        found.append(WrappedSegment(start, end, left))
        start, left = end, indent
    return [*found, WrappedSegment(start, len(text), left)]


def _break(text: str, start: int, end: int) -> int:
    """The end of a piece that is limited to `end`."""
    least = start + int((end - start) * LEAST_FILLED)
    return max(text.rfind(" ", least, end), text.rfind(",", least, end)) + 1 or end
