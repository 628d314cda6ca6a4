"""Long lines in the IR pane: names for types, expanded constants, the full line, and the documentation of its op."""

from __future__ import annotations

from typing import Any

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrDocument, IrView
from buddy.app.panes.ir_jumps import IrJumps
from buddy.app.panes.ir_names import op_name
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports import formatting
from buddy.app.reports.text.abbreviations import MAX_EXPANDED, ConstantGap, TypeNames, abbreviate_types
from buddy.app.session.line_cache import AnnotatedLine
from buddy.app.widgets.look import Cells, cells_length
from buddy.app.workspace.inputs import relative_to_working_directory

# The distance of tab stops, in columns.
TAB_WIDTH = 8
# The maximum number of characters that are shown of a full line.
MAX_FULL_LINE_CHARACTERS = 200_000


class IrTypes:
    """Abbreviates lines while `abbreviated` is set: draws names such as `!T1` for long types, and elides attributes.

    A type gets a name if it is long and occurs several times in a stage. The foot of the pane shows the types of the
    names on the cursor's line. Text that is copied, written or edited contains all types and attributes.
    """

    def __init__(
        self, context: WorkbenchContext, view: IrView, document: IrDocument, stages: IrStages, jumps: IrJumps
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._jumps = stages, jumps
        self.abbreviated = False
        self._names = TypeNames()

    def toggle_abbreviations(self) -> None:
        self.abbreviated = not self.abbreviated
        self._view.redraw_lines()
        self.name_types()
        self._context.say("types and attributes in short" if self.abbreviated else "types and attributes in full")

    def name_types(self) -> None:
        """If `abbreviated` is set, gives names to the long types of the stage, and draws the names."""
        self._context.jobs.begin("ir-types", self._name_types)

    async def _name_types(self) -> None:
        if self.abbreviated and await self._use_types():
            self._view.redraw_lines()

    async def _use_types(self) -> bool | None:
        """Loads the types of the chosen stage and of the other stage of a diff, and gives names to the types.

        Returns whether a name has changed, so that lines must be drawn again. If the types cannot be loaded, shows the
        reason and returns `None`.
        """
        other = self._document.other if self._document.diff is not None else None
        stages = [stage for stage in (self._stages.chosen_stage, other) if stage is not None]
        texts = [stage.text for stage in stages if stage.language == "mlir"]
        for text in texts:
            if not self._names.has_types_of(text):
                types = await self._context.queries.list_types(text)
                if types is None:
                    return None
                self._names.add(text, types)
        return self._names.show(*texts)

    def list_types(self) -> None:
        """Lists the long types of the stage with their names, and goes to the chosen one."""
        self._context.jobs.begin_opening("ir-types", self._list_types)

    async def _list_types(self) -> None:
        """Loads the types of the chosen stage, then opens the list of them."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        stage, loaded_stage = self._stages.chosen_stage, None
        # If the user chooses another stage during the request, its types must be loaded, too.
        while stage is not None and stage is not loaded_stage:
            loaded_stage = stage
            names_changed = await self._use_types()
            if names_changed is None:
                return
            if names_changed and self.abbreviated:
                self._view.redraw_lines()
            stage = self._stages.chosen_stage
        types = self._names.types_of(stage.text) if stage is not None else []
        choices: list[Any] = [
            PickerChoice(f"{name} ×{formatting.count(long_type.uses)}", long_type.text, long_type.first)
            for name, long_type in types
        ]
        if choices:
            title = "Types" if self.abbreviated else f"Types: press {key_of('ir.short')} to draw the names in the text"
            self._context.dialogs.open(PickerScreen(title, choices), self._go_to_type)
        else:
            self._context.say("this stage has no long type that occurs more than once")

    def _go_to_type(self, line: int | None) -> None:
        if line is not None:
            self._jumps.go_to(line)

    def drawn_text(self, line: AnnotatedLine) -> str:
        """The text that is drawn for a line: with expanded tabs, and abbreviated unless the line is shown in full."""
        text = line.text.expandtabs(TAB_WIDTH)
        if not self.abbreviated or line.is_full:
            return text
        return abbreviate_types(self._names.abbreviate(text), self._context.glyphs.ellipsis)

    def abbreviates(self, line: AnnotatedLine) -> bool:
        """Whether the drawn text of a line is shorter than the line."""
        return self.drawn_text(line) != line.text.expandtabs(TAB_WIDTH)

    def legend(self, width: int) -> list[Cells]:
        """For abbreviated MLIR, a line with the types of the names on the cursor's line, as many as fit; else none."""
        document, stage = self._document, self._stages.chosen_stage
        if not self.abbreviated or not document.row_count or stage is None or stage.language != "mlir":
            return []
        line = document.line_at(self._view.cursor)
        types = self._names.types_on(line.text) if line is not None else {}
        cells: Cells = [(" ", "text")]
        for name, type_text in types.items():
            gap: Cells = [("  ", "text")] if len(cells) > 1 else []
            columns = width - cells_length([*cells, *gap]) - len(f"{name} = ")
            # Only the first type is clipped.
            if columns < len(type_text) and gap:
                break
            clipped = formatting.clip(type_text, max(columns, 0), self._context.glyphs)
            cells += [*gap, (name, "accent"), (" = ", "dim"), (clipped, "text")]
        return [cells]


class IrLines:
    """Shows the cursor's line in full, expands its constants, and describes its op.

    The lines that the engine sends have long constants elided. A gap is the place of an elided constant in a line.
    """

    def __init__(
        self, context: WorkbenchContext, view: IrView, document: IrDocument, stages: IrStages, types: IrTypes
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._types = stages, types

    def show_full_line(self) -> None:
        """Opens a screen with the full text of the cursor's line and the graph nodes that it comes from."""
        self._context.jobs.begin_opening("ir-line", self._show_full_line)

    async def _show_full_line(self) -> None:
        """Loads the cursor's line with its constants in full, then opens the screen."""
        from buddy.app.screens.detail import DetailScreen

        document, stage = self._document, self._stages.chosen_stage
        line, number = document.line_at(self._view.cursor), self._own_line()
        if line is None or number < 0 or stage is None:
            return
        characters = await self._context.queries.fetch_characters(document.text, number, 0, MAX_FULL_LINE_CHARACTERS)
        if characters is None:
            return
        lines: list[Cells] = [[(characters.content.strip(), "text")]]
        if characters.line_length > len(characters.content):
            missing = characters.line_length - len(characters.content)
            hint = f"press {key_of('ir.write')} to write the stage to a file"
            lines += [[], [(f"{formatting.count(missing)} more characters: {hint}", "dim")]]
        info = self._context.state.info
        locations = {row.stable: relative_to_working_directory(row.location) for row in info.rows} if info else {}
        if line.machine_code:
            lines += [[], [("machine code  ", "accent"), (line.machine_code, "text")]]
        for node in line.nodes:
            name = self._context.selection.name_of(node) + " (derived)" * (node in line.derived_nodes)
            lines += [[], [(f"from {name}  ", "accent"), (locations.get(node, ""), "dim")]]
        title = f"Line {formatting.count(number + 1)} of {stage.name}"
        self._context.dialogs.open(DetailScreen(title, lines))

    def _own_line(self) -> int:
        """Returns the number of the cursor's line in the stage. If the stage lacks it, says why and returns -1."""
        document, row = self._document, self._view.cursor
        number = document.own_line(row) if document.row_count else 0
        if number < 0:
            is_folded = document.source_of(row) is None
            text = "equal lines are folded here" if is_folded else "this line was removed: the stage does not have it"
            self._context.say(text)
        return number

    def expand_constant(self) -> None:
        """Shows more of the cursor's line: full types, then its next constant; at the end, all in short form again."""
        self._context.jobs.begin("ir-line", self._expand_constant)

    async def _expand_constant(self) -> None:
        """Shows the types of the cursor's line in full, or the next part of a constant, or elides all again."""
        document = self._document
        number, text = self._own_line(), document.text
        line = self._context.session.cache.get(text, number) if number >= 0 else None
        if line is None:
            return
        expansions, expanded_line = document.expansions, document.line_of_text(text, number)
        if expanded_line is not None and document.diff is None and self._types.abbreviates(expanded_line):
            expansions.show_full(text, number)
        elif (next_gap := expansions.next_gap(text, number, line.text)) is not None:
            if not await self._fill_gap(text, number, *next_gap):
                return
        elif expansions.collapse(text, number):
            self._context.say("constants are elided again")
        else:
            key = key_of("ir.whole-line")
            self._context.say(f"nothing is elided on this line: press {key} to show the full line")
        self._view.rows_changed()

    async def _fill_gap(self, text: str, number: int, index: int, gap: ConstantGap) -> bool:
        """Loads the start of the elided constant at gap `index` of line `number`. Returns whether it was loaded."""
        count = MAX_EXPANDED if gap.at_end else min(gap.missing, MAX_EXPANDED)
        characters = await self._context.queries.fetch_characters(text, number, gap.start, count)
        if characters is None:
            return False
        total = characters.line_length - gap.start if gap.at_end else gap.missing
        missing = total - len(characters.content)
        self._document.expansions.fill(text, number, index, characters.content, missing)
        message = f"expanded {formatting.count(len(characters.content))} characters"
        if missing:
            message += f" of {formatting.count(total)}: press {key_of('ir.write')} to write the stage to a file"
        self._context.say(message)
        return True

    def describe_op(self) -> None:
        self._context.jobs.begin_opening("ir-line", self._describe_op)

    async def _describe_op(self) -> None:
        """Loads the documentation of the op on the cursor's line, then opens a screen with it."""
        from buddy.app.screens.detail import DetailScreen

        line = self._document.line_at(self._view.cursor)
        name = op_name(line.text) if line is not None and self._document.language == "mlir" else ""
        if not name:
            self._context.say("no MLIR op starts on this line")
            return
        text = await self._context.queries.describe_op(name)
        if text:
            lines: list[Cells] = [[(part, "text")] for part in text.splitlines()]
            self._context.dialogs.open(DetailScreen(name, lines))
        elif text is not None:
            self._context.say(f"the MLIR bindings have no documentation of {name}")
