"""Assembly in the IR pane: jumps as arrows, machine code, and the nodes that a function comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.reports import formatting
from buddy.app.reports.text.jump_arrows import LANES, JumpArrows
from buddy.app.session.stages import AnnotatedLine
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import LineOrigins, Symbol

# The minimum width of the pane for all lanes and for 11 bytes: few instructions are longer.
WIDE = 100
NARROW_LANES = 3
# Columns for the machine code: two digits per byte, and a space between bytes.
CODE_WIDTH, NARROW_CODE_WIDTH = 11 * 3 - 1, 7 * 3 - 1
# Most functions annotated in the outline: each costs one request.
MAX_ANNOTATED = 64


class AssemblyFunction(NamedTuple):
    """Lines `first` to `last` of an assembly, its jumps and the nodes it comes from."""

    first: int
    last: int
    arrows: JumpArrows
    nodes: tuple[LineOrigins, ...]


class AssemblyGutter:
    """The columns before a line of assembly. Caches the functions of one text that have been on the screen."""

    def __init__(self, context: WorkbenchContext, view: IrView, document: IrDocument) -> None:
        self._context, self._view, self._document = context, view, document
        self.with_arrows = True
        self.with_machine = False
        self._functions: list[AssemblyFunction] = []
        self._functions_of = ""
        self._requested = False

    # ---- functions -----------------------------------------------------------------------------------------------

    def _function_of(self, line: int) -> AssemblyFunction | None:
        """The function around a line. A function that is not cached is requested, and drawn when it arrives."""
        if self._functions_of != self._document.text:
            self._functions, self._functions_of = [], self._document.text
        found = next((one for one in self._functions if one.first <= line <= one.last), None)
        if found is None and not self._requested and self._context.state.engine == "ready":
            self._requested = True
            self._context.jobs.begin("ir-assembly", self._request_function, self._document.text, line)
        return found

    async def _request_function(self, text: str, line: int) -> None:
        queries = self._context.queries
        try:
            jumps = await queries.jumps(text, line)
            if jumps is None:
                return
            first, last = (jumps.first, jumps.last) if jumps.first <= line <= jumps.last else (line, line)
            nodes = await queries.origins(text, first, last)
        finally:
            self._requested = False
        if text == self._functions_of:
            self._functions.append(AssemblyFunction(first, last, JumpArrows(jumps.jumps), nodes))
            self._view.refresh()

    # ---- drawing -------------------------------------------------------------------------------------------------

    @property
    def _is_assembly(self) -> bool:
        return self._document.language == "asm" and self._document.diff is None

    @property
    def _lanes(self) -> int:
        return LANES if self._view.width >= WIDE else NARROW_LANES

    @property
    def _code_width(self) -> int:
        return CODE_WIDTH if self._view.width >= WIDE else NARROW_CODE_WIDTH

    @property
    def width(self) -> int:
        """The number of columns between the number and the text of a line."""
        if not self._is_assembly:
            return 0
        return (self._lanes + 2) * self.with_arrows + (self._code_width + 1) * self.with_machine

    def cells(self, number: int, line: AnnotatedLine | None) -> tuple[Cells, Cells]:
        """The cells between the number and the text of a line, and those before its continuation lines."""
        if not self._is_assembly:
            return [], []
        first: Cells = []
        below: Cells = []
        glyphs = self._context.glyphs
        if self.with_machine:
            first.append((f"{self._code(line):<{self._code_width}} ", "number"))
            below.append((" " * (self._code_width + 1), "number"))
        if self.with_arrows:
            function, lanes = self._function_of(number), self._lanes
            blank: Cells = [(" " * (lanes + 1), "dim")]
            first += function.arrows.cells(number, self._view.line_number, lanes, glyphs) if function else blank
            below += function.arrows.continuation_cells(number, lanes, glyphs) if function else blank
            first.append((" ", "dim"))
            below.append((" ", "dim"))
        return first, below

    def _code(self, line: AnnotatedLine | None) -> str:
        """As many whole bytes of an instruction as fit."""
        code, width = line.machine if line is not None else "", self._code_width
        return code if len(code) <= width else f"{code[: width - 3]} {self._context.glyphs.ellipsis}"

    def function_note(self, number: int, room: int) -> Cells:
        """The note on the first line of a function: the nodes that the function comes from."""
        function = self._function_of(number) if self._is_assembly else None
        if function is None or function.first != number or not function.nodes:
            return []
        text = formatting.clip(self._nodes_text(function.nodes), max(room // 2, 16), self._context.glyphs)
        return [(f" {text} ", "linked")]

    def _nodes_text(self, origins: Sequence[LineOrigins]) -> str:
        """`for addmm_1, gelu (+2)`: the nodes with instructions of their own, else the derived nodes."""
        own = [origin.node for origin in origins if origin.own]
        nodes = own or [origin.node for origin in origins]
        names = ", ".join(map(self._context.selection.name_of, nodes[:2]))
        more = f" (+{len(nodes) - 2})" if len(nodes) > 2 else ""
        return f"for {names}{more}{'' if own else ' (derived)'}"

    def refresh_arrows(self) -> None:
        """Draw the lines again to highlight the arrow of the cursor's line, which may cross the whole screen."""
        if self._is_assembly and self.with_arrows:
            self._view.refresh()

    async def notes_of(self, symbols: Sequence[Symbol]) -> dict[int, str]:
        """The nodes that functions come from, by the functions' first lines."""
        if self._document.language != "asm":
            return {}
        annotated, text = symbols[:MAX_ANNOTATED], self._document.text
        queries = self._context.queries
        found = await asyncio.gather(*(queries.origins(text, one.first, one.last) for one in annotated))
        return {one.first: self._nodes_text(nodes) for one, nodes in zip(annotated, found, strict=True) if nodes}

    # ---- actions -------------------------------------------------------------------------------------------------

    def toggle_arrows(self) -> None:
        """Show or hide the arrows from jumps to labels."""
        self.with_arrows = not self.with_arrows
        self._view.rows_changed()
        self._context.say("jumps as arrows" if self.with_arrows else "no arrows: g j draws them again")

    def toggle_machine(self) -> None:
        """Show or hide the bytes of each instruction."""
        self.with_machine = not self.with_machine
        self._view.rows_changed()
        self._context.say("machine code in hexadecimal digits" if self.with_machine else "no machine code")
