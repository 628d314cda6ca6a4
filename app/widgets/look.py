"""Cells, their conversion to Rich styles by a theme, and a widget with one line of cells.

A cell is a text and its role, such as `("12 ms", "dim")`. A role names a style: each theme maps roles to Rich styles.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import lru_cache

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
        data = themes().get(name) or themes()[DEFAULT]
        self.name = data.name
        self.roles = {role: Style.parse(text) for role, text in data.roles.items()}
        self.backgrounds = {
            "": Style(bgcolor=data.colors["background"].removeprefix("ansi_")),
            "panel": Style(bgcolor=data.colors["panel"].removeprefix("ansi_")),
            "cursor": self.roles["cursor"],
            "cursor-blurred": self.roles["cursor-blurred"],
            "linked-line": self.roles["linked-line"],
        }
        self.syntax = {"": self.roles["text"], **{key: Style.parse(text) for key, text in data.syntax.items()}}

    def style(self, role: str) -> Style:
        """The style of the role of a cell."""
        table, _, key = role.rpartition(":")
        return self.syntax[key] if table == "syntax" else self.roles[role]

    def strip(self, cells: Iterable[Cell], width: int, background: str = "") -> Strip:
        """Converts `cells` to a strip of exactly `width` columns, on the background with the given name."""
        strip = Strip([Segment(printable_text(text), self.style(role)) for text, role in cells if text])
        return self.on_background(strip.adjust_cell_length(width), background)

    def on_background(self, strip: Strip, background: str = "") -> Strip:
        """Puts `strip` on a background. It is always explicit, because the default differs between terminals.

        A background with a text colour of its own replaces those of the strip, which may be invisible on it.
        """
        style = self.backgrounds[background]
        if style.color is None:
            return strip.apply_style(style)
        return Strip(Segment.apply_style(strip, post_style=style), strip.cell_length)


@lru_cache(maxsize=8)
def look_of(theme: str) -> Look:
    """Returns the look of the theme with that name, or that of the default theme for an unknown name."""
    return Look(theme)


# Control characters, which would change the state of the terminal, and marks of writing direction and separators of
# lines, which would reorder or break a line.
_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable_text(text: str) -> str:
    """Returns `text` with each control character replaced by one that is printed: escape becomes `\u241b`."""
    return text if text.isprintable() else _CONTROL.sub(_picture_of, text)


def _picture_of(match: re.Match[str]) -> str:
    """Returns the Unicode picture of an ASCII control character, and U+FFFD for other characters."""
    code = ord(match[0])
    return chr(0x2400 + code) if code < 0x20 else "\u2421" if code == 0x7F else "\ufffd"


def cells_length(cells: Sequence[Cell]) -> int:
    """Returns the number of characters of `cells`."""
    return sum(len(text) for text, _ in cells)


def align_both_ends(left: Cells, right: Cells, width: int) -> Cells:
    """Returns a line with `left` and `right` at its ends. `left` is truncated if they do not fit."""
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
    """Draws the matches of `pattern` in `style`, and underlined, so that they are visible without colours."""
    cuts = [offset for match in pattern.finditer(strip.text) for offset in match.span()]
    if not cuts:
        return strip
    pieces = list(strip.divide([*cuts, strip.cell_length]))
    match_style = style + Style(underline=True)
    # The cuts are starts and ends of matches by turns, so the pieces with odd numbers are the matches.
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
        # The cells that were drawn last.
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
        """Draw the line again if it is displayed and its cells have changed."""
        if self.display and self._cells(self.size.width) != self._drawn_cells:
            self.refresh()
