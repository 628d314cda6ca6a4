"""How a line of IR is drawn: in its syntax or as changed words, scrolled sideways or wrapped, in full or in short."""

from __future__ import annotations

import re
from collections import OrderedDict

from rich.segment import Segment
from textual.strip import Strip

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.navigation import Matches
from buddy.app.panes.pane import Pane
from buddy.app.panes.values import use_pattern
from buddy.app.reports.text.constant_expansion import Expansions
from buddy.app.reports.text.wrapping import wrap_segments
from buddy.app.session.lines import AnnotatedLine
from buddy.app.widgets.look import Cells, length, underlined

# Lines of the screen that are kept once they are drawn.
DRAWN = 600
TAB_WIDTH = 8
BEYOND = 64

# A line of the screen, and how many cells it takes. Not a strip: that has seven caches of copies of itself.
DrawnLine = tuple[list[Segment], int]


class Painting(Pane):
    """Draws lines of texts; what has been drawn is kept for a while."""

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.left = 0
        self.matches = Matches()
        self.value = ""
        self.expansions = Expansions()
        self._drawn_lines: OrderedDict[tuple[object, ...], list[DrawnLine]] = OrderedDict()
        self._kept = 0

    def line_of_text(self, text: str, number: int) -> AnnotatedLine | None:
        """A line as it is to be drawn, where it is at hand."""
        return self.expansions.applied(text, number, self.context.session.cache.get(text, number))

    def drawn_text(self, line: AnnotatedLine) -> str:
        """What is drawn of a line."""
        return line.text.expandtabs(TAB_WIDTH)

    def forget_strips(self) -> None:
        """Draw every line anew."""
        self._drawn_lines.clear()
        self._kept = 0

    def lines_with(self, body: list[Strip], room: int, kept: Cells, label: Cells) -> list[Strip]:
        """The lines of a row, each `room` columns wide: at the right end of the last `kept`, and `label` if it fits."""
        if self.wrapped and body[-1].cell_length + length(kept) > room:
            body = [*body, Strip.blank(0)]
        *first, last = body
        free = room - length(kept)
        label = label if not self.wrapped or length(label) < free - last.cell_length else []
        last = last.adjust_cell_length(max(free - length(label), 0))
        ends = [Segment(text, self.look.style(role)) for text, role in (*kept, *label)]
        return [*(strip.adjust_cell_length(room) for strip in first), Strip.join([last, Strip(ends)])]

    def body(
        self,
        text: str,
        language: str,
        number: int,
        line: AnnotatedLine | None,
        cells: Cells | None,
        room: int,
        found: bool,
    ) -> list[Strip]:
        """Line `number` of a text in its syntax, or in `cells`: wrapped, its pieces; otherwise the part on the screen.

        `found` says whether the search found something on it.
        """
        if line is None or room <= 0:
            return [Strip.blank(max(room, 0))]
        tint = tuple(cells) if cells is not None else ()
        value = self.value if self.value and self.value in line.text else ""
        pattern = self.matches.pattern if found else None
        shape = (self.left, room, self.wrapped, line.full, len(line.text))
        key = (text, number, *shape, self.look.name, pattern, tint, value)
        drawn = self._drawn_lines.get(key)
        if drawn is None:
            strips = self._painted(line, language, cells, room, found)
            self._keep(key, drawn := [(list(strip), strip.cell_length) for strip in strips])
        return [Strip(*each) for each in drawn]

    def _keep(self, key: tuple[object, ...], drawn: list[DrawnLine]) -> None:
        self._drawn_lines[key] = drawn
        self._kept += len(drawn)
        while self._kept > DRAWN and len(self._drawn_lines) > 1:
            _, oldest = self._drawn_lines.popitem(last=False)
            self._kept -= len(oldest)

    def _painted(self, line: AnnotatedLine, language: str, cells: Cells | None, room: int, found: bool) -> list[Strip]:
        if cells is not None:
            cells = [(part.expandtabs(TAB_WIDTH), role) for part, role in cells]
        text = self.drawn_text(line) if cells is None else "".join(part for part, _ in cells)
        if self.wrapped:
            strip = self._styled(text, language, cells, found)
            return [_shifted(strip.crop(piece.first, piece.last), piece.indent) for piece in wrap_segments(text, room)]
        more = len(text) > self.left + room
        end = self.left + room - more
        # Lexed a little further than drawn, so that what the edge cuts keeps its colour.
        strip = self._styled(text[: end + BEYOND], language, cells, found).crop(self.left, end)
        dots = Segment(self.glyphs.ellipsis * more, self.look.style("faint"))
        return [strip.adjust_cell_length(room - more) + Strip([dots])]

    def _styled(self, text: str, language: str, cells: Cells | None, found: bool) -> Strip:
        """The text in its syntax, or `cells` as they are, with what was found and the name under the cursor marked."""
        from buddy.themes.lexers import spans

        if cells is None:
            cells = [(part, f"syntax:{name}") for name, part in spans(language, text)]
        if found:
            cells = self.matches.highlighted(cells)
        style = self.look.style
        strip = Strip([Segment(part, style(role)) for part, role in cells])
        if self.value and self.value in text:
            strip = underlined(strip, re.compile(use_pattern(self.value)), style("linked"))
        return strip


def _shifted(strip: Strip, indent: int) -> Strip:
    return Strip.join([Strip.blank(indent), strip]) if indent else strip
