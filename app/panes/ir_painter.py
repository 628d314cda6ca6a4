"""Draws lines of IR and rows of diffs: gutter, syntax or changed words, truncated or wrapped, notes at the end."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import NamedTuple, Protocol

from rich.segment import Segment
from textual.strip import Strip

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_assembly import AssemblyGutter
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_lines import TAB_WIDTH, IrTypes
from buddy.app.panes.ir_names import IrNames, use_pattern
from buddy.app.panes.ir_search import Matches
from buddy.app.reports import formatting
from buddy.app.reports.text.differences import DiffRow, Layout
from buddy.app.reports.text.folds import wrap_segments
from buddy.app.reports.text.unified import Spans, changed_words
from buddy.app.session.stages import AnnotatedLine
from buddy.app.widgets.look import Cells, Look, length, underlined

# Maximum number of drawn screen lines in the cache.
DRAWN = 600
# Characters that are lexed beyond the edge of the screen, so that a token cut by the edge keeps its colour.
BEYOND = 64
SIGNS = {"removed": "-", "added": "+", "same": " "}

# A line of the screen, and its width in cells. A strip would take more memory: it has seven caches.
DrawnLine = tuple[list[Segment], int]


class PaintedView(IrView, Protocol):
    """A view whose lines are drawn in a theme, scrolled by `left` columns."""

    left: int

    @property
    def look(self) -> Look:
        """The styles of the theme."""


class TextLine(NamedTuple):
    """A line of a text to draw: in its syntax, or as `cells` if they are given.

    `found` is true if the search has a match on the line.
    """

    text: str
    language: str
    number: int
    line: AnnotatedLine | None
    cells: Cells | None
    found: bool


class LinePainter:
    """Draws lines of texts, and caches the drawn lines."""

    def __init__(self, view: PaintedView, matches: Matches, names: IrNames, types: IrTypes, ellipsis: str) -> None:
        self._view, self._matches, self._names, self._types = view, matches, names, types
        self._ellipsis = ellipsis
        self._drawn: OrderedDict[tuple[object, ...], list[DrawnLine]] = OrderedDict()
        self._size = 0

    @property
    def cached(self) -> list[tuple[object, ...]]:
        """The keys of the cached lines, the oldest first."""
        return list(self._drawn)

    def forget(self) -> None:
        """Clear the cache."""
        self._drawn.clear()
        self._size = 0

    def keep(self, key: tuple[object, ...], drawn: list[DrawnLine]) -> None:
        """Cache a drawn line, and drop the oldest ones if there are too many."""
        self._drawn[key] = drawn
        self._size += len(drawn)
        while self._size > DRAWN and len(self._drawn) > 1:
            _, oldest = self._drawn.popitem(last=False)
            self._size -= len(oldest)

    def strips(self, each: TextLine, room: int, note: Cells, label: Cells) -> list[Strip]:
        """A line on screen lines of `room` columns; the last one ends with `note`, and with `label` if it fits."""
        wrapped = self._view.wrapped
        body = self._body(each, room - (0 if wrapped else length(note) + length(label)))
        if wrapped and body[-1].cell_length + length(note) > room:
            body = [*body, Strip.blank(0)]
        *first, last = body
        free = room - length(note)
        label = label if not wrapped or length(label) < free - last.cell_length else []
        last = last.adjust_cell_length(max(free - length(label), 0))
        ends = [Segment(text, self._view.look.style(role)) for text, role in (*note, *label)]
        return [*(strip.adjust_cell_length(room) for strip in first), Strip.join([last, Strip(ends)])]

    def drawn_text(self, line: AnnotatedLine) -> str:
        """The text that is drawn for a line."""
        return self._types.drawn_text(line)

    def _body(self, each: TextLine, room: int) -> list[Strip]:
        """The pieces of a wrapped line, or the part of a line that is on the screen."""
        line, view = each.line, self._view
        if line is None or room <= 0:
            return [Strip.blank(max(room, 0))]
        tint = tuple(each.cells) if each.cells is not None else ()
        value = self._names.value if self._names.value and self._names.value in line.text else ""
        pattern = self._matches.pattern if each.found else None
        shape = (view.left, room, view.wrapped, line.full, len(line.text))
        key = (each.text, each.number, *shape, view.look.name, pattern, tint, value)
        drawn = self._drawn.get(key)
        if drawn is None:
            drawn = [(list(strip), strip.cell_length) for strip in self._paint(each, line, room)]
            self.keep(key, drawn)
        return [Strip(*part) for part in drawn]

    def _paint(self, each: TextLine, line: AnnotatedLine, room: int) -> list[Strip]:
        cells, left = each.cells, self._view.left
        if cells is not None:
            cells = [(part.expandtabs(TAB_WIDTH), role) for part, role in cells]
        text = self.drawn_text(line) if cells is None else "".join(part for part, _ in cells)
        if self._view.wrapped:
            strip = self._style(text, each.language, cells, each.found)
            return [_indent(strip.crop(piece.first, piece.last), piece.indent) for piece in wrap_segments(text, room)]
        more = len(text) > left + room
        end = left + room - more
        strip = self._style(text[: end + BEYOND], each.language, cells, each.found).crop(left, end)
        dots = Segment(self._ellipsis * more, self._view.look.style("faint"))
        return [strip.adjust_cell_length(room - more) + Strip([dots])]

    def _style(self, text: str, language: str, cells: Cells | None, found: bool) -> Strip:
        """The text in its syntax, or `cells`, with matches and the name under the cursor marked."""
        from buddy.themes.lexers import spans

        if cells is None:
            cells = [(part, f"syntax:{name}") for name, part in spans(language, text)]
        if found:
            cells = self._matches.highlight(cells)
        style, value = self._view.look.style, self._names.value
        strip = Strip([Segment(part, style(role)) for part, role in cells])
        if value and value in text:
            strip = underlined(strip, re.compile(use_pattern(value)), style("linked"))
        return strip


class RowPainter:
    """Draws rows of the IR pane. With `with_sources`, each row shows its node and Python line."""

    def __init__(
        self,
        context: WorkbenchContext,
        view: PaintedView,
        document: IrDocument,
        lines: LinePainter,
        matches: Matches,
        jumps: IrJumps,
        assembly: AssemblyGutter,
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._lines, self._matches, self._jumps, self._assembly = lines, matches, jumps, assembly
        self.with_sources = False

    @property
    def margin(self) -> int:
        """The columns before a line that is not compared: a mark, the number, a space, the gutter of assembly."""
        return self._document.digits + 2 + self._assembly.width

    def character_at(self, line: AnnotatedLine, x: int, piece: int) -> tuple[str, int]:
        """The drawn text of a line that is not compared, and its character at column `x` of screen line `piece`."""
        text, margin = self._lines.drawn_text(line), self.margin
        place = x - margin + self._view.left
        if self._view.wrapped:
            pieces = wrap_segments(text, self._view.width - margin)
            part = pieces[min(piece, len(pieces) - 1)]
            place = part.first + max(0, place - part.indent)
        return text, place

    def strips(self, row: int, width: int) -> list[Strip]:
        """The screen lines of a row."""
        document = self._document
        if document.diff is not None:
            return self._diff_strips(row, document.diff.row(row), document.diff.layout, width)
        line, number = document.line_at(row), document.line_of(row)
        mark, role = self._mark(row, number, line)
        jumps, below = self._assembly.cells(number, line)
        gutter: Cells = [(f"{mark}{number + 1:>{document.digits}} ", role), *jumps]
        room = width - length(gutter)
        function = self._assembly.function_note(number, room)
        note = [*function, *self._fold_note(number)]
        label = [] if function else self._node_note(row, line, room)
        each = TextLine(document.text, document.language, number, line, None, number in self._matches)
        strips = self._lines.strips(each, room, note, label)
        return self._with_gutter(gutter, [(" " * (length(gutter) - length(below)), role), *below], strips)

    def _with_gutter(self, gutter: Cells, below: Cells, strips: list[Strip]) -> list[Strip]:
        """`strips` with `gutter` before the first of them and `below` before the others."""
        before = [gutter, *([below] * (len(strips) - 1))]
        look = self._view.look
        return [
            Strip.join([look.strip(cells, length(cells)), strip]) for cells, strip in zip(before, strips, strict=True)
        ]

    def _mark(self, row: int, number: int, line: AnnotatedLine | None) -> tuple[str, str]:
        """The mark before a line number, and its role: cursor, selected node, match, bookmark."""
        node = self._context.selection.node
        if row == self._view.cursor:
            return ">", "key"
        if line is not None and node and node in line.nodes:
            return self._context.glyphs.line, "linked"
        if number in self._matches:
            return "*", "warn"
        return ("#", "accent") if self._jumps.has_bookmark(number) else (" ", "number")

    # ---- notes at the right end ----------------------------------------------------------------------------------

    def _fold_note(self, number: int) -> Cells:
        """The number of lines that are folded under a line."""
        behind = self._document.folds.behind(number)
        return [(f" {self._dots} {formatting.count(behind)} lines ", "fold")] if behind else []

    def _node_note(self, row: int, line: AnnotatedLine | None, room: int) -> Cells:
        """The nodes of the cursor's line; with `with_sources`, also those of other lines, with the Python line."""
        if row == self._view.cursor:
            return self._nodes_label(line, room)
        if not self.with_sources or line is None or not line.nodes:
            return []
        label = [(text, "dim") for text, _ in self._nodes_label(line, room)]
        place = self._context.selection.place_of(line.nodes[0]) if room >= 60 else ""
        return [*label, (f"{place} ", "faint")] if place else label

    def _nodes_label(self, line: AnnotatedLine | None, room: int) -> Cells:
        """The nodes of a line: `mm_3 (+11)`, and whether the first one is derived."""
        if line is None or not line.nodes:
            return []
        selection = self._context.selection
        first = selection.node if selection.node in line.nodes else line.nodes[0]
        more = f" (+{len(line.nodes) - 1})" if len(line.nodes) > 1 else ""
        more += " (derived)" if first in line.derived else ""
        name = formatting.clip(selection.name_of(first), max(room // 3, 8), self._context.glyphs)
        return [(f" {name}{more} ", "linked")]

    @property
    def _dots(self) -> str:
        return self._context.glyphs.dot * 3

    # ---- rows of a diff ------------------------------------------------------------------------------------------

    def _diff_strips(self, row: int, found: DiffRow, layout: Layout, width: int) -> list[Strip]:
        if found.kind == "fold":
            return [self._equal_lines(row, found, width)]
        if layout == "beside":
            return self._both_sides(row, found, width)
        return self._side(row, found, "before" if found.kind == "removed" else "after", layout, width)

    def _equal_lines(self, row: int, found: DiffRow, width: int) -> Strip:
        """The row of folded equal lines."""
        at_cursor = row == self._view.cursor
        text = f"{'>' if at_cursor else ' '}{self._dots} {formatting.count(found.folded)} equal lines {self._dots}"
        return self._view.look.strip([(text, "fold"), ("  z unfolds" if at_cursor else "", "dim")], width)

    def _both_sides(self, row: int, found: DiffRow, width: int) -> list[Strip]:
        """A row of two texts side by side, with blank lines below the shorter side."""
        left = (width - 1) // 2
        widths = (left, width - left - 1)
        bar = Strip([Segment(self._context.glyphs.line, self._view.look.style("faint"))])
        sides = [
            self._side(row, found, side, "beside", room) for side, room in zip(("before", "after"), widths, strict=True)
        ]
        height = max(map(len, sides))
        for side, room in zip(sides, widths, strict=True):
            side += [Strip.blank(room)] * (height - len(side))
        return [Strip.join([one, bar, other]) for one, other in zip(*sides, strict=True)]

    def _side(self, row: int, found: DiffRow, side: str, layout: Layout, width: int) -> list[Strip]:
        """The part of one text in a row: mark, number, sign and the line."""
        document, after = self._document, side == "after"
        number = found.after if after else found.before
        if number < 0:
            return [self._view.look.strip([], width)]
        line = document.own_text_line(number) if after else document.other_text_line(number)
        kind = "same" if found.kind == "same" else "added" if after else "removed"
        mark, role = self._mark(row, number if after else -1, line)
        if kind != "same" and row != self._view.cursor:
            role = kind
        sign = (SIGNS[kind], kind if kind != "same" else "dim")
        gutter: Cells = [(f"{mark}{number + 1:>{document.digits}} ", role), sign]
        room = width - length(gutter)
        label = self._nodes_label(line, room) if row == self._view.cursor and (after or found.after < 0) else []
        note = self._folded_note(found) if after or layout != "beside" else []
        shown = document if after or document.other is None else document.other
        cells = self._changed_cells(found, after, kind, line)
        each = TextLine(shown.text, shown.language, number, line, cells, after and number in self._matches)
        strips = self._lines.strips(each, room, note, label)
        return self._with_gutter(gutter, [(" " * (length(gutter) - 1), role), sign], strips)

    def _folded_note(self, found: DiffRow) -> Cells:
        """What is folded under the first line of a function: `··· 120 lines +3 −4`."""
        if not found.folded:
            return []
        changes = formatting.op_count_change(found.added, found.removed, self._context.glyphs)
        cells: Cells = [(f" {self._dots} {formatting.count(found.folded)} lines ", "fold")]
        pairs = zip(changes, ("added", "removed"), strict=True)
        return [*cells, *((f"{text} ", role) for text, role in pairs if text)]

    def _changed_cells(self, found: DiffRow, after: bool, kind: str, line: AnnotatedLine | None) -> Cells | None:
        """The cells of a changed line; `None` for an unchanged line, which is drawn in its syntax."""
        if kind == "same" or line is None:
            return None
        document = self._document
        opposite: AnnotatedLine | None = None
        number = max(found.before if after else found.after, found.partner)
        if number >= 0:
            opposite = document.other_text_line(number) if after else document.own_text_line(number)
        spans: Spans = ()
        if opposite is not None:
            pair = (opposite.text, line.text) if after else (line.text, opposite.text)
            aliases = document.diff.aliases if document.diff is not None else ()
            spans = changed_words(*pair, names=document.content.how == "line", aliases=aliases)[after]
        return highlight_changes(line.text, spans, kind, f"{kind}-word")


def highlight_changes(line: str, spans: Spans, role: str, word_role: str) -> Cells:
    """`line` in `role`, with the `spans` in `word_role`."""
    cells: Cells = []
    place = 0
    for start, end in spans:
        cells += [(line[place:start], role), (line[start:end], word_role)]
        place = end
    return [cell for cell in (*cells, (line[place:], role)) if cell[0]]


def _indent(strip: Strip, indent: int) -> Strip:
    return Strip.join([Strip.blank(indent), strip]) if indent else strip
