"""Long lines in the IR pane: short names for types, expanded constants, the full line, the documentation of its op."""

from __future__ import annotations

from typing import Any

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_names import op_name
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports import formatting
from buddy.app.reports.text.folds import LONGEST_EXPANSION, TypeNames, abbreviate_types
from buddy.app.session.stages import AnnotatedLine
from buddy.app.widgets.look import Cells
from buddy.app.workspace.inputs import relative_to_current

TAB_WIDTH = 8
# Maximum number of characters shown of a full line.
FULL_LINE = 200_000


class IrTypes:
    """Draws names such as `!T1` for long types that a stage contains several times; the foot of the pane explains them.

    Copied, written and edited text contains the types.
    """

    def __init__(
        self, context: WorkbenchContext, view: IrView, document: IrDocument, stages: IrStages, jumps: IrJumps
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._jumps = stages, jumps
        self.short = False
        self._names = TypeNames()

    def toggle_short(self) -> None:
        """Abbreviate types and attributes, or show them in full."""
        self.short = not self.short
        self._view.redraw_lines()
        self.name_types()
        self._context.say("types and attributes in short" if self.short else "types and attributes in full")

    def name_types(self) -> None:
        """Give names to the long types on the screen, and draw them."""
        self._context.jobs.begin("ir-types", self._name_types)

    async def _name_types(self) -> None:
        if self.short and await self._load_types():
            self._view.redraw_lines()

    async def _load_types(self) -> bool:
        """Load the types of the stage and of the stage that it is compared with. Returns whether names have changed."""
        other = self._document.other if self._document.diff is not None else None
        stages = [stage for stage in (self._stages.stage, other) if stage is not None]
        texts = [stage.text for stage in stages if stage.language == "mlir"]
        for text in texts:
            if not self._names.knows(text):
                found = await self._context.queries.types(text)
                if found is None:
                    return False
                self._names.take(text, found)
        return self._names.show(*texts)

    def list_types(self) -> None:
        """List the long types of the stage with their names, and go to the chosen one."""
        self._context.jobs.open_after("ir-types", self._list_types)

    async def _list_types(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        stage = self._stages.stage
        if stage is None:
            return
        if await self._load_types() and self.short:
            self._view.redraw_lines()
        stage = self._stages.stage
        found = self._names.of(stage.text) if stage is not None else []
        choices: list[Any] = [
            PickerChoice(f"{name} ×{formatting.count(one.uses)}", one.text, one.first) for name, one in found
        ]
        if choices:
            title = "Types" if self.short else "Types: a draws the names"
            self._context.dialogs.open(PickerScreen(title, choices), self._go_to_type)
        else:
            self._context.say("this stage has no long type that occurs more than once")

    def _go_to_type(self, line: int | None) -> None:
        if line is not None:
            self._jumps.go_to(line)

    def drawn_text(self, line: AnnotatedLine) -> str:
        """The text that is drawn for a line."""
        text = line.text.expandtabs(TAB_WIDTH)
        if not self.short or line.full:
            return text
        return abbreviate_types(self._names.named(text), self._context.glyphs.ellipsis)

    def abbreviates(self, line: AnnotatedLine) -> bool:
        """Whether a part of a line is not drawn."""
        return self.drawn_text(line) != line.text.expandtabs(TAB_WIDTH)

    def legend(self, width: int) -> list[Cells]:
        """The types of the names on the cursor's line, as many as fit; no line if types are drawn in full."""
        document, stage = self._document, self._stages.stage
        if not self.short or not document.row_count or stage is None or stage.language != "mlir":
            return []
        line = document.line_at(self._view.cursor)
        cells: Cells = [(" ", "text")]
        for name, text in (self._names.inside(line.text) if line is not None else {}).items():
            room = width - sum(len(part) for part, _ in cells) - len(name) - 3
            if room < len(text) and len(cells) > 1:
                break
            clipped = formatting.clip(text, max(room - 2, 0), self._context.glyphs)
            cells += [(name, "accent"), (" = ", "dim"), (clipped, "text"), ("  ", "text")]
        return [cells]


class IrLines:
    """Shows the parts of a line that its drawn text leaves out."""

    def __init__(
        self, context: WorkbenchContext, view: IrView, document: IrDocument, stages: IrStages, types: IrTypes
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._types = stages, types

    def read_line(self) -> None:
        """Show the cursor's line in full, wrapped, with the graph nodes that it comes from."""
        self._context.jobs.open_after("ir-line", self._read_line)

    async def _read_line(self) -> None:
        from buddy.app.screens.detail import DetailScreen

        document, stage = self._document, self._stages.stage
        line, number = document.line_at(self._view.cursor), document.own_line(self._view.cursor)
        if line is None or number < 0 or stage is None:
            return
        found = await self._context.queries.characters(document.text, number, 0, FULL_LINE)
        if found is None:
            return
        lines: list[Cells] = [[(found.content.strip(), "text")]]
        if found.total > len(found.content):
            rest = found.total - len(found.content)
            lines += [[], [(f"{formatting.count(rest)} more characters: w writes the stage to a file", "dim")]]
        info = self._context.state.info
        locations = {row.stable: relative_to_current(row.location) for row in info.rows} if info else {}
        if line.machine:
            lines += [[], [("machine code  ", "accent"), (line.machine, "text")]]
        for node in line.nodes:
            name = self._context.selection.name_of(node) + " (derived)" * (node in line.derived)
            lines += [[], [(f"from {name}  ", "accent"), (locations.get(node, ""), "dim")]]
        title = f"Line {formatting.count(number + 1)} of {stage.name}"
        self._context.dialogs.open(DetailScreen(title, lines))

    def expand_constant(self) -> None:
        """Show the cursor's line without abbreviations, then its next elided constant; at the end, elide all again."""
        self._context.jobs.begin("ir-line", self._expand_constant)

    async def _expand_constant(self) -> None:
        document, say = self._document, self._context.say
        number, text = document.own_line(self._view.cursor), document.text
        line = self._context.session.cache.get(text, number) if number >= 0 else None
        if line is None:
            return
        expansions, drawn = document.expansions, document.line_of_text(text, number)
        if drawn is not None and document.diff is None and self._types.abbreviates(drawn):
            expansions.draw_full(text, number)
            self._view.rows_changed()
            return
        following = expansions.next_gap(text, number, line.text)
        if following is None:
            closed = expansions.close(text, number)
            say("elided again" if closed else "nothing is elided on this line: o shows the whole of it")
        else:
            place, gap = following
            wanted = LONGEST_EXPANSION if gap.tail else min(gap.missing, LONGEST_EXPANSION)
            found = await self._context.queries.characters(text, number, gap.start, wanted)
            if found is None:
                return
            whole = found.total - gap.start if gap.tail else gap.missing
            rest = whole - len(found.content)
            expansions.fill(text, number, place, found.content, rest)
            more = f" of {formatting.count(whole)}: w writes the stage to a file" if rest else ""
            say(f"{formatting.count(len(found.content))} characters{more}")
        self._view.rows_changed()

    def describe_op(self) -> None:
        """Show the documentation of the op on the cursor's line."""
        self._context.jobs.open_after("ir-line", self._describe_op)

    async def _describe_op(self) -> None:
        from buddy.app.screens.detail import DetailScreen

        line = self._document.line_at(self._view.cursor)
        name = op_name(line.text) if line is not None and self._document.language == "mlir" else ""
        if not name:
            self._context.say("no MLIR op begins on this line")
            return
        text = await self._context.queries.describe_op(name)
        if text:
            lines: list[Cells] = [[(part, "text")] for part in text.splitlines()]
            self._context.dialogs.open(DetailScreen(name, lines))
        elif text is not None:
            self._context.say(f"the MLIR bindings have no documentation of {name}")
