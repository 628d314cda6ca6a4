"""Wraps text, lines of cells, and lines of IR to the width of a pane."""

from __future__ import annotations

import textwrap
from typing import NamedTuple

from buddy.app.widgets.look import Cells

# The indentation of the segments of a wrapped line after the first one, relative to the line, if it fits.
CONTINUATION_INDENT = 4
# A line is broken between words only if this share of the segment is filled; otherwise within a word.
MIN_FILLED_SHARE = 0.6


def wrap_text(text: str, width: int) -> list[str]:
    """Returns the lines of `text`, wrapped to `width` characters (at least 10); its own line breaks remain."""
    columns = max(width, 10)
    wrapped_lines = (textwrap.wrap(line, columns, break_on_hyphens=False) or [""] for line in text.splitlines())
    return [piece for pieces in wrapped_lines for piece in pieces]


def wrap_line(line: Cells, width: int) -> list[Cells]:
    """Splits `line` into pieces of at most `width` characters, between words if possible.

    All pieces after the first are indented to the second cell, unless the first cell is wider than a third of `width`.
    """
    indent = len(line[0][0]) if len(line) > 1 and len(line[0][0]) <= width // 3 else 0
    ranges = _split_ranges("".join(text for text, _ in line), width, indent)
    pieces = [_cell_range(line, start, end) for start, end in ranges]
    return [pieces[0], *([(" " * indent, "text"), *piece] for piece in pieces[1:])]


def _split_ranges(text: str, width: int, indent: int) -> list[tuple[int, int]]:
    """Returns the start and the end of each piece of `text`, without the spaces at which it is split.

    The first `indent` characters are not split. The pieces after the first have `indent` characters less.
    """
    ranges: list[tuple[int, int]] = []
    start, columns, unsplit = 0, width, indent
    while len(text) - start > columns:
        space = text.rfind(" ", start + unsplit + 1, start + columns + 1)
        end = space if space > 0 else start + columns
        ranges.append((start, end))
        start, columns, unsplit = end + (space > 0), width - indent, 0
    return [*ranges, (start, len(text))]


def _cell_range(line: Cells, start: int, end: int) -> Cells:
    """Returns the cells of the characters `start` to `end` (exclusive) of `line`."""
    cells: Cells = []
    offset = 0
    for text, role in line:
        piece = text[max(start - offset, 0) : max(end - offset, 0)]
        cells += [(piece, role)] if piece else []
        offset += len(text)
    return cells


class WrappedSegment(NamedTuple):
    """The characters from `start` to `end` (exclusive) of a line, drawn `indent` columns to the right."""

    start: int
    end: int
    indent: int


def wrap_segments(text: str, columns: int) -> list[WrappedSegment]:
    """Splits `text` into segments of at most `columns` columns, after a space or a comma if one is near the end."""
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
    """Returns the end of the segment that starts at `start`: after the last space or comma before `limit`.

    Without one in the last part of the segment, returns `limit`.
    """
    first_break = start + int((limit - start) * MIN_FILLED_SHARE)
    return max(text.rfind(" ", first_break, limit), text.rfind(",", first_break, limit)) + 1 or limit
