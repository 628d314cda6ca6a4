"""What of the IR pane is about reading a stage: folds, functions, whole lines, documentation, forms, bookmarks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import msgspec
from textual import work

from buddy.app.panes.comparison import View
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import region_of
from buddy.app.panes.navigation import JumpHistory, StagePosition
from buddy.app.panes.short_form import ShortForm
from buddy.app.panes.values import op_name
from buddy.app.reports import formatting
from buddy.app.reports.text.constant_expansion import LONGEST
from buddy.app.reports.text.differences import DiffRows
from buddy.app.reports.text.folds import Folds, TextFold
from buddy.app.reports.text.patterns import Pattern
from buddy.app.screens.detail import DetailScreen
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.session.bounded import FORMS, keep_newest
from buddy.app.session.lines import AnnotatedLine
from buddy.app.session.stages import StageRow
from buddy.app.widgets.look import Cells
from buddy.app.workspace.bookmarks import Bookmark
from buddy.app.workspace.input_parsing import relative_to_current
from buddy.compiler.protocol import Stage, Symbol

ALIAS = re.compile(r"^[#!][\w$.\-]+ = ")
# Characters of a line that are shown at most; the rest is for a file.
WHOLE_LINE = 200_000


class Reading(ShortForm):
    """Shows a stage in part, in short or in another form."""

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.sources = False
        self.generic = False
        self._forms: dict[str, tuple[str, int]] = {}

    def forget_reading(self) -> None:
        """Forget what belongs to texts of another graph."""
        self.jumps = JumpHistory()
        self._symbols.clear()
        self.document.clear()
        self._forms.clear()
        self.expansions.clear()

    def reading_parts(self) -> list[str]:
        """What the line over the text says of how the stage is shown."""
        only = f"only @{self.document.only}" if self.document.only and self.document.narrowed else ""
        return [part for part in ("generic form" if self.generic else "", only) if part]

    # ---- folds ---------------------------------------------------------------------------------------------------

    def view_of(self, row: StageRow) -> View:
        return super().view_of(row)._replace(only=self.document.only)

    async def folds_of(self, stage: Stage) -> Folds:
        """What of a stage is on the screen."""
        symbols = await self.symbols_of(stage) if self.document.only or self.document.all_folded else ()
        return self.document.folds_of(stage, symbols)

    def toggle_fold(self) -> None:
        """Fold the region at the cursor, or unfold it; in a diff, the equal lines."""
        if self.document.diff is not None:
            super().toggle_fold()
        elif self.document.folds.behind(self.line_number):
            line = self.line_number
            self._refold({fold for fold in self.document.folded if fold.first != line}, line)
        else:
            self._fold_region(self.line_number)

    @work(exclusive=True, group="fold")
    async def _fold_region(self, line: int) -> None:
        stage = self.stage
        if stage is None:
            return
        symbols = await self.symbols_of(stage)
        whole = next((one for one in symbols if line in _handles(one, stage.language)), None)
        if whole is not None and whole.last > whole.first:
            fold: TextFold | None = region_of(whole)
        else:
            fold = await self._aliases_at(stage.text, line) or await self._region_at(stage.text, line)
        if fold is None:
            self.say("no region to fold here")
        elif self.document.text == stage.text and self.document.diff is None:
            self._refold({*self.document.folded, fold}, fold.first)

    async def _region_at(self, text: str, line: int) -> TextFold | None:
        region = await self.context.queries.region(text, line)
        return TextFold(region.first, region.last - 1) if region and region.last > region.first + 1 else None

    async def _aliases_at(self, text: str, line: int) -> TextFold | None:
        """The lines around `line` that define aliases, such as `#map1 = affine_map<…>`, where it is one of them."""
        here = self.context.session.cache.get(text, line)
        if here is None or not ALIAS.match(here.text):
            return None
        found = await self.context.queries.search(text, Pattern(ALIAS.pattern, ALIAS.pattern, regex=True))
        lines = set(found.lines) if found is not None else set()
        first = last = line
        while first - 1 in lines:
            first -= 1
        while last + 1 in lines:
            last += 1
        return TextFold(first, last) if last > first else None

    def toggle_all_folds(self) -> None:
        """Fold every function, or unfold all; in a diff, those that changed."""
        self.document.all_folded = not self.document.all_folded
        self.document.forget_folds()
        if self.document.diff is not None:
            self._narrow_diff()
        else:
            self._fold_functions()

    @work(exclusive=True, group="fold")
    async def _narrow_diff(self) -> None:
        """Arrange the diff on the screen anew: the function that alone is shown, functions folded or not."""
        stage, diff, line = self.stage, self.document.diff, self.line_number
        if stage is None or diff is None:
            return
        await self.narrow(diff, stage)
        if self.document.diff is diff:
            self.cursor = diff.row_of(line) if diff.count else 0
            self.rows_changed()
            folded = "changed functions are folded: z unfolds one, Z all"
            self.say(folded if self.document.all_folded else "all is unfolded")

    async def narrow(self, diff: DiffRows, stage: Stage) -> None:
        """Leave of a diff the function that alone is to be shown, and fold functions where that is asked for."""
        wanted = self.document.only or self.document.all_folded or diff.narrowed
        symbols = await self.symbols_of(stage) if wanted else ()
        self.document.narrow(diff, symbols)

    @work(exclusive=True, group="fold")
    async def _fold_functions(self) -> None:
        stage = self.stage
        if stage is not None:
            await self.folds_of(stage)
            # Meanwhile another stage may have come onto the screen, or the texts may have been forgotten.
            if self.document.text == stage.text and self.document.diff is None:
                self._refold(self.document.folded, self.line_number)
            self.say("functions are folded: z unfolds one, Z all" if self.document.all_folded else "all is unfolded")

    def _refold(self, folded: set[TextFold], line: int) -> None:
        """Draw with these folds, the cursor on `line` and where it was on the screen."""
        offset = self.cursor - self.first_row
        self.document.refold(folded)
        self.draw_folds(line, offset)

    def draw_folds(self, line: int, offset: int) -> None:
        super().draw_folds(line, offset)
        self.mark_value()

    # ---- functions -----------------------------------------------------------------------------------------------

    @work(exclusive=True, group="outline")
    async def choose_only(self) -> None:
        """Choose the function that alone is shown, here and in the stages one steps to."""
        symbols = await self._symbols_here()
        choices = [
            _choice(symbol, symbol.name, symbol.name == self.document.only)
            for symbol in symbols
            if symbol.last > symbol.first
        ]
        if choices:
            everything = PickerChoice("everything", "the whole stage", "", not self.document.only)
            self.app.push_screen(PickerScreen("Show only", [everything, *choices]), self._show_only)

    def _show_only(self, name: str | None) -> None:
        if name is not None:
            self.document.only = name
            self.open_stage()

    @work(exclusive=True, group="outline")
    async def open_outline(self) -> None:
        """List the functions, globals and graphs of the stage, and go to the one that is chosen."""
        symbols, line = await self._symbols_here(), self.line_number
        notes = await self.notes_of(symbols)
        choices = [
            _choice(symbol, symbol.first, symbol.first <= line <= symbol.last, notes.get(symbol.first, ""))
            for symbol in symbols
        ]
        if choices:
            self.app.push_screen(PickerScreen("Outline", choices), self._go_symbol)

    async def notes_of(self, symbols: Sequence[Symbol]) -> dict[int, str]:
        """What the outline says more of symbols, by their first lines."""
        return {}

    def _go_symbol(self, first: int | None) -> None:
        if first is not None:
            self.go_to(first)

    async def _symbols_here(self) -> tuple[Symbol, ...]:
        symbols = await self.symbols_of(self.stage) if self.stage is not None else ()
        if not symbols:
            self.say("this stage has no functions")
        return symbols

    # ---- whole lines and documentation ---------------------------------------------------------------------------

    @work(exclusive=True, group="whole")
    async def read_line(self) -> None:
        """The cursor's line as it is, wrapped, constants and all, with the graph nodes that it comes from."""
        line, number = self.line_at(self.cursor), self.document.own_line(self.cursor)
        if line is None or number < 0 or self.stage is None:
            return
        found = await self.context.queries.characters(self.document.text, number, 0, WHOLE_LINE)
        if found is None:
            return
        lines: list[Cells] = [[(found.content.strip(), "text")]]
        if found.total > len(found.content):
            rest = found.total - len(found.content)
            lines += [[], [(f"{formatting.count(rest)} more characters: w writes the stage to a file", "dim")]]
        places = (
            {row.stable: relative_to_current(row.location) for row in self.state.info.rows} if self.state.info else {}
        )
        if line.machine:
            lines += [[], [("machine code  ", "accent"), (line.machine, "text")]]
        for node in line.nodes:
            name = self.context.selection.name_of(node) + " (derived)" * (node in line.derived)
            lines += [[], [(f"from {name}  ", "accent"), (places.get(node, ""), "dim")]]
        self.app.push_screen(DetailScreen(f"Line {formatting.count(number + 1)} of {self.stage.name}", lines))

    @work(exclusive=True, group="whole")
    async def expand_constant(self) -> None:
        """Put back what of the cursor's line is in short, then its next elided constant; elide all again at the end."""
        number, text = self.document.own_line(self.cursor), self.document.text
        line = self.context.session.cache.get(text, number) if number >= 0 else None
        if line is None:
            return
        drawn = self.line_of_text(text, number)
        if drawn is not None and self.document.diff is None and self.draws_short(drawn):
            self.expansions.draw_full(text, number)
            self.rows_changed()
            return
        following = self.expansions.next_gap(text, number, line.text)
        if following is None:
            closed = self.expansions.close(text, number)
            self.say("elided again" if closed else "nothing is elided on this line: o shows the whole of it")
        else:
            place, gap = following
            wanted = LONGEST if gap.tail else min(gap.missing, LONGEST)
            found = await self.context.queries.characters(text, number, gap.start, wanted)
            if found is None:
                return
            whole = found.total - gap.start if gap.tail else gap.missing
            rest = whole - len(found.content)
            self.expansions.fill(text, number, place, found.content, rest)
            more = f" of {formatting.count(whole)}: w writes the stage to a file" if rest else ""
            self.say(f"{formatting.count(len(found.content))} characters{more}")
        self.rows_changed()

    @work(exclusive=True, group="whole")
    async def describe_op(self) -> None:
        """What the dialect's documentation says of the op on the cursor's line."""
        line = self.line_at(self.cursor)
        name = op_name(line.text) if line is not None and self.document.language == "mlir" else ""
        if not name:
            self.say("no MLIR op begins on this line")
            return
        text = await self.context.queries.describe_op(name)
        if text is None:
            return
        if text:
            lines: list[Cells] = [[(part, "text")] for part in text.splitlines()]
            self.app.push_screen(DetailScreen(name, lines))
        else:
            self.say(f"the MLIR bindings have no documentation of {name}")

    # ---- with sources, in generic form ----------------------------------------------------------------------------

    def toggle_sources(self) -> None:
        self.sources = not self.sources
        self.rows_changed()
        self.say("each line with its node and Python line" if self.sources else "nodes of the cursor's line only")

    def folded_behind(self, number: int) -> Cells:
        """How many lines are folded behind a line, to stand at its right end."""
        behind = self.document.folds.behind(number)
        return [(f" {self.glyphs.dot * 3} {formatting.count(behind)} lines ", "fold")] if behind else []

    def beside(self, row: int, line: AnnotatedLine | None, room: int) -> Cells:
        """What stands at the right end of a row where there is room: the nodes it comes from."""
        if row == self.cursor or not self.sources:
            return self._label(line, room) if row == self.cursor else []
        label = [(text, "dim") for text, _ in self._label(line, room)]
        place = self._source(line) if label and room >= 60 else ""
        return [*label, (f"{place} ", "faint")] if place else label

    def _source(self, line: AnnotatedLine | None) -> str:
        """The Python line of the first node that a line comes from."""
        node = line.nodes[0] if line is not None and line.nodes else ""
        return self.context.selection.place_of(node) if node else ""

    def toggle_generic(self) -> None:
        self.generic = not self.generic
        self.form_rows()
        self.open_stage()
        if not self.generic:
            self.say("the dialects' own form")

    def form_rows(self) -> None:
        """Take the stages of the board, in the form that is wanted where there is one."""
        rows = self.state.board.rows()
        self.rows = [row._replace(stage=self._formed(row.stage)) for row in rows]

    def _formed(self, stage: Stage) -> Stage:
        form = self._forms.get(stage.text) if self.generic else None
        return msgspec.structs.replace(stage, text=form[0], lines=form[1]) if form else stage

    def other_of(self, row: StageRow) -> Stage | None:
        other = super().other_of(row)
        return self._formed(other) if other is not None else None

    def lacks_form(self, row: StageRow) -> bool:
        """Whether what is to be drawn of a stage has yet to be printed in the wanted form."""
        return self.generic and bool(self._unformed(row))

    def _unformed(self, row: StageRow) -> list[str]:
        formed = {text for text, _ in self._forms.values()}
        stages = [stage for stage in (row.stage, self.other_of(row)) if stage is not None and stage.language == "mlir"]
        return [stage.text for stage in stages if stage.text not in formed]

    @work(exclusive=True, group="form")
    async def bring_form(self, row: StageRow) -> None:
        """Have the stage, and what it is compared with, printed in generic form, then show it."""
        for text in self._unformed(row):
            made = await self.context.queries.reprint(text)
            if made is None:
                self.generic = False
                break
            self._forms[text] = (made.form, made.lines)
            keep_newest(self._forms, FORMS)
        self.form_rows()
        self.open_stage()

    # ---- bookmarks -----------------------------------------------------------------------------------------------

    def toggle_bookmark(self) -> None:
        """Mark the cursor's line to come back to, or take the mark away."""
        line, number = self.line_at(self.cursor), self.document.own_line(self.cursor)
        if line is None or number < 0 or self.key is None:
            return
        mark = Bookmark(self.state.graph, self.key, number, line.text.strip())
        self.say("bookmarked: ' lists bookmarks" if self.context.bookmarks.toggle(mark) else "bookmark taken away")
        self.refresh_row(self.cursor)

    def marked(self, number: int) -> bool:
        """Whether a line has a bookmark."""
        marks = self.context.bookmarks
        return bool(marks.marks) and number in marks.lines_of(self.state.graph, self.key)

    def open_bookmarks(self) -> None:
        marks = [mark for mark in self.context.bookmarks.marks if mark.graph == self.state.graph]
        if not marks:
            self.say("no bookmarks: M sets one")
            return
        choices: list[Any] = [PickerChoice(f"{mark.key[0]}:{mark.line + 1}", mark.text, mark) for mark in marks]
        self.app.push_screen(PickerScreen("Bookmarks", choices), self._bookmark_chosen)

    def _bookmark_chosen(self, mark: Bookmark | None) -> None:
        if mark is not None:
            self._go_bookmark(mark)

    @work(exclusive=True, group="search")
    async def _go_bookmark(self, mark: Bookmark) -> None:
        """To the line that says what the bookmarked one said, the nearest where an edit has moved it."""
        row = next((row for row in self.rows if row.key == mark.key), None)
        if row is None:
            self.say(f"there is no stage {mark.key[0]} now")
            return
        pattern = Pattern(mark.text, mark.text, regex=False)
        found = await self.context.queries.search(row.stage.text, pattern) if mark.text else None
        lines = found.lines if found is not None and found.lines else (mark.line,)
        self.go_from_here(StagePosition(mark.key, min(lines, key=lambda line: abs(line - mark.line))))


def _handles(symbol: Symbol, language: str) -> Sequence[int]:
    """The lines at which a symbol as a whole is folded; in assembly nothing smaller folds."""
    return range(symbol.first, symbol.last + 1) if language == "asm" else (symbol.first, symbol.last)


def _choice(symbol: Symbol, value: Any, marked: bool, note: str = "") -> PickerChoice:
    length = symbol.last - symbol.first + 1
    lines = f"{formatting.count(length)} line{'s' * (length != 1)}"
    about = f"{symbol.kind}, {lines} from {formatting.count(symbol.first + 1)}"
    return PickerChoice(symbol.name, f"{about}, {note}" if note else about, value, marked)
