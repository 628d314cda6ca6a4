"""A/B: the recipe on the screen beside another one, an earlier one, a preset's, a file's, or another graph's."""

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
    """Compiles other recipes beside the one on the screen, which stays as it is."""

    def __init__(self, context: WorkbenchContext, ir: IrPane) -> None:
        self._context, self._ir = context, ir

    def sides(self) -> list[tuple[Side, str]]:
        """What the recipe on the screen can be compared with at once, each with what it is."""
        workspace, state = self._context.workspace, self._context.state
        mine, now = workspace.recipe, "compare what comes from later edits with what there is now"
        found = [(Side("the recipe as it is now", mine), now)]
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
        """Ask what to compare with, then compile that and show how each stage differs."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(side.title, what, side) for side, what in self.sides()]
        choices.append(PickerChoice("a recipe file", "one that `buddy-tui run --recipe` takes", "file"))
        self._context.dialogs.open(PickerScreen("Compare with", choices), self._chosen)

    def _chosen(self, side: Side | Literal["file"] | None) -> None:
        if side == "file":
            self._context.dialogs.ask("compare with the recipe in", "", self._read)
        elif side is not None:
            self.compare_with(side)

    def _read(self, path: str) -> None:
        if not path.strip():
            return
        try:
            found = from_toml(read_file(typed_path(path)))
        except (OSError, ValueError) as error:
            self._context.say(f"{path.strip()}: {getattr(error, 'strerror', None) or error}")
            return
        # What a recipe's plug-ins are does not matter: they are left out below.
        asked = claims(replace(found, plugins=()))
        if asked and not self._context.session.trusts:
            self._context.say(f"{path.strip()} is not used: {refusal(asked)}")
            return
        mine = self._context.workspace.recipe
        # Plug-ins are code: a file of somebody's names its own, and those loaded are the user's choice.
        side = replace(found, source=mine.source, arguments=mine.arguments, graph=mine.graph, plugins=mine.plugins)
        self.compare_with(Side(Path(path.strip()).name, side))

    def compare_with(self, side: Side) -> None:
        """Compile `side` in the background; once it is there the IR pane shows what differs."""
        self._context.say(f"compiling {side.title}{self._context.glyphs.ellipsis} ctrl+c cancels")
        self._context.jobs.begin("versus", self._compare_with, side)

    async def _compare_with(self, side: Side) -> None:
        compiled = await self._context.jobs.result_of(self._context.session.compile_beside(side.recipe), side.title)
        if compiled is not None:
            self._context.layout.show_pane("ir")
            self._ir.comparison.compare_with(ComparedStages(side.title, compiled.stages))

    def compare_presets(self) -> None:
        """Every preset beside the others."""
        from buddy.app.screens.presets import PresetsScreen

        mine, presets = self._context.workspace.recipe, self._context.state.presets
        sides = [
            (preset.name, self._context.workspace.from_preset(preset.recipe))
            for preset in presets
            if preset.suits(mine)
        ]
        if mine not in [recipe for _, recipe in sides]:
            sides.insert(0, ("(as edited)", mine))
        self._context.dialogs.open(PresetsScreen(self._context.session, sides), self._preset_chosen)

    def _preset_chosen(self, answer: tuple[str, Side] | None) -> None:
        if answer is None:
            return
        act, side = answer
        if act == "compare":
            self.compare_with(side)
        else:
            self._context.edits.edit(side.recipe, f"preset {side.title}")
