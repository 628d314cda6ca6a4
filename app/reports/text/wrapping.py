"""Wraps long lines into segments that fit the width of a pane."""

from __future__ import annotations

from typing import NamedTuple

# The indentation of the segments of a wrapped line after the first one, relative to the line, if it fits.
CONTINUATION_INDENT = 4
# A line is broken between words only if this share of the segment is filled; otherwise within a word.
MIN_FILLED_SHARE = 0.6


class WrappedSegment(NamedTuple):
    """The characters from `start` to `end` (exclusive) of a line, drawn `indent` columns to the right."""

    start: int
    end: int
    indent: int


def wrap_segments(text: str, columns: int) -> list[WrappedSegment]:
    """Split `text` into segments of at most `columns` columns, after a space or a comma if one is near the end."""
    if len(text) <= columns or columns <= 0:
        return [WrappedSegment(0, len(text), 0)]
    indent = min(len(text) - len(text.lstrip(" ")) + CONTINUATION_INDENT, columns // 3)
    segments: list[WrappedSegment] = []
    start, segment_indent = 0, 0
    while len(text) - start > columns - segment_indent:
        end = _segment_end(text, start, start + columns - segment_indent)
        segments.append(WrappedSegment(start, end, segment_indent))
        start, segment_indent = end, indent
    return [*segments, WrappedSegment(start, len(text), segment_indent)]


def _segment_end(text: str, start: int, limit: int) -> int:
    """Return the end of the segment that starts at `start`: after the last space or comma up to `limit`, or `limit`."""
    first_break = start + int((limit - start) * MIN_FILLED_SHARE)
    return max(text.rfind(" ", first_break, limit), text.rfind(",", first_break, limit)) + 1 or limit
