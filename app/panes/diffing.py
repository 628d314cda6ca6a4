"""What of the IR pane is about diffs: rows of two texts, unified or side by side, and the keys for them."""

from __future__ import annotations

from rich.segment import Segment
from textual.strip import Strip

from buddy.app.panes.comparison import ComparedStages, Comparison, View, change_counts, no_change
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument
from buddy.app.panes.painting import Painting
from buddy.app.reports import formatting
from buddy.app.reports.text.differences import DiffRow, DiffRows, Layout
from buddy.app.reports.text.folds import Folds
from buddy.app.reports.text.word_diff import Spans, changed_words
from buddy.app.session.lines import PAGE, AnnotatedLine
from buddy.app.session.stages import StageRow
from buddy.app.widgets.look import Cells, length
from buddy.compiler.protocol import Stage

# From this width on there is room for two texts side by side: 70 columns of each.
BESIDE_FROM = 150
SIGNS = {"removed": "-", "added": "+", "same": " "}


class Diffing(Painting):
    """Draws lines of one text, or of the two that `diff` compares: the stage's own and that of `other`."""

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.rows: list[StageRow] = []
        self.document = IrDocument()
        self.comparison = Comparison()
        self.comparing = False
        self._view = View("")

    @property
    def shown(self) -> StageRow | None:
        raise NotImplementedError

    def open_stage(self) -> None:
        raise NotImplementedError

    # ---- rows and lines ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return self.document.row_count

    @property
    def line_number(self) -> int:
        """The line of the stage's own text that the cursor is on, or before which something was removed."""
        return self.document.line_of(self.cursor)

    def row_of(self, line: int) -> int:
        """The row of a line of the stage's own text, unfolded if need be."""
        document = self.document
        if document.diff is None:
            if document.hides(line):
                self._reveal(line)
            return document.folds.row_of(line)
        count = document.row_count
        row, outside = document.reveal_in_diff(document.diff, line)
        if outside:
            self._view = self._view._replace(only="")
        if document.row_count != count:
            self.rows_changed()
        return row

    def _reveal(self, line: int) -> None:
        offset = self.cursor - self.first_row
        if self.document.reveal(line):
            self._view = self._view._replace(only="")
        self.draw_folds(line, offset)

    def draw_folds(self, line: int, offset: int) -> None:
        """Draw the folds anew, the cursor on `line` and `offset` rows below the first one on the screen."""
        self.cursor = self.document.folds.row_of(line)
        self.rows_changed()
        self.keep_cursor_at(offset)

    async def narrow(self, diff: DiffRows, stage: Stage) -> None:
        """Leave of a diff what is to be shown of it."""

    def line_at(self, row: int) -> AnnotatedLine | None:
        """The line on `row`; a removed one is the other text's."""
        if not self.document.text or not 0 <= row < self.row_count:
            return None
        source = self.document.source_of(row)
        return self.line_of_text(*source) if source is not None else AnnotatedLine("")

    def _after(self, line: int) -> AnnotatedLine | None:
        return self.line_of_text(self.document.text, line)

    def _before(self, line: int) -> AnnotatedLine | None:
        other = self.document.other
        return self.line_of_text(other.text, line) if other is not None else None

    def rows_changed(self) -> None:
        layout: Layout = "beside" if self.width >= BESIDE_FROM else "unified"
        document = self.document
        if document.diff is not None and document.diff.layout != layout:
            line, offset = self.line_number, self.cursor - self.first_row
            document.diff.arrange(layout)
            self.cursor = document.diff.row_of(line) if document.diff.count and line < document.lines else 0
            self.keep_cursor_at(offset)
        super().rows_changed()

    # ---- making a diff -------------------------------------------------------------------------------------------

    def other_of(self, row: StageRow) -> Stage | None:
        """The stage that the one of `row` is compared with."""
        return self.comparison.other(row, self.rows, self.state.board)

    def view_of(self, row: StageRow) -> View:
        """What is to be drawn of a stage."""
        other = self.other_of(row)
        if other is None:
            return View(row.stage.text, how=self.comparison.how)
        return View(row.stage.text, other.text, self.comparison.how)

    async def compared(self, row: StageRow, other: Stage | None) -> DiffRows | None:
        """The difference of a stage from `other`, `None` where nothing is compared or the engine has no answer."""
        how, stage = self.comparison.how, row.stage
        if other is None or how == "off":
            return None
        layout: Layout = "beside" if self.width >= BESIDE_FROM else "unified"
        if other.text == stage.text:
            return DiffRows((), other.lines, stage.lines, layout)
        self.comparing = True
        self.refresh_edges()
        try:
            found = await self.context.queries.compare(other.text, stage.text, how, stage.language)
        finally:
            self.comparing = False
        if not found:
            return None
        diff = DiffRows(found.hunks, found.before_lines, found.after_lines, layout)
        await self.narrow(diff, stage)
        return diff

    async def load_rows(self, stage: Stage, other: Stage | None, diff: DiffRows | None, folds: Folds, top: int) -> bool:
        """Bring the lines of a page of rows; whether they are at hand."""
        if diff is None or other is None:
            numbers = [folds.line_of(row) for row in range(top, min(top + self.page, folds.count))] or [0]
            pages = {number // PAGE: number for number in numbers}
            return all([await self.context.queries.load_lines(stage.text, number, 1) for number in pages.values()])
        wanted: dict[tuple[str, int], None] = {}
        for number in range(top, min(top + self.page, diff.count)):
            row = diff.row(number)
            lines = {stage.text: (row.after,), other.text: (row.before,)}
            if row.kind in ("removed", "added"):
                lines = {stage.text: (max(row.after, row.partner),), other.text: (max(row.before, row.partner),)}
            wanted |= dict.fromkeys((text, line) for text, (line,) in lines.items() if line >= 0)
        return all([await self.context.queries.load_lines(text, line, 1) for text, line in wanted])

    # ---- what is said of it --------------------------------------------------------------------------------------

    def diff_parts(self) -> list[str]:
        """What the line over the text says of the diff."""
        if self.comparison.how == "off":
            return []
        how, *other = self._told()
        drawn = self.shown is not None and self._view == self.view_of(self.shown)
        counts = change_counts(self.document.diff, self.glyphs) if drawn and self.document.diff is not None else ""
        return [how, *filter(None, [counts]), *other]

    def diff_state(self) -> Cells:
        if self.comparing:
            return [(f" comparing{self.glyphs.ellipsis} ctrl+c cancels ", "notice")]
        return no_change(self._view, self.document.diff) if self.document.diff is not None else []

    # ---- drawing -------------------------------------------------------------------------------------------------

    def diff_strips(self, row: int, width: int) -> list[Strip]:
        """A row of the diff: its lines on the screen."""
        assert self.document.diff is not None
        found = self.document.diff.row(row)
        if row == self.first_row:
            self._fetch_ahead()
        if found.kind == "fold":
            strips = [self._fold_strip(row, found, width)]
        elif self.document.diff.layout == "beside":
            strips = self._beside(row, found, width)
        else:
            strips = self._side(row, found, "before" if found.kind == "removed" else "after", width)
        return [self.look.over(strip, self.background(row)) for strip in strips]

    def _beside(self, row: int, found: DiffRow, width: int) -> list[Strip]:
        """Both texts' parts of a row, the shorter one filled up."""
        left = (width - 1) // 2
        widths = (left, width - left - 1)
        bar = Strip([Segment(self.glyphs.line, self.look.style("faint"))])
        sides = [self._side(row, found, side, room) for side, room in zip(("before", "after"), widths, strict=True)]
        height = max(map(len, sides))
        for side, room in zip(sides, widths, strict=True):
            side += [Strip.blank(room)] * (height - len(side))
        return [Strip.join([one, bar, other]) for one, other in zip(*sides, strict=True)]

    def _fetch_ahead(self) -> None:
        """Have the lines of the next page brought: behind a fold they are far from those on the screen."""
        assert self.document.diff is not None
        assert self.document.other is not None
        start = self.first_row + self.page
        for number in range(start, min(start + self.page, self.document.diff.count), 8):
            row = self.document.diff.row(number)
            for text, line in ((self.document.text, max(row.after, 0)), (self.document.other.text, max(row.before, 0))):
                if line:
                    self.context.session.cache.ahead(text, line)

    def _fold_strip(self, row: int, found: DiffRow, width: int) -> Strip:
        mark = ">" if row == self.cursor else " "
        dots = self.glyphs.dot * 3
        text = f"{mark}{dots} {formatting.count(found.folded)} equal lines {dots}"
        return self.look.strip([(text, "fold"), ("  z unfolds" if row == self.cursor else "", "dim")], width)

    def _side(self, row: int, found: DiffRow, side: str, width: int) -> list[Strip]:
        """One text's part of a row: mark, number, sign and the line."""
        number = found.before if side == "before" else found.after
        if number < 0:
            return [self.look.strip([], width)]
        line = self._before(number) if side == "before" else self._after(number)
        kind = {"before": "removed", "after": "added"}[side] if found.kind != "same" else "same"
        mark, role = self._mark(row, number if side == "after" else -1, line)
        if kind != "same" and row != self.cursor:
            role = kind
        sign = (SIGNS[kind], kind if kind != "same" else "dim")
        gutter: Cells = [(f"{mark}{number + 1:>{self.document.digits}} ", role), sign]
        room = width - length(gutter)
        label = self._label(line, room) if row == self.cursor and (side == "after" or found.after < 0) else []
        cells = self._diff_cells(found, side, kind, line)
        kept = self._folded_cells(found) if side == "after" or self.diff_layout != "beside" else []
        strips = self._line_strips(side, number, line, cells, room, kept, label)
        return self._behind(gutter, [(" " * (length(gutter) - 1), role), sign], strips)

    @property
    def diff_layout(self) -> Layout:
        return self.document.diff.layout if self.document.diff is not None else "unified"

    def _folded_cells(self, found: DiffRow) -> Cells:
        """What is folded behind the first line of a function: `··· 120 lines +3 −4`."""
        if not found.folded:
            return []
        changes = formatting.op_count_change(found.added, found.removed, self.glyphs)
        cells: Cells = [(f" {self.glyphs.dot * 3} {formatting.count(found.folded)} lines ", "fold")]
        pairs = zip(changes, ("added", "removed"), strict=True)
        return [*cells, *((f"{text} ", role) for text, role in pairs if text)]

    def _line_strips(
        self,
        side: str,
        number: int,
        line: AnnotatedLine | None,
        cells: Cells | None,
        room: int,
        kept: Cells,
        label: Cells,
    ) -> list[Strip]:
        """A line of one of the texts, with what stands at its right end."""
        document = self.document
        shown = document.other if side == "before" and document.other is not None else document
        text, language = shown.text, shown.language
        beside = 0 if self.wrapped else length(kept) + length(label)
        body = self.body(text, language, number, line, cells, room - beside, side == "after" and number in self.matches)
        return self.lines_with(body, room, kept, label)

    def _behind(self, gutter: Cells, below: Cells, strips: list[Strip]) -> list[Strip]:
        """`gutter` before the first of the lines, `below` before the others."""
        before = [gutter, *([below] * (len(strips) - 1))]
        return [
            Strip.join([self.look.strip(cells, length(cells)), strip])
            for cells, strip in zip(before, strips, strict=True)
        ]

    def _label(self, line: AnnotatedLine | None, room: int) -> Cells:
        """The nodes of the cursor's line: `mm_3 (+11)`, and whether that is derived."""
        if line is None or not line.nodes:
            return []
        first = self.context.selection.node if self.context.selection.node in line.nodes else line.nodes[0]
        more = f" (+{len(line.nodes) - 1})" if len(line.nodes) > 1 else ""
        more += " (derived)" if first in line.derived else ""
        return [
            (
                f" {formatting.clip(self.context.selection.name_of(first), max(room // 3, 8), self.glyphs)}{more} ",
                "linked",
            )
        ]

    def _diff_cells(self, found: DiffRow, side: str, kind: str, line: AnnotatedLine | None) -> Cells | None:
        """What a changed line is drawn in; `None` for one that has not changed, which keeps its syntax."""
        if kind == "same" or line is None:
            return None
        opposite: AnnotatedLine | None = None
        if side == "before" and max(found.after, found.partner) >= 0:
            opposite = self._after(max(found.after, found.partner))
        elif side == "after" and max(found.before, found.partner) >= 0:
            opposite = self._before(max(found.before, found.partner))
        spans: Spans = ()
        if opposite is not None:
            pair = (line.text, opposite.text) if side == "before" else (opposite.text, line.text)
            spans = changed_words(*pair, names=self._view.how == "line")[side == "after"]
        return highlight_changes(line.text, spans, kind, f"{kind}-word")

    @property
    def margin(self) -> int:
        """The columns before the text, where nothing is compared: a mark and the number."""
        return self.document.digits + 2

    def _mark(self, row: int, number: int, line: AnnotatedLine | None) -> tuple[str, str]:
        if row == self.cursor:
            return ">", "key"
        if line is not None and self.context.selection.node and self.context.selection.node in line.nodes:
            return self.glyphs.line, "linked"
        if number in self.matches:
            return "*", "warn"
        return ("#", "accent") if self.marked(number) else (" ", "number")

    def marked(self, number: int) -> bool:
        """Whether a line has a bookmark."""
        return False

    # ---- actions -------------------------------------------------------------------------------------------------

    def next_diff(self) -> None:
        self.comparison.next_how()
        self.open_stage()
        self.say("diff off" if self.comparison.how == "off" else " ".join(self._told()))

    def next_against(self) -> None:
        if self.shown is not None:
            self.comparison.next_against(self.shown, self.rows, self.state.board)
            self.open_stage()
            self.say(" ".join(self._told()))

    def _told(self) -> list[str]:
        row = self.shown
        return self.comparison.told(self.other_of(row) if row else None)

    def compare_with(self, others: ComparedStages) -> None:
        """Show what of each stage is different by another recipe, or in another graph."""
        self.comparison.others, self.comparison.against = others, "other"
        if self.comparison.how == "off":
            self.comparison.next_how()
            self.comparison.next_how()
        self.open_stage()
        self.say(" ".join(self._told()))

    def mark_stage(self) -> None:
        """Mark the stage on the screen as the one to compare others with."""
        if self.shown is not None:
            self.comparison.marked = self.shown.stage
            self.open_stage()
            self.say(f"{self.shown.stage.name} is marked: D compares other stages with it")

    def next_hunk(self) -> None:
        self._to_hunk(self.document.diff.change_after(self.cursor) if self.document.diff is not None else None)

    def previous_hunk(self) -> None:
        self._to_hunk(self.document.diff.change_before(self.cursor) if self.document.diff is not None else None)

    def _to_hunk(self, row: int | None) -> None:
        if row is None or self.document.diff is None:
            self.say("nothing differs")
            return
        self.center(row)
        self.say(f"change {self.document.diff.changes.index(row) + 1} of {len(self.document.diff.changes)}")

    def toggle_fold(self) -> None:
        """Unfold the equal lines at the cursor, or fold them; on a changed line, all there are."""
        if self.document.diff is None or not self.document.diff.count:
            return
        line, offset = self.line_number, self.cursor - self.first_row
        if not self.document.diff.toggle(self.cursor):
            self.document.diff.toggle_all()
        self.cursor = self.document.diff.row_of(line) if line < self.document.lines else self.cursor
        self.keep_cursor_at(offset)
        self.rows_changed()


def highlight_changes(line: str, spans: Spans, role: str, word_role: str) -> Cells:
    """`line` in `role`, the runs in `word_role`."""
    cells: Cells = []
    place = 0
    for start, end in spans:
        cells += [(line[place:start], role), (line[start:end], word_role)]
        place = end
    return [cell for cell in (*cells, (line[place:], role)) if cell[0]]
