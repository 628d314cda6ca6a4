"""What of the IR pane is about reading in short: names for long types, and what each of them stands for."""

from __future__ import annotations

from typing import Any

from textual import work

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.painting import TAB_WIDTH
from buddy.app.panes.searching import Searching
from buddy.app.reports import formatting
from buddy.app.reports.text.abbreviations import TypeNames, abbreviate_types
from buddy.app.session.lines import AnnotatedLine
from buddy.app.widgets.look import Cells


class ShortForm(Searching):
    """Draws names such as `!T1` for long types that stand in a stage more than once; a line at the foot explains them.

    Whatever leaves the pane (what is copied, written or edited) has the types.
    """

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.short = False
        self.type_names = TypeNames()

    def toggle_short(self) -> None:
        self.short = not self.short
        self._draw_anew()
        self.name_types()
        self.say("types and attributes in short" if self.short else "types and attributes in full")

    @work(exclusive=True, group="types")
    async def name_types(self) -> None:
        """Have the long types of what is on the screen named, then draw it so."""
        if self.short and await self._bring_types():
            self._draw_anew()

    def _draw_anew(self) -> None:
        offset = self.cursor - self.first_row
        self.forget_strips()
        self.rows_changed()
        self.keep_cursor_at(offset)

    async def _bring_types(self) -> bool:
        """Ask for the types of the stage, and of what it is compared with; whether names are others than so far."""
        other = self.document.other if self.document.diff is not None else None
        stages = [stage for stage in (self.stage, other) if stage is not None]
        texts = [stage.text for stage in stages if stage.language == "mlir"]
        for text in texts:
            if not self.type_names.knows(text):
                found = await self.context.queries.types(text)
                if found is None:
                    return False
                self.type_names.take(text, found)
        return self.type_names.show(*texts)

    @work(exclusive=True, group="types")
    async def list_types(self) -> None:
        """The long types of the stage, each with its name; the one that is chosen is gone to."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        if self.stage is None:
            return
        if await self._bring_types() and self.short:
            self._draw_anew()
        found = self.type_names.of(self.stage.text)
        choices: list[Any] = [
            PickerChoice(f"{name} ×{formatting.count(one.uses)}", one.text, one.first) for name, one in found
        ]
        if choices:
            title = "Types" if self.short else "Types: a draws the names"
            self.app.push_screen(PickerScreen(title, choices), self._go_type)
        else:
            self.say("no long type stands in this stage more than once")

    def _go_type(self, line: int | None) -> None:
        if line is not None:
            self.go_to(line)

    def drawn_text(self, line: AnnotatedLine) -> str:
        text = line.text.expandtabs(TAB_WIDTH)
        if not self.short or line.full:
            return text
        return abbreviate_types(self.type_names.named(text), self.glyphs.ellipsis)

    def draws_short(self, line: AnnotatedLine) -> bool:
        """Whether something of a line is left out of what is drawn."""
        return self.drawn_text(line) != line.text.expandtabs(TAB_WIDTH)

    def legend(self, width: int) -> list[Cells]:
        """What the names on the cursor's line stand for, as many as fit; nothing where nothing is drawn in short."""
        if not self.short or not self.row_count or self.stage is None or self.stage.language != "mlir":
            return []
        line = self.line_at(self.cursor)
        cells: Cells = [(" ", "text")]
        for name, text in (self.type_names.inside(line.text) if line is not None else {}).items():
            room = width - sum(len(part) for part, _ in cells) - len(name) - 3
            if room < len(text) and len(cells) > 1:
                break
            cells += [(name, "accent"), (" = ", "dim"), (formatting.clip(text, max(room - 2, 0), self.glyphs), "text")]
            cells.append(("  ", "text"))
        return [cells]
