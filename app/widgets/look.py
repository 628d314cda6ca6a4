"""Lines of cells: their styles in a theme, truncation and wrapping, and a widget with one line of cells.

A cell is a text and its role, such as `("12 ms", "dim")`. A role names a style: each theme maps roles to Rich styles.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.strip import Strip
from textual.widget import Widget

from buddy.themes.palette import DEFAULT, themes

# A text and its role: a role of the theme, or `syntax:` and the name of a kind of token.
Cell = tuple[str, str]
# A line, or a part of one.
Cells = list[Cell]


class Look:
    """The styles of the theme `name` (the default theme if the name is unknown), by role and by kind of token."""

    def __init__(self, name: str) -> None:
        theme = themes().get(name) or themes()[DEFAULT]
        self.name = theme.name
        self.roles = {role: Style.parse(text) for role, text in theme.roles.items()}
        self.backgrounds = {
            # Textual prefixes the names of ANSI colours, Rich does not.
            "": Style(bgcolor=theme.colors["background"].removeprefix("ansi_")),
            "panel": Style(bgcolor=theme.colors["panel"].removeprefix("ansi_")),
            "cursor": self.roles["cursor"],
            "cursor-blurred": self.roles["cursor-blurred"],
            "linked-line": self.roles["linked-line"],
        }
        self.syntax = {"": self.roles["text"], **{kind: Style.parse(text) for kind, text in theme.syntax.items()}}

    def style(self, role: str) -> Style:
        """The style of a role of a `Cell`."""
        prefix, _, kind = role.rpartition(":")
        return self.syntax[kind] if prefix == "syntax" else self.roles[role]

    def strip(self, cells: Iterable[Cell], width: int, background: str = "") -> Strip:
        """Converts `cells` to a strip of exactly `width` columns. `background` is a key of `backgrounds`."""
        strip = Strip([Segment(printable_text(text), self.style(role)) for text, role in cells if text])
        return self.on_background(strip.adjust_cell_length(width), background)

    def on_background(self, strip: Strip, background: str = "") -> Strip:
        """Puts `strip` on a background. Also "" has a colour, because the default colour differs between terminals.

        If the background has a text colour, it replaces those of the strip, which may be invisible on it.
        """
        style = self.backgrounds[background]
        if style.color is None:
            return strip.apply_style(style)
        return Strip(Segment.apply_style(strip, post_style=style), strip.cell_length)


@lru_cache(maxsize=8)
def look_of(theme: str) -> Look:
    """Returns the look of the theme with that name, or that of the default theme for an unknown name."""
    return Look(theme)


# Control characters, which would change the state of the terminal; marks of writing direction, which would reorder a
# line; and separators of lines, which would break it.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable_text(text: str) -> str:
    """Returns `text` with a printable character for each character of `_CONTROL`: escape becomes `\u241b`."""
    return text if text.isprintable() else _CONTROL.sub(_picture_of, text)


def _picture_of(match: re.Match[str]) -> str:
    """Returns the Unicode picture of an ASCII control character, and U+FFFD for other characters."""
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)
    return "\u2421" if code == 0x7F else "\ufffd"


def cells_length(cells: Sequence[Cell]) -> int:
    """Returns the number of characters of `cells`."""
    return sum(len(text) for text, _ in cells)


def align_both_ends(left: Cells, right: Cells, width: int) -> Cells:
    """Returns a line of `width` characters with `left` and `right` at its ends. Truncates `left` if they do not fit."""
    columns = width - cells_length(right) - 1
    gap = width - min(cells_length(left), columns) - cells_length(right)
    return [*cut_cells(left, columns), (" " * max(gap, 0), "text"), *right]


def cut_cells(cells: Cells, width: int, start: int = 0) -> Cells:
    """Returns the `width` characters of `cells` from character `start` on."""
    visible: Cells = []
    for text, role in cells:
        if width <= 0:
            break
        part = text[start : start + width]
        start, width = max(start - len(text), 0), width - len(part)
        visible += [(part, role)] if part else []
    return visible


def underlined(strip: Strip, pattern: re.Pattern[str], style: Style) -> Strip:
    """Returns `strip` with the matches of `pattern` in `style`, and underlined, to be visible without colours."""
    cuts = [offset for match in pattern.finditer(strip.text) for offset in match.span()]
    if not cuts:
        return strip
    pieces = list(strip.divide([*cuts, strip.cell_length]))
    match_style = style + Style(underline=True)
    # The cuts alternate between starts and ends of matches, so the pieces with odd numbers are the matches.
    for number in range(1, len(pieces), 2):
        pieces[number] = Strip([Segment(pieces[number].text, match_style)])
    return Strip.join(pieces)


class CellLine(Widget):
    """A line that shows the result of `cells(width)`. `refresh` draws it again.

    After a click in column `x`, calls `on_column_clicked(x, width)`, and awaits the result unless it is `None`.
    """

    def __init__(
        self,
        cells: Callable[[int], Cells],
        id: str,
        background: str = "",
        on_column_clicked: Callable[[int, int], Awaitable[None] | None] | None = None,
    ) -> None:
        super().__init__(id=id)
        self._background = background
        self._on_column_clicked = on_column_clicked
        self._cells = cells
        self._drawn_cells: Cells = []

    def render_line(self, y: int) -> Strip:
        self._drawn_cells = self._cells(self.size.width) if y == 0 else []
        return look_of(self.app.theme).strip(self._drawn_cells, self.size.width, self._background)

    async def on_click(self, event: events.Click) -> None:
        if self._on_column_clicked is not None:
            awaitable = self._on_column_clicked(event.x, self.size.width)
            if awaitable is not None:
                await awaitable

    def update(self) -> None:
        """Draws the line again if it is displayed and its cells differ from those drawn last."""
        if self.display and self._cells(self.size.width) != self._drawn_cells:
            self.refresh()


# ---- wrapping --------------------------------------------------------------------------------------------------------


# The indentation of the segments of a wrapped line after the first one, relative to the indentation of the line.
CONTINUATION_INDENT = 4
# A segment ends between words only if this share of its columns is then filled; otherwise within a word.
MIN_FILLED_SHARE = 0.6


def wrap_text(text: str, width: int) -> list[str]:
    """Returns the lines of `text`, wrapped to `width` characters (at least 10). Keeps the line breaks of `text`."""
    columns = max(width, 10)
    wrapped_lines: list[str] = []
    for line in text.splitlines():
        wrapped_lines += textwrap.wrap(line, columns, break_on_hyphens=False) or [""]
    return wrapped_lines


def wrap_line(line: Cells, width: int) -> list[Cells]:
    """Splits `line` into pieces of at most `width` characters, between words if possible.

    All pieces after the first are indented to the second cell if the first cell takes at most a third of `width`.
    """
    indent = len(line[0][0]) if len(line) > 1 and len(line[0][0]) <= width // 3 else 0
    ranges = _split_ranges("".join(text for text, _ in line), width, indent)
    pieces = [_cell_range(line, start, end) for start, end in ranges]
    return [pieces[0], *([(" " * indent, "text"), *piece] for piece in pieces[1:])]


def _split_ranges(text: str, width: int, indent: int) -> list[tuple[int, int]]:
    """Returns the start and the end of each piece of `text`, without the spaces at which it is split.

    The first `indent` characters are not split. The pieces after the first have at most `width - indent` characters.
    """
    ranges: list[tuple[int, int]] = []
    start, columns, unsplit = 0, width, indent
    while len(text) - start > columns:
        space = text.rfind(" ", start + unsplit + 1, start + columns + 1)
        if space > 0:
            ranges.append((start, space))
            start = space + 1
        else:
            ranges.append((start, start + columns))
            start += columns
        columns, unsplit = width - indent, 0
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

    Without a space or comma after `MIN_FILLED_SHARE` of the segment, returns `limit`.
    """
    first_break = start + int((limit - start) * MIN_FILLED_SHARE)
    last_break = max(text.rfind(" ", first_break, limit), text.rfind(",", first_break, limit))
    return last_break + 1 if last_break >= 0 else limit
