"""Draws lines of IR and rows of diffs: the gutter, the text with its syntax or changed words, and notes at its end."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import NamedTuple, Protocol

from rich.segment import Segment
from textual.strip import Strip

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_assembly import AssemblyGutter
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_lines import TAB_WIDTH, IrTypes
from buddy.app.panes.ir_names import IrNames, use_pattern
from buddy.app.reports import formatting
from buddy.app.reports.text.rows import DiffLayout, DiffRow
from buddy.app.reports.text.unified import Spans, changed_words
from buddy.app.session.line_cache import AnnotatedLine
from buddy.app.widgets.code_view import LEXED_BEYOND_EDGE
from buddy.app.widgets.look import Cells, Look, cells_length, underlined, wrap_segments
from buddy.app.widgets.search import Matches

# The maximum number of drawn screen lines in the cache.
MAX_CACHED_LINES = 600
# The Python line of a node is shown if a row has at least this many columns.
MIN_COLUMNS_FOR_LOCATION = 60
# The sign before a line of a diff, by its kind.
SIGNS = {"removed": "-", "added": "+", "same": " "}

# A line of the screen, and its width in cells. A strip would take more memory: it has seven caches.
DrawnLine = tuple[list[Segment], int]


class PainterView(IrView, Protocol):
    """A view whose lines are drawn in the styles of a theme. `left` is the first column on the screen."""

    left: int

    @property
    def look(self) -> Look:
        """The styles of the theme."""


class TextLine(NamedTuple):
    """Line `number` of the text with the name `text`, to draw in the syntax of `language`.

    `line` is `None` if it is not cached yet. `cells`, if not `None`, are drawn instead of its syntax. `has_match` is
    true if the search has a match on the line.
    """

    text: str
    language: str
    number: int
    line: AnnotatedLine | None
    cells: Cells | None
    has_match: bool


class LinePainter:
    """Draws lines of texts, and caches the drawn lines, the latest `MAX_CACHED_LINES`."""

    def __init__(self, view: PainterView, matches: Matches, names: IrNames, types: IrTypes, ellipsis: str) -> None:
        self._view, self._matches, self._names, self._types = view, matches, names, types
        self._ellipsis = ellipsis
        # The drawn screen lines of each line, by a key with everything that the drawing depends on.
        self._drawn: OrderedDict[tuple[object, ...], list[DrawnLine]] = OrderedDict()
        self._cached_line_count = 0

    @property
    def cached_keys(self) -> list[tuple[object, ...]]:
        """The keys of the cached lines, the oldest first."""
        return list(self._drawn)

    def clear_cache(self) -> None:
        self._drawn.clear()
        self._cached_line_count = 0

    def cache_lines(self, key: tuple[object, ...], drawn: list[DrawnLine]) -> None:
        """Caches the screen lines of a line, and removes the oldest ones if there are too many."""
        self._drawn[key] = drawn
        self._cached_line_count += len(drawn)
        while self._cached_line_count > MAX_CACHED_LINES and len(self._drawn) > 1:
            _, oldest = self._drawn.popitem(last=False)
            self._cached_line_count -= len(oldest)

    def strips(self, text_line: TextLine, columns: int, note: Cells, label: Cells) -> list[Strip]:
        """The screen lines of a line, each with `columns` columns. The last one ends with `note` and `label`.

        A line that is not wrapped is truncated before `note` and `label`. A wrapped line gets a blank line for `note`
        if necessary, and `label` is omitted unless it fits after the text.
        """
        wrapped, note_width, label_width = self._view.wrapped, cells_length(note), cells_length(label)
        body = self._text_strips(text_line, columns if wrapped else columns - note_width - label_width)
        if wrapped and body[-1].cell_length + note_width > columns:
            body = [*body, Strip.blank(0)]
        *others, last = body
        if wrapped and last.cell_length + label_width >= columns - note_width:
            label, label_width = [], 0
        last = last.adjust_cell_length(max(columns - note_width - label_width, 0))
        end = [Segment(text, self._view.look.style(role)) for text, role in (*note, *label)]
        return [*(strip.adjust_cell_length(columns) for strip in others), Strip.join([last, Strip(end)])]

    def drawn_text(self, line: AnnotatedLine) -> str:
        return self._types.drawn_text(line)

    def _text_strips(self, text_line: TextLine, columns: int) -> list[Strip]:
        """The screen lines of a line's text: all if it is wrapped, else the part on the screen. Caches them."""
        line, view = text_line.line, self._view
        if line is None or columns <= 0:
            return [Strip.blank(max(columns, 0))]
        cells = tuple(text_line.cells) if text_line.cells is not None else ()
        underlined_name = self._names.current if self._names.current and self._names.current in line.text else ""
        pattern = self._matches.pattern if text_line.has_match else None
        # `is_full` and the length change when types or constants of the line are shown in full.
        shape = (view.left, columns, view.wrapped, line.is_full, len(line.text))
        key = (text_line.text, text_line.number, *shape, view.look.name, pattern, cells, underlined_name)
        drawn = self._drawn.get(key)
        if drawn is None:
            drawn = [(list(strip), strip.cell_length) for strip in self._paint(text_line, line, columns)]
            self.cache_lines(key, drawn)
        return [Strip(*drawn_line) for drawn_line in drawn]

    def _paint(self, text_line: TextLine, line: AnnotatedLine, columns: int) -> list[Strip]:
        """Draws all screen lines of a wrapped line, else the part on the screen, with an ellipsis if it is cut."""
        cells, left = text_line.cells, self._view.left
        language, has_match = text_line.language, text_line.has_match
        if cells is not None:
            cells = [(part.expandtabs(TAB_WIDTH), role) for part, role in cells]
        text = self.drawn_text(line) if cells is None else "".join(part for part, _ in cells)
        if self._view.wrapped:
            strip = self._style(text, language, cells, has_match)
            segments = wrap_segments(text, columns)
            return [_indent(strip.crop(segment.start, segment.end), segment.indent) for segment in segments]
        ellipsis = self._ellipsis if len(text) > left + columns else ""
        columns -= len(ellipsis)
        end = left + columns
        strip = self._style(text[: end + LEXED_BEYOND_EDGE], language, cells, has_match).crop(left, end)
        ellipsis_strip = Strip([Segment(ellipsis, self._view.look.style("faint"))])
        return [strip.adjust_cell_length(columns) + ellipsis_strip]

    def _style(self, text: str, language: str, cells: Cells | None, has_match: bool) -> Strip:
        """The text in its syntax, or `cells`, with matches highlighted and the current name underlined."""
        from buddy.themes.lexers import spans

        if cells is None:
            cells = [(part, f"syntax:{kind}") for kind, part in spans(language, text)]
        if has_match:
            cells = self._matches.highlight(cells)
        style, name = self._view.look.style, self._names.current
        strip = Strip([Segment(part, style(role)) for part, role in cells])
        if name and name in text:
            strip = underlined(strip, re.compile(use_pattern(name)), style("linked"))
        return strip


class RowPainter:
    """Draws rows of the IR pane. If `shows_sources` is set, each row shows its node and Python line."""

    def __init__(
        self,
        context: WorkbenchContext,
        view: PainterView,
        document: IrDocument,
        lines: LinePainter,
        matches: Matches,
        jumps: IrJumps,
        assembly: AssemblyGutter,
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._lines, self._matches, self._jumps, self._assembly = lines, matches, jumps, assembly
        self.shows_sources = False

    @property
    def margin(self) -> int:
        """The columns before a line without a diff: the mark, the line number, a space, the gutter of assembly."""
        return self._document.line_number_width + 2 + self._assembly.width

    def character_at(self, line: AnnotatedLine, x: int, screen_line: int) -> tuple[str, int]:
        """The drawn text of a line without a diff, and the offset in it of the character at a position.

        The position is column `x` of the pane, in screen line `screen_line` of the line, counted from 0.
        """
        text, margin = self._lines.drawn_text(line), self.margin
        offset = x - margin + self._view.left
        if self._view.wrapped:
            segments = wrap_segments(text, self._view.width - margin)
            segment = segments[min(screen_line, len(segments) - 1)]
            offset = segment.start + max(0, offset - segment.indent)
        return text, offset

    def strips(self, row: int, width: int) -> list[Strip]:
        document = self._document
        if document.diff is not None:
            return self._diff_strips(row, document.diff.row(row), document.diff.layout, width)
        line, number = document.line_at(row), document.line_of(row)
        mark, role = self._mark(row, number, line)
        assembly_cells, continuation_cells = self._assembly.cells(number, line)
        gutter: Cells = [(f"{mark}{number + 1:>{document.line_number_width}} ", role), *assembly_cells]
        continuation_margin = (" " * (cells_length(gutter) - cells_length(continuation_cells)), role)
        columns = width - cells_length(gutter)
        function_note = self._assembly.function_note(number, columns)
        note = [*function_note, *self._fold_note(number)]
        label = [] if function_note else self._node_note(row, line, columns)
        text_line = TextLine(document.text, document.language, number, line, None, number in self._matches)
        strips = self._lines.strips(text_line, columns, note, label)
        return self._with_gutter(gutter, [continuation_margin, *continuation_cells], strips)

    def _with_gutter(self, gutter: Cells, continuation_gutter: Cells, strips: list[Strip]) -> list[Strip]:
        """Puts `gutter` before the first one of `strips`, and `continuation_gutter` before the others."""
        gutters = [gutter, *([continuation_gutter] * (len(strips) - 1))]
        look = self._view.look
        return [
            Strip.join([look.strip(cells, cells_length(cells)), strip])
            for cells, strip in zip(gutters, strips, strict=True)
        ]

    def _mark(self, row: int, number: int, line: AnnotatedLine | None) -> tuple[str, str]:
        """The mark before a line number, and its role.

        The mark stands for the first of these that applies: the cursor, the selected node, a match of the search, the
        linked Python line, a bookmark. Without a mark, the number has the colour of its Python line, if any.
        """
        selection = self._context.selection
        if row == self._view.cursor:
            return ">", "key"
        if line is not None and selection.node and selection.node in line.node_set:
            return self._context.glyphs.line, "linked"
        if number in self._matches:
            return "*", "warn"
        if line is not None and not selection.linked_nodes.isdisjoint(line.own_node_set):
            return "=", selection.colour_of(line.own_nodes)
        if self._jumps.has_bookmark(number):
            return "#", "accent"
        return " ", (selection.colour_of(line.own_nodes) if line is not None else "") or "number"

    # ---- notes at the right end ----------------------------------------------------------------------------------

    def _fold_note(self, number: int) -> Cells:
        """The number of lines that are folded under a line."""
        count = self._document.folds.hidden_count(number)
        return [(f" {self._dots} {formatting.count(count)} lines ", "fold")] if count else []

    def _node_note(self, row: int, line: AnnotatedLine | None, columns: int) -> Cells:
        """The nodes of the cursor's line. With `shows_sources`, also the nodes and the Python line of other lines."""
        if row == self._view.cursor:
            return self._nodes_label(line, columns)
        if not self.shows_sources or line is None or not line.nodes:
            return []
        label = [(text, "dim") for text, _ in self._nodes_label(line, columns)]
        location = self._context.selection.short_location(line.nodes[0]) if columns >= MIN_COLUMNS_FOR_LOCATION else ""
        return [*label, (f"{location} ", "faint")] if location else label

    def _nodes_label(self, line: AnnotatedLine | None, columns: int) -> Cells:
        """The selected or first node of a line, and the number of its other nodes: `mm_3 (+11)`, `mm_3 (derived)`."""
        if line is None or not line.nodes:
            return []
        selection = self._context.selection
        node = selection.node if selection.node in line.node_set else line.nodes[0]
        suffix = f" (+{len(line.nodes) - 1})" if len(line.nodes) > 1 else ""
        suffix += " (derived)" if node in line.derived_nodes else ""
        name = formatting.clip(selection.name_of(node), max(columns // 3, 8), self._context.glyphs)
        return [(f" {name}{suffix} ", "linked")]

    @property
    def _dots(self) -> str:
        return self._context.glyphs.dot * 3

    # ---- rows of a diff ------------------------------------------------------------------------------------------

    def _diff_strips(self, row: int, diff_row: DiffRow, layout: DiffLayout, width: int) -> list[Strip]:
        """The screen lines of a row of a diff: folded equal lines, two lines side by side, or one line."""
        if diff_row.kind == "fold":
            return [self._equal_lines(row, diff_row, width)]
        if layout == "side-by-side":
            return self._both_sides(row, diff_row, width)
        return self._side(row, diff_row, "before" if diff_row.kind == "removed" else "after", layout, width)

    def _equal_lines(self, row: int, diff_row: DiffRow, width: int) -> Strip:
        """A row that stands for folded equal lines."""
        at_cursor = row == self._view.cursor
        text = f"{'>' if at_cursor else ' '}{self._dots} {formatting.count(diff_row.folded)} equal lines {self._dots}"
        hint = f"  {key_of('ir.fold')} unfolds" if at_cursor else ""
        return self._view.look.strip([(text, "fold"), (hint, "dim")], width)

    def _both_sides(self, row: int, diff_row: DiffRow, width: int) -> list[Strip]:
        """A row with a line of each text side by side. If one has fewer screen lines, blank lines follow below it."""
        left_width = (width - 1) // 2
        widths = (left_width, width - left_width - 1)
        bar = Strip([Segment(self._context.glyphs.line, self._view.look.style("faint"))])
        sides = [
            self._side(row, diff_row, side, "side-by-side", columns)
            for side, columns in zip(("before", "after"), widths, strict=True)
        ]
        height = max(map(len, sides))
        for side, columns in zip(sides, widths, strict=True):
            side += [Strip.blank(columns)] * (height - len(side))
        return [Strip.join([before, bar, after]) for before, after in zip(*sides, strict=True)]

    def _side(self, row: int, diff_row: DiffRow, side: str, layout: DiffLayout, width: int) -> list[Strip]:
        """The line of one text in a row of a diff: mark, line number, sign and text.

        `side` is "after" for the stage's text, "before" for the text that it is compared with.
        """
        document, is_after, at_cursor = self._document, side == "after", row == self._view.cursor
        number = diff_row.after if is_after else diff_row.before
        if number < 0:
            return [self._view.look.strip([], width)]
        line = document.own_text_line(number) if is_after else document.other_text_line(number)
        changed_kind = "added" if is_after else "removed"
        kind = "same" if diff_row.kind == "same" else changed_kind
        # Matches and bookmarks are on lines of the stage's text only.
        mark, role = self._mark(row, number if is_after else -1, line)
        if kind != "same" and not at_cursor:
            role = kind
        sign = (SIGNS[kind], kind if kind != "same" else "dim")
        gutter: Cells = [(f"{mark}{number + 1:>{document.line_number_width}} ", role), sign]
        continuation_gutter: Cells = [(" " * (cells_length(gutter) - 1), role), sign]
        columns = width - cells_length(gutter)
        label = self._nodes_label(line, columns) if at_cursor and (is_after or diff_row.after < 0) else []
        note = self._folded_note(diff_row) if is_after or layout != "side-by-side" else []
        source = document if is_after or document.other is None else document.other
        cells = self._changed_cells(diff_row, is_after, kind, line)
        text_line = TextLine(source.text, source.language, number, line, cells, is_after and number in self._matches)
        strips = self._lines.strips(text_line, columns, note, label)
        return self._with_gutter(gutter, continuation_gutter, strips)

    def _folded_note(self, diff_row: DiffRow) -> Cells:
        """The lines that are folded under the first line of a function: `··· 120 lines +3 −4`."""
        if not diff_row.folded:
            return []
        changes = formatting.count_change(diff_row.added, diff_row.removed, self._context.glyphs)
        cells: Cells = [(f" {self._dots} {formatting.count(diff_row.folded)} lines ", "fold")]
        pairs = zip(changes, ("added", "removed"), strict=True)
        return [*cells, *((f"{text} ", role) for text, role in pairs if text)]

    def _changed_cells(self, diff_row: DiffRow, is_after: bool, kind: str, line: AnnotatedLine | None) -> Cells | None:
        """The cells of a changed line, with the words highlighted that differ from its partner in the other text.

        Returns `None` for an unchanged line, which is drawn in its syntax, and for a line that is not cached.
        `is_after` is whether the line is of the stage's text.
        """
        if kind == "same" or line is None:
            return None
        document = self._document
        partner: AnnotatedLine | None = None
        # Side by side, the partner is in the same row; otherwise, `diff_row.partner` is its number.
        partner_number = max(diff_row.before if is_after else diff_row.after, diff_row.partner)
        if partner_number >= 0:
            partner = document.other_text_line(partner_number) if is_after else document.own_text_line(partner_number)
        spans: Spans = ()
        if partner is not None:
            old_line, new_line = (partner.text, line.text) if is_after else (line.text, partner.text)
            aliases = document.diff.aliases if document.diff is not None else ()
            is_line_diff = document.content.mode == "line"
            old_spans, new_spans = changed_words(old_line, new_line, names=is_line_diff, aliases=aliases)
            spans = new_spans if is_after else old_spans
        return highlight_changes(line.text, spans, kind, f"{kind}-word")


def highlight_changes(line: str, spans: Spans, role: str, word_role: str) -> Cells:
    """Returns `line` as cells with the role `role`, and `word_role` in `spans`, which are pairs (start, end)."""
    cells: Cells = []
    previous_end = 0
    for start, end in spans:
        cells += [(line[previous_end:start], role), (line[start:end], word_role)]
        previous_end = end
    return [cell for cell in (*cells, (line[previous_end:], role)) if cell[0]]


def _indent(strip: Strip, indent: int) -> Strip:
    """Returns `strip` after `indent` blank columns."""
    return Strip.join([Strip.blank(indent), strip]) if indent else strip
