"""Functions and regions in the IR pane: folds, the outline, and the choice of a function that is shown alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_assembly import AssemblyGutter
from buddy.app.panes.ir_document import IrDocument, IrView, region_of
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_stages import IrStages
from buddy.app.panes.jobs import StageQueries
from buddy.app.reports import formatting
from buddy.app.reports.text.rows import DiffRows, Folds, TextFold
from buddy.app.reports.text.search_hits import Pattern
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.session.state import MAX_CACHED_TEXTS, keep_newest
from buddy.compiler.protocol import Stage, Symbol

# The definition of an alias, such as `#map1 = affine_map<…>`.
ALIAS = re.compile(r"^[#!][\w$.\-]+ = ")


class StageSymbols:
    """The functions, globals and graphs of stages, cached by text."""

    def __init__(self, queries: StageQueries) -> None:
        self._queries = queries
        self._symbols: dict[str, tuple[Symbol, ...]] = {}

    async def of(self, stage: Stage) -> tuple[Symbol, ...]:
        """Returns the symbols of a stage; empty if the request fails."""
        if stage.text not in self._symbols:
            self._symbols[stage.text] = await self._queries.list_symbols(stage.text, stage.language)
            keep_newest(self._symbols, MAX_CACHED_TEXTS)
        return self._symbols[stage.text]

    def clear(self) -> None:
        self._symbols.clear()


class IrFolds:
    """Folds and copies regions and functions of the shown text, lists functions, and shows one function alone."""

    def __init__(
        self,
        context: WorkbenchContext,
        view: IrView,
        document: IrDocument,
        stages: IrStages,
        symbols: StageSymbols,
        jumps: IrJumps,
        assembly: AssemblyGutter,
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._symbols = stages, symbols
        self._jumps, self._assembly = jumps, assembly

    # ---- for the pane --------------------------------------------------------------------------------------------

    async def folds_of(self, stage: Stage) -> Folds:
        """Returns the folds of a stage that is shown next."""
        needs_symbols = self._document.only_function or self._document.all_folded
        return self._document.folds_of(stage, await self._symbols.of(stage) if needs_symbols else ())

    async def narrow(self, diff: DiffRows, stage: Stage) -> None:
        """Limits the diff of `stage` to the function that is shown alone. With `all_folded`, folds the functions."""
        needs_symbols = self._document.only_function or self._document.all_folded or diff.is_narrowed
        self._document.narrow(diff, await self._symbols.of(stage) if needs_symbols else ())

    def header_texts(self) -> list[str]:
        """The name of the function that is shown alone, for the line above the text."""
        document = self._document
        return [f"only @{document.only_function}"] if document.only_function and document.is_narrowed else []

    # ---- one region ----------------------------------------------------------------------------------------------

    def toggle_fold(self) -> None:
        """Folds or unfolds the region at the cursor. In a diff, folds or unfolds equal lines."""
        document, line = self._document, self._view.line_number
        if document.diff is not None:
            self._toggle_equal_lines(document.diff)
        elif document.folds.hidden_count(line):
            self._refold({fold for fold in document.folded if fold.first != line}, line)
        else:
            self._context.jobs.begin("ir-fold", self._fold_region, line)

    def _toggle_equal_lines(self, diff: DiffRows) -> None:
        """Folds or unfolds the equal lines at the cursor, or, if the cursor is on a changed line, all equal lines."""
        view = self._view
        if not diff.count:
            return
        line, offset = view.line_number, view.cursor - view.first_row
        if not diff.toggle(view.cursor):
            diff.toggle_all()
        view.cursor = diff.row_of(line) if line < self._document.line_count else view.cursor
        view.keep_cursor_at(offset)
        view.rows_changed()

    async def _fold_region(self, line: int) -> None:
        """Folds the part of the text to which a line belongs.

        That is the function that starts or ends at the line (in assembly, the function that contains the line); else
        the definitions of aliases around the line; else the innermost region that contains it.
        """
        stage = self._stages.chosen_stage
        if stage is None:
            return
        symbols = await self._symbols.of(stage)
        function = next((symbol for symbol in symbols if line in _lines_that_fold(symbol, stage.language)), None)
        if function is not None and function.last > function.first:
            fold: TextFold | None = region_of(function)
        else:
            fold = await self._aliases_at(stage.text, line) or await self._region_at(stage.text, line)
        if fold is None:
            self._context.say("no region to fold here")
        elif self._document.text == stage.text and self._document.diff is None:
            self._refold({*self._document.folded, fold}, fold.first)

    async def _region_at(self, text: str, line: int) -> TextFold | None:
        """Returns the region of a line, without the region's last line; `None` if no line would be hidden."""
        region = await self._context.queries.find_region(text, line)
        return TextFold(region.first, region.last - 1) if region and region.last > region.first + 1 else None

    async def _aliases_at(self, text: str, line: int) -> TextFold | None:
        """Returns the consecutive lines that define aliases, if `line` is one of several; otherwise `None`."""
        cached_line = self._context.session.cache.get(text, line)
        if cached_line is None or not ALIAS.match(cached_line.text):
            return None
        result = await self._context.queries.search(text, Pattern(ALIAS.pattern, ALIAS.pattern, regex=True))
        alias_lines = set(result.lines) if result is not None else set()
        first = last = line
        while first - 1 in alias_lines:
            first -= 1
        while last + 1 in alias_lines:
            last += 1
        return TextFold(first, last) if last > first else None

    def _refold(self, folded: set[TextFold], line: int) -> None:
        """Folds the regions `folded`, and draws with the cursor on `line`, on the same screen line."""
        offset = self._view.cursor - self._view.first_row
        self._document.refold(folded)
        self._view.place_line(line, offset)

    # ---- copying -------------------------------------------------------------------------------------------------

    def copy_function(self) -> None:
        """Copies the function, or the graph, that contains the cursor's line."""
        self._context.jobs.begin("ir-copy", self._copy_function, self._view.line_number)

    async def _copy_function(self, line: int) -> None:
        """Copies the innermost function or graph that contains `line`."""
        stage = self._stages.chosen_stage
        symbols = await self._symbols.of(stage) if stage is not None else ()
        containing = [symbol for symbol in symbols if symbol.first <= line <= symbol.last and symbol.kind != "global"]
        if containing:
            # Symbols are sorted by their first lines, so the last one is the innermost.
            function = containing[-1]
            self._view.copy_lines_of_stage(function.first, function.last + 1, f"{function.kind} {function.name}")
        else:
            self._context.say("the line at the cursor is in no function")

    def copy_op(self) -> None:
        """Copies the op on the cursor's line, with its regions."""
        self._context.jobs.begin("ir-copy", self._copy_op, self._view.line_number)

    async def _copy_op(self, line: int) -> None:
        """Copies the op on `line`, or, if the line closes or separates regions, the op that has these regions."""
        text = self._document.text
        cached_line = self._document.own_text_line(line)
        if cached_line is None:
            return
        region = await self._context.queries.find_region(text, line) if self._document.language == "mlir" else None
        starts_op = not cached_line.text.strip().startswith(("}", "^"))
        has_no_region = region is not None and starts_op and region.first != line
        if region is None or region.first < 0 or has_no_region:
            self._view.copy_lines_of_stage(line, line + 1, f"the op on line {formatting.count(line + 1)}")
            return
        first, last = await self._adjacent_regions(text, region.first, region.last)
        self._view.copy_lines_of_stage(
            first, last + 1, f"the op on lines {formatting.count(first + 1)} to {formatting.count(last + 1)}"
        )

    async def _adjacent_regions(self, text: str, first: int, last: int) -> tuple[int, int]:
        """Returns the first and the last line of the op that has the region with lines `first` to `last`.

        An op with two regions is printed as `scf.if … {`, `} else {`, `}`. A region starts on the line that opens it,
        and ends on the line that closes it; `} else {` does both. So the lines of the op are those of its adjacent
        regions, which are collected here in both directions.
        """
        find_region = self._context.queries.find_region
        while (next_region := await find_region(text, last)) and next_region.first == last < next_region.last:
            last = next_region.last
        while (opening := self._document.own_text_line(first)) is not None and opening.text.strip().startswith("}"):
            previous_region = await find_region(text, first - 1)
            if previous_region is None or not 0 <= previous_region.first < first:
                break
            first = previous_region.first
        return first, last

    # ---- all functions -------------------------------------------------------------------------------------------

    def toggle_all_folds(self) -> None:
        """Folds all functions (in a diff, only functions with changes), or unfolds everything."""
        self._document.all_folded = not self._document.all_folded
        self._document.forget_folds()
        self._context.jobs.begin("ir-fold", self._fold_text if self._document.diff is None else self._fold_diff)

    async def _fold_diff(self) -> None:
        """Folds or unfolds the functions of the shown diff, depending on `all_folded`."""
        stage, diff, line = self._stages.chosen_stage, self._document.diff, self._view.line_number
        if stage is None or diff is None:
            return
        await self.narrow(diff, stage)
        if self._document.diff is diff:
            self._view.cursor = diff.row_of(line) if diff.count else 0
            self._view.rows_changed()
            self._report_folds("changed functions are folded")

    async def _fold_text(self) -> None:
        """Folds or unfolds the functions of the shown text, depending on `all_folded`."""
        stage, document = self._stages.chosen_stage, self._document
        if stage is None:
            return
        await self.folds_of(stage)
        # During the request, another stage may have been shown, or the folds may have been cleared.
        if document.text == stage.text and document.diff is None:
            self._refold(document.folded, self._view.line_number)
        self._report_folds("functions are folded")

    def _report_folds(self, message: str) -> None:
        """Shows `message` with the keys that unfold. If functions were unfolded, says instead that everything is."""
        if self._document.all_folded:
            self._context.say(f"{message}: {key_of('ir.fold')} unfolds one, {key_of('ir.fold-all')} all")
        else:
            self._context.say("everything is unfolded")

    # ---- outline -------------------------------------------------------------------------------------------------

    def choose_function(self) -> None:
        """Lists the functions of the stage, and shows only the chosen one, in this stage and in those shown later."""
        self._context.jobs.begin_opening("ir-outline", self._choose_function)

    async def _choose_function(self) -> None:
        symbols, shown_name = await self._stage_symbols(), self._document.only_function
        functions = [symbol for symbol in symbols if symbol.last > symbol.first]
        choices = [_symbol_choice(symbol, symbol.name, symbol.name == shown_name) for symbol in functions]
        if choices:
            everything = PickerChoice("everything", "the whole stage", "", not shown_name)
            self._context.dialogs.open(PickerScreen("Show only", [everything, *choices]), self._show_function)

    def _show_function(self, name: str | None) -> None:
        """Shows only the function `name`, or everything for ""; `None` changes nothing."""
        if name is not None:
            self._document.only_function = name
            self._view.open_stage()

    def open_outline(self) -> None:
        """Lists the functions, globals and graphs of the stage, and goes to the chosen one."""
        self._context.jobs.begin_opening("ir-outline", self._open_outline)

    async def _open_outline(self) -> None:
        symbols, line = await self._stage_symbols(), self._view.line_number
        notes = await self._assembly.notes_of(symbols)
        choices = [
            _symbol_choice(symbol, symbol.first, symbol.first <= line <= symbol.last, notes.get(symbol.first, ""))
            for symbol in symbols
        ]
        if choices:
            self._context.dialogs.open(PickerScreen("Outline", choices), self._go_to_symbol)

    def _go_to_symbol(self, first: int | None) -> None:
        if first is not None:
            self._jumps.go_to(first)

    async def _stage_symbols(self) -> tuple[Symbol, ...]:
        """Returns the symbols of the chosen stage. Shows a message if it has none."""
        stage = self._stages.chosen_stage
        symbols = await self._symbols.of(stage) if stage is not None else ()
        if not symbols:
            self._context.say("this stage has no functions or globals")
        return symbols


def _lines_that_fold(symbol: Symbol, language: str) -> Sequence[int]:
    """Returns the lines at which the fold key folds a symbol: all of its lines in assembly, which has no regions."""
    return range(symbol.first, symbol.last + 1) if language == "asm" else (symbol.first, symbol.last)


def _symbol_choice(symbol: Symbol, value: object, marked: bool, note: str = "") -> PickerChoice:
    """Returns the entry of a picker for a symbol, with its kind, its lines and `note`. The picker returns `value`."""
    length = symbol.last - symbol.first + 1
    lines = f"{formatting.count(length)} line{'s' * (length != 1)}"
    summary = f"{symbol.kind}, {lines} from line {formatting.count(symbol.first + 1)}"
    return PickerChoice(symbol.name, f"{summary}, {note}" if note else summary, value, marked)
