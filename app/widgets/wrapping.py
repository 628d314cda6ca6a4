"""Wraps text and lines of cells between words."""

from __future__ import annotations

import textwrap

from buddy.app.widgets.look import Cells


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
    start, columns, unbroken = 0, width, indent
    while len(text) - start > columns:
        space = text.rfind(" ", start + unbroken + 1, start + columns + 1)
        end = space if space > 0 else start + columns
        ranges.append((start, end))
        start, columns, unbroken = end + (space > 0), width - indent, 0
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
