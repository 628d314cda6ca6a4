"""Assembly in the IR pane: jumps as arrows, machine code, and the nodes that functions come from.

The jumps and the nodes of a function are requested from the engine when a line of the function is drawn first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.reports import formatting
from buddy.app.reports.text.jump_arrows import LANES, Arrow, JumpArrows
from buddy.app.session.line_cache import AnnotatedLine
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import LineOrigins, Symbol

# The minimum width of the pane, in cells, for `LANES` lanes of arrows and 11 bytes of machine code.
MIN_WIDE_WIDTH = 100
# The number of lanes in a narrower pane.
NARROW_LANES = 3
# The columns for 11 bytes of machine code: two digits per byte, and spaces between bytes. Few instructions have more.
CODE_WIDTH = 11 * 3 - 1
# The columns for 7 bytes, in a narrower pane.
NARROW_CODE_WIDTH = 7 * 3 - 1
# The maximum number of functions whose nodes are shown in the outline: each of them needs a request.
MAX_ANNOTATED_FUNCTIONS = 64


class AssemblyFunction(NamedTuple):
    """A function: its lines `first` to `last`, the arrows of its jumps, and the nodes that it comes from."""

    first: int
    last: int
    arrows: JumpArrows
    nodes: tuple[LineOrigins, ...]


class AssemblyGutter:
    """The columns between the number and the text of a line of assembly. Caches the functions of one text."""

    def __init__(self, context: WorkbenchContext, view: IrView, document: IrDocument) -> None:
        self._context, self._view, self._document = context, view, document
        self.shows_arrows = True
        self.shows_machine_code = False
        self._functions: list[AssemblyFunction] = []
        self._cached_text = ""
        self._is_requesting = False
        # The arrows that are highlighted on the screen, because they are at the line where the cursor is or was.
        self._highlighted: set[Arrow] = set()

    # ---- functions -----------------------------------------------------------------------------------------------

    def _function_of(self, line: int) -> AssemblyFunction | None:
        """The function that contains a line. If it is not cached, requests it to draw it later, and returns `None`."""
        if self._cached_text != self._document.text:
            self._functions, self._cached_text = [], self._document.text
        containing = (function for function in self._functions if function.first <= line <= function.last)
        function = next(containing, None)
        if function is None and not self._is_requesting and self._context.state.engine == "ready":
            self._is_requesting = True
            self._context.jobs.begin("ir-assembly", self._request_function, self._document.text, line)
        return function

    async def _request_function(self, text: str, line: int) -> None:
        """Requests the function that contains a line, and the nodes that the function comes from, and caches both.

        Caches a line outside of all functions as a function with this one line, to request it only once.
        """
        queries = self._context.queries
        try:
            jumps = await queries.find_jumps(text, line)
            if jumps is None:
                return
            is_in_function = jumps.first <= line <= jumps.last
            first, last = (jumps.first, jumps.last) if is_in_function else (line, line)
            nodes = await queries.find_origins(text, first, last)
        finally:
            self._is_requesting = False
        if text == self._cached_text:
            self._functions.append(AssemblyFunction(first, last, JumpArrows(jumps.jumps), nodes))
            self._view.refresh()

    # ---- drawing -------------------------------------------------------------------------------------------------

    @property
    def _is_assembly(self) -> bool:
        return self._document.language == "asm" and self._document.diff is None

    @property
    def _lanes(self) -> int:
        return LANES if self._view.width >= MIN_WIDE_WIDTH else NARROW_LANES

    @property
    def _code_width(self) -> int:
        return CODE_WIDTH if self._view.width >= MIN_WIDE_WIDTH else NARROW_CODE_WIDTH

    @property
    def width(self) -> int:
        """The number of columns between the number and the text of a line."""
        if not self._is_assembly:
            return 0
        arrows_width = self._lanes + 2 if self.shows_arrows else 0
        return arrows_width + (self._code_width + 1 if self.shows_machine_code else 0)

    def cells(self, number: int, line: AnnotatedLine | None) -> tuple[Cells, Cells]:
        """The cells between the number and the text of line `number`, and those at its continuation lines, if wrapped.

        Both are empty for text that is not assembly. `line` is `None` if it is not cached.
        """
        if not self._is_assembly:
            return [], []
        cells: Cells = []
        continuation: Cells = []
        if self.shows_machine_code:
            cells.append((f"{self._machine_code(line):<{self._code_width}} ", "number"))
            continuation.append((" " * (self._code_width + 1), "number"))
        if self.shows_arrows:
            arrows, arrows_continued = self._arrow_cells(number)
            cells += [*arrows, (" ", "dim")]
            continuation += [*arrows_continued, (" ", "dim")]
        return cells, continuation

    def _arrow_cells(self, number: int) -> tuple[Cells, Cells]:
        """The cells of the arrows at line `number`, and at its continuation lines. Highlights the cursor's arrow."""
        function, lanes, glyphs = self._function_of(number), self._lanes, self._context.glyphs
        if function is None:
            blank: Cells = [(" " * (lanes + 1), "dim")]
            return blank, blank
        cursor = self._view.line_number
        if (arrow := function.arrows.at(cursor)) is not None:
            self._highlighted.add(arrow)
        cells = function.arrows.cells(number, cursor, lanes, glyphs)
        return cells, function.arrows.continuation_cells(number, lanes, glyphs)

    def _machine_code(self, line: AnnotatedLine | None) -> str:
        """The bytes of an instruction, as many as fit, with an ellipsis if there are more."""
        code, width = line.machine_code if line is not None else "", self._code_width
        return code if len(code) <= width else f"{code[: width - 3]} {self._context.glyphs.ellipsis}"

    def function_note(self, number: int, columns: int) -> Cells:
        """The note on line `number`, if it is the first line of a function: the nodes that the function comes from."""
        function = self._function_of(number) if self._is_assembly else None
        if function is None or function.first != number or not function.nodes:
            return []
        text = formatting.clip(self._nodes_text(function.nodes), max(columns // 2, 16), self._context.glyphs)
        return [(f" {text} ", "linked")]

    def _nodes_text(self, origins: Sequence[LineOrigins]) -> str:
        """The nodes of a function, the first two by name: `for addmm_1, gelu (+2)`.

        These are the nodes from which instructions come directly, or, if there are none, the derived nodes.
        """
        direct = [origin.node for origin in origins if origin.direct]
        nodes = direct or [origin.node for origin in origins]
        names = ", ".join(map(self._context.selection.name_of, nodes[:2]))
        more = f" (+{len(nodes) - 2})" if len(nodes) > 2 else ""
        return f"for {names}{more}{'' if direct else ' (derived)'}"

    def refresh_arrows(self) -> None:
        """After a move of the cursor, draws all lines again if another arrow must be highlighted."""
        if not self._is_assembly or not self.shows_arrows:
            return
        cursor = self._view.line_number
        function = self._function_of(cursor)
        arrow = function.arrows.at(cursor) if function is not None else None
        if self._highlighted != ({arrow} if arrow is not None else set()):
            self._highlighted.clear()
            # All lines, because an arrow may be as long as the screen.
            self._view.refresh()

    async def notes_of(self, symbols: Sequence[Symbol]) -> dict[int, str]:
        """The nodes that functions of the shown assembly come from, as text, by the first line of the function.

        Empty for other languages. Of many functions, only the first `MAX_ANNOTATED_FUNCTIONS` have a text.
        """
        if self._document.language != "asm":
            return {}
        annotated, text = symbols[:MAX_ANNOTATED_FUNCTIONS], self._document.text
        queries = self._context.queries
        origins = await asyncio.gather(*(queries.find_origins(text, symbol.first, symbol.last) for symbol in annotated))
        pairs = zip(annotated, origins, strict=True)
        return {symbol.first: self._nodes_text(nodes) for symbol, nodes in pairs if nodes}

    # ---- actions -------------------------------------------------------------------------------------------------

    def toggle_arrows(self) -> None:
        self.shows_arrows = not self.shows_arrows
        self._view.rows_changed()
        self._context.say(
            "jumps are drawn as arrows"
            if self.shows_arrows
            else f"arrows are hidden: press {key_of('ir.jumps')} to show them"
        )

    def toggle_machine_code(self) -> None:
        self.shows_machine_code = not self.shows_machine_code
        self._view.rows_changed()
        self._context.say("machine code in hexadecimal digits" if self.shows_machine_code else "machine code is hidden")
