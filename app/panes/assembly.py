"""Assembly in the IR pane: jumps as arrows, machine code, and the nodes that a function comes from."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from textual import work

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.reading import Reading
from buddy.app.reports import formatting
from buddy.app.reports.text.jump_arrows import LANES, JumpArrows
from buddy.app.session.lines import AnnotatedLine
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import LineOrigins, Symbol

# From this width of the pane on there is room for all lanes, and for 11 bytes: few instructions are longer.
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


class Assembly(Reading):
    """Draws assembly, and caches the functions of one text that have been on the screen."""

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.with_arrows = True
        self.with_machine = False
        self._functions: list[AssemblyFunction] = []
        self._functions_of = ""
        self._asking = False

    # ---- functions -----------------------------------------------------------------------------------------------

    def _function_of(self, line: int) -> AssemblyFunction | None:
        """The function around a line; one that is not known yet is asked for, and the pane then drawn again."""
        if self._functions_of != self.document.text:
            self._functions, self._functions_of = [], self.document.text
        found = next((one for one in self._functions if one.first <= line <= one.last), None)
        if found is None and not self._asking and self.state.engine == "ready":
            self._asking = True
            self._ask_function(self.document.text, line)
        return found

    @work(group="functions")
    async def _ask_function(self, text: str, line: int) -> None:
        try:
            jumps = await self.context.queries.jumps(text, line)
            if jumps is None:
                return
            first, last = (jumps.first, jumps.last) if jumps.first <= line <= jumps.last else (line, line)
            nodes = await self.context.queries.origins(text, first, last)
        finally:
            self._asking = False
        if text == self._functions_of:
            self._functions.append(AssemblyFunction(first, last, JumpArrows(jumps.jumps), nodes))
            self.refresh()

    # ---- drawing -------------------------------------------------------------------------------------------------

    @property
    def _is_assembly(self) -> bool:
        return self.document.language == "asm" and self.document.diff is None

    @property
    def _lanes(self) -> int:
        return LANES if self.width >= WIDE else NARROW_LANES

    @property
    def _code_width(self) -> int:
        return CODE_WIDTH if self.width >= WIDE else NARROW_CODE_WIDTH

    @property
    def margin(self) -> int:
        if not self._is_assembly:
            return super().margin
        arrows, machine = (self._lanes + 2) * self.with_arrows, (self._code_width + 1) * self.with_machine
        return super().margin + arrows + machine

    def before_line(self, number: int, line: AnnotatedLine | None) -> tuple[Cells, Cells]:
        """What stands between a line's number and its text, and before the further lines that it takes."""
        if not self._is_assembly:
            return [], []
        first: Cells = []
        below: Cells = []
        if self.with_machine:
            first.append((f"{self._code(line):<{self._code_width}} ", "number"))
            below.append((" " * (self._code_width + 1), "number"))
        if self.with_arrows:
            function, lanes = self._function_of(number), self._lanes
            blank: Cells = [(" " * (lanes + 1), "dim")]
            first += function.arrows.cells(number, self.line_number, lanes, self.glyphs) if function else blank
            below += function.arrows.below(number, lanes, self.glyphs) if function else blank
            first.append((" ", "dim"))
            below.append((" ", "dim"))
        return first, below

    def _code(self, line: AnnotatedLine | None) -> str:
        """As many whole bytes of an instruction as there is room for."""
        code = line.machine if line is not None else ""
        return code if len(code) <= self._code_width else f"{code[: self._code_width - 3]} {self.glyphs.ellipsis}"

    def function_note(self, number: int, room: int) -> Cells:
        """The note beside the name of a function: the nodes that it comes from."""
        function = self._function_of(number) if self._is_assembly else None
        if function is None or function.first != number or not function.nodes:
            return []
        return [(f" {formatting.clip(self._nodes_text(function.nodes), max(room // 2, 16), self.glyphs)} ", "linked")]

    def _nodes_text(self, origins: Sequence[LineOrigins]) -> str:
        """`for addmm_1, gelu (+2)`: the nodes with instructions of their own, else those that were derived."""
        own = [origin.node for origin in origins if origin.own]
        nodes = own or [origin.node for origin in origins]
        names = ", ".join(map(self.context.selection.name_of, nodes[:2]))
        more = f" (+{len(nodes) - 2})" if len(nodes) > 2 else ""
        return f"for {names}{more}{'' if own else ' (derived)'}"

    def refresh_arrows(self) -> None:
        """Draw the lines again to highlight the arrow of the cursor's line, which may cross the whole screen."""
        if self._is_assembly and self.with_arrows:
            self.refresh()

    # ---- actions -------------------------------------------------------------------------------------------------

    async def notes_of(self, symbols: Sequence[Symbol]) -> dict[int, str]:
        if self.document.language != "asm":
            return {}
        annotated, text = symbols[:MAX_ANNOTATED], self.document.text
        found = await asyncio.gather(*(self.context.queries.origins(text, one.first, one.last) for one in annotated))
        return {one.first: self._nodes_text(nodes) for one, nodes in zip(annotated, found, strict=True) if nodes}

    def toggle_arrows(self) -> None:
        """Arrows from jumps to labels, or none."""
        self.with_arrows = not self.with_arrows
        self.rows_changed()
        self.say("jumps as arrows" if self.with_arrows else "no arrows: g j draws them again")

    def toggle_machine(self) -> None:
        """The bytes of each instruction, or none."""
        self.with_machine = not self.with_machine
        self.rows_changed()
        self.say("machine code in hexadecimal digits" if self.with_machine else "no machine code")
