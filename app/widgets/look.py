"""Converts roles of a theme to Rich styles, and a widget of one line of cells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.strip import Strip
from textual.widget import Widget

from buddy.themes.palette import DEFAULT, themes

Cell = tuple[str, str]
Cells = list[Cell]


class Look:
    """The styles of a theme, by role and by syntax name. A name without a style is plain text."""

    def __init__(self, name: str) -> None:
        data = themes().get(name) or themes()[DEFAULT]
        self.name = data.name
        self.roles = {role: Style.parse(text) for role, text in data.roles.items()}
        self.backgrounds = {
            "": Style(bgcolor=data.colors["background"].removeprefix("ansi_")),
            "panel": Style(bgcolor=data.colors["panel"].removeprefix("ansi_")),
            "cursor": self.roles["cursor"],
            "cursor-blurred": self.roles["cursor-blurred"],
        }
        self.syntax = {"": self.roles["text"], **{key: Style.parse(text) for key, text in data.syntax.items()}}

    def style(self, role: str) -> Style:
        """The style of `role`: the name of a role, or `syntax:` and a syntax name."""
        table, _, key = role.rpartition(":")
        return self.syntax[key] if table == "syntax" else self.roles[role]

    def strip(self, cells: Iterable[Cell], width: int, background: str = "") -> Strip:
        """`cells` as a strip of exactly `width` cells, on the background with the given name."""
        strip = Strip([Segment(text, self.style(role)) for text, role in cells if text])
        return self.over(strip.adjust_cell_length(width), background)

    def over(self, strip: Strip, background: str = "") -> Strip:
        """`strip` on a background. The background is always explicit, because terminals have different defaults."""
        return strip.apply_style(self.backgrounds[background])


@lru_cache(maxsize=8)
def look_of(theme: str) -> Look:
    """The look of the theme with that name; the default look for an unknown theme."""
    return Look(theme)


def length(cells: Sequence[Cell]) -> int:
    return sum(len(text) for text, _ in cells)


def align_both_ends(left: Cells, right: Cells, width: int) -> Cells:
    """A line with `left` and `right` at its ends. `left` is truncated if they do not fit."""
    room = width - length(right) - 1
    gap = width - min(length(left), room) - length(right)
    return [*cut_cells(left, room), (" " * max(gap, 0), "text"), *right]


def cut_cells(cells: Cells, width: int, start: int = 0) -> Cells:
    """The `width` characters of `cells` from character `start` on."""
    kept: Cells = []
    for text, role in cells:
        if width <= 0:
            break
        part = text[start : start + width]
        start, width = max(start - len(text), 0), width - len(part)
        kept += [(part, role)] if part else []
    return kept


def underlined(strip: Strip, pattern: re.Pattern[str], style: Style) -> Strip:
    """`strip` with the matches in `style` and underlined, so that they are visible without colours."""
    spans = [found.span() for found in pattern.finditer(strip.text)]
    cuts = [cut for span in spans for cut in span]
    if not cuts:
        return strip
    pieces = list(strip.divide([*cuts, strip.cell_length]))
    marked = style + Style(underline=True)
    return Strip.join([Strip([Segment(piece.text, marked)]) if k % 2 else piece for k, piece in enumerate(pieces)])


class CellLine(Widget):
    """A line that shows `cells(width)`; `refresh` draws it again.

    `clicked(x, width)` is called for a click in column `x`.
    """

    def __init__(
        self,
        cells: Callable[[int], Cells],
        id: str,
        background: str = "",
        clicked: Callable[[int, int], None] | None = None,
    ) -> None:
        super().__init__(id=id)
        self._background = background
        self._clicked = clicked
        self._cells = cells
        self._last: Cells = []

    def render_line(self, y: int) -> Strip:
        self._last = self._cells(self.size.width) if y == 0 else []
        return look_of(self.app.theme).strip(self._last, self.size.width, self._background)

    def on_click(self, event: events.Click) -> None:
        if self._clicked is not None:
            self._clicked(event.x, self.size.width)

    def update(self) -> None:
        """Draw again if the line has changed."""
        if self._cells(self.size.width) != self._last:
            self.refresh()
