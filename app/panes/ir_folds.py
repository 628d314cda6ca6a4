"""Functions and regions in the IR pane: folding, the outline, and one function shown alone."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_assembly import AssemblyGutter
from buddy.app.panes.ir_document import IrDocument, IrView, region_of
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_stages import IrStages
from buddy.app.panes.stage_queries import StageQueries
from buddy.app.reports import formatting
from buddy.app.reports.text.differences import DiffRows
from buddy.app.reports.text.folds import Folds, TextFold
from buddy.app.reports.text.search_hits import Pattern
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.session.state import TEXTS, keep_newest
from buddy.compiler.protocol import Stage, Symbol

ALIAS = re.compile(r"^[#!][\w$.\-]+ = ")


class StageSymbols:
    """The functions, globals and graphs of stages, cached by text."""

    def __init__(self, queries: StageQueries) -> None:
        self._queries = queries
        self._found: dict[str, tuple[Symbol, ...]] = {}

    async def of(self, stage: Stage) -> tuple[Symbol, ...]:
        """The symbols of a stage; empty without an answer of the engine."""
        if stage.text not in self._found:
            self._found[stage.text] = await self._queries.symbols(stage.text, stage.language)
            keep_newest(self._found, TEXTS)
        return self._found[stage.text]

    def clear(self) -> None:
        self._found.clear()


class IrFolds:
    """Folds regions and functions of the shown text, and limits it to one function."""

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
        """The rows of a stage that is shown next."""
        wanted = self._document.only or self._document.all_folded
        return self._document.folds_of(stage, await self._symbols.of(stage) if wanted else ())

    async def narrow(self, diff: DiffRows, stage: Stage) -> None:
        """Limit a diff to the function that is shown alone, and fold functions if they are all folded."""
        wanted = self._document.only or self._document.all_folded or diff.narrowed
        self._document.narrow(diff, await self._symbols.of(stage) if wanted else ())

    def header_texts(self) -> list[str]:
        """The function that is shown alone."""
        document = self._document
        return [f"only @{document.only}"] if document.only and document.narrowed else []

    # ---- one region ----------------------------------------------------------------------------------------------

    def toggle_fold(self) -> None:
        """Fold or unfold the region at the cursor; in a diff, the equal lines."""
        document, line = self._document, self._view.line_number
        if document.diff is not None:
            self._toggle_equal_lines(document.diff)
        elif document.folds.behind(line):
            self._refold({fold for fold in document.folded if fold.first != line}, line)
        else:
            self._context.jobs.begin("ir-fold", self._fold_region, line)

    def _toggle_equal_lines(self, diff: DiffRows) -> None:
        """Fold or unfold the equal lines at the cursor; on a changed line, all equal lines."""
        view = self._view
        if not diff.count:
            return
        line, offset = view.line_number, view.cursor - view.first_row
        if not diff.toggle(view.cursor):
            diff.toggle_all()
        view.cursor = diff.row_of(line) if line < self._document.lines else view.cursor
        view.keep_cursor_at(offset)
        view.rows_changed()

    async def _fold_region(self, line: int) -> None:
        stage = self._stages.stage
        if stage is None:
            return
        symbols = await self._symbols.of(stage)
        whole = next((one for one in symbols if line in _fold_lines(one, stage.language)), None)
        if whole is not None and whole.last > whole.first:
            fold: TextFold | None = region_of(whole)
        else:
            fold = await self._aliases_at(stage.text, line) or await self._region_at(stage.text, line)
        if fold is None:
            self._context.say("no region to fold here")
        elif self._document.text == stage.text and self._document.diff is None:
            self._refold({*self._document.folded, fold}, fold.first)

    async def _region_at(self, text: str, line: int) -> TextFold | None:
        region = await self._context.queries.region(text, line)
        return TextFold(region.first, region.last - 1) if region and region.last > region.first + 1 else None

    async def _aliases_at(self, text: str, line: int) -> TextFold | None:
        """The adjacent lines that define aliases, such as `#map1 = affine_map<…>`, if `line` is one of them."""
        here = self._context.session.cache.get(text, line)
        if here is None or not ALIAS.match(here.text):
            return None
        found = await self._context.queries.search(text, Pattern(ALIAS.pattern, ALIAS.pattern, regex=True))
        lines = set(found.lines) if found is not None else set()
        first = last = line
        while first - 1 in lines:
            first -= 1
        while last + 1 in lines:
            last += 1
        return TextFold(first, last) if last > first else None

    def _refold(self, folded: set[TextFold], line: int) -> None:
        """Draw with these folds, with the cursor on `line`, at the same place on the screen."""
        offset = self._view.cursor - self._view.first_row
        self._document.refold(folded)
        self._view.place_line(line, offset)

    # ---- all functions -------------------------------------------------------------------------------------------

    def toggle_all_folds(self) -> None:
        """Fold all functions, or unfold everything; in a diff, the changed functions."""
        self._document.all_folded = not self._document.all_folded
        self._document.forget_folds()
        self._context.jobs.begin("ir-fold", self._fold_all if self._document.diff is None else self._narrow_shown)

    async def _narrow_shown(self) -> None:
        """Fold or unfold the functions of the shown diff."""
        stage, diff, line = self._stages.stage, self._document.diff, self._view.line_number
        if stage is None or diff is None:
            return
        await self.narrow(diff, stage)
        if self._document.diff is diff:
            self._view.cursor = diff.row_of(line) if diff.count else 0
            self._view.rows_changed()
            folded = "changed functions are folded: z unfolds one, Z all"
            self._context.say(folded if self._document.all_folded else "all is unfolded")

    async def _fold_all(self) -> None:
        stage, document = self._stages.stage, self._document
        if stage is None:
            return
        await self.folds_of(stage)
        # Another stage may be shown by now, or the texts may have been cleared.
        if document.text == stage.text and document.diff is None:
            self._refold(document.folded, self._view.line_number)
        self._context.say("functions are folded: z unfolds one, Z all" if document.all_folded else "all is unfolded")

    # ---- outline -------------------------------------------------------------------------------------------------

    def choose_only(self) -> None:
        """Choose the function that is shown alone, in this stage and in those that are shown next."""
        self._context.jobs.open_after("ir-outline", self._choose_only)

    async def _choose_only(self) -> None:
        symbols, only = await self._shown_symbols(), self._document.only
        functions = [symbol for symbol in symbols if symbol.last > symbol.first]
        choices = [_choice(symbol, symbol.name, symbol.name == only) for symbol in functions]
        if choices:
            everything = PickerChoice("everything", "the whole stage", "", not only)
            self._context.dialogs.open(PickerScreen("Show only", [everything, *choices]), self._show_only)

    def _show_only(self, name: str | None) -> None:
        if name is not None:
            self._document.only = name
            self._view.open_stage()

    def open_outline(self) -> None:
        """List the functions, globals and graphs of the stage, and go to the chosen one."""
        self._context.jobs.open_after("ir-outline", self._open_outline)

    async def _open_outline(self) -> None:
        symbols, line = await self._shown_symbols(), self._view.line_number
        notes = await self._assembly.notes_of(symbols)
        choices = [
            _choice(symbol, symbol.first, symbol.first <= line <= symbol.last, notes.get(symbol.first, ""))
            for symbol in symbols
        ]
        if choices:
            self._context.dialogs.open(PickerScreen("Outline", choices), self._go_to_symbol)

    def _go_to_symbol(self, first: int | None) -> None:
        if first is not None:
            self._jumps.go_to(first)

    async def _shown_symbols(self) -> tuple[Symbol, ...]:
        stage = self._stages.stage
        symbols = await self._symbols.of(stage) if stage is not None else ()
        if not symbols:
            self._context.say("this stage has no functions")
        return symbols


def _fold_lines(symbol: Symbol, language: str) -> Sequence[int]:
    """The lines at which a whole symbol is folded. Assembly has no smaller regions."""
    return range(symbol.first, symbol.last + 1) if language == "asm" else (symbol.first, symbol.last)


def _choice(symbol: Symbol, value: Any, marked: bool, note: str = "") -> PickerChoice:
    length = symbol.last - symbol.first + 1
    lines = f"{formatting.count(length)} line{'s' * (length != 1)}"
    about = f"{symbol.kind}, {lines} from {formatting.count(symbol.first + 1)}"
    return PickerChoice(symbol.name, f"{about}, {note}" if note else about, value, marked)
