"""Compares the current recipe with another one: of an earlier edit, a preset, a file, or another graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from buddy.app.panes.ir_comparison import ComparedStages, Side
from buddy.app.workspace.input_parsing import read_file, typed_path
from buddy.compiler.protocol.recipe import from_toml
from buddy.compiler.protocol.recipe_claims import claims, refusal

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane


class CompareCommands:
    """Compiles other recipes for a comparison. The current recipe does not change."""

    def __init__(self, context: WorkbenchContext, ir: IrPane) -> None:
        self._context, self._ir = context, ir

    def sides(self) -> list[tuple[Side, str]]:
        """The recipes that can be compared with the current one, each with a description."""
        workspace, state = self._context.workspace, self._context.state
        mine, now = workspace.recipe, "compare later edits with the current state"
        found = [(Side("the current recipe", mine), now)]
        found += [
            (Side(f"preset {preset.name}", workspace.from_preset(preset.recipe)), preset.summary)
            for preset in state.presets
        ]
        found += [
            (Side(f"after: {edit.title}" if edit.title else "the first recipe", edit.recipe), "an earlier edit")
            for edit in workspace.edits
        ]
        found += [
            (Side(f"graph {number}, {info.name}", workspace.recipe_of(number)), f"{len(info.rows)} nodes, its recipe")
            for number, info in enumerate(state.graphs)
            if number != state.graph
        ]
        return found

    def choose_other(self) -> None:
        """Ask for the other recipe, compile it, and show the differences of each stage."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(side.title, what, side) for side, what in self.sides()]
        choices.append(PickerChoice("a recipe file", "as for `buddy-tui run --recipe`", "file"))
        self._context.dialogs.open(PickerScreen("Compare with", choices), self._compare_with_choice)

    def _compare_with_choice(self, side: Side | Literal["file"] | None) -> None:
        if side == "file":
            self._context.dialogs.ask("compare with the recipe in", "", self._compare_with_file)
        elif side is not None:
            self.compare_with(side)

    def _compare_with_file(self, path: str) -> None:
        if not path.strip():
            return
        try:
            found = from_toml(read_file(typed_path(path)))
        except (OSError, ValueError) as error:
            self._context.say(f"{path.strip()}: {getattr(error, 'strerror', None) or error}")
            return
        # The plug-ins of the file are not used (see below), so they need no trust.
        asked = claims(replace(found, plugins=()))
        if asked and not self._context.session.trusts:
            self._context.say(f"{path.strip()} is rejected: {refusal(asked)}")
            return
        mine = self._context.workspace.recipe
        # Plug-ins are code: use those that the user has loaded, not those that the file names.
        side = replace(found, source=mine.source, arguments=mine.arguments, graph=mine.graph, plugins=mine.plugins)
        self.compare_with(Side(Path(path.strip()).name, side))

    def compare_with(self, side: Side) -> None:
        """Compile `side` in the background, then show the differences in the IR pane."""
        self._context.say(f"compiling {side.title}{self._context.glyphs.ellipsis} press ctrl+c to cancel")
        self._context.jobs.begin("versus", self._compile_and_compare, side)

    async def _compile_and_compare(self, side: Side) -> None:
        compiled = await self._context.jobs.result_of(self._context.session.compile_beside(side.recipe), side.title)
        if compiled is not None:
            self._context.layout.show_pane("ir")
            self._ir.comparison.compare_with(ComparedStages(side.title, compiled.stages))

    def compare_presets(self) -> None:
        """Compile the program with every suitable preset, and compare the measurements."""
        from buddy.app.screens.presets import PresetsScreen

        mine, presets = self._context.workspace.recipe, self._context.state.presets
        sides = [
            (preset.name, self._context.workspace.from_preset(preset.recipe))
            for preset in presets
            if preset.suits(mine)
        ]
        if mine not in [recipe for _, recipe in sides]:
            sides.insert(0, ("(as edited)", mine))
        self._context.dialogs.open(PresetsScreen(self._context.session, sides), self._use_preset_answer)

    def _use_preset_answer(self, answer: tuple[str, Side] | None) -> None:
        if answer is None:
            return
        act, side = answer
        if act == "compare":
            self.compare_with(side)
        else:
            self._context.edits.edit(side.recipe, f"preset {side.title}")
