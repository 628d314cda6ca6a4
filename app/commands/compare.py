"""Compares the current recipe with other recipes and with the presets."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Literal

from msgspec.structs import replace

from buddy.app.actions import key_of
from buddy.app.panes.ir_comparison import ComparedStages, TitledRecipe
from buddy.app.workspace.frontends import with_preset
from buddy.app.workspace.inputs import parse_path, read_file
from buddy.compiler.protocol.recipe import from_toml, rejection_text, required_permissions

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane


class CompareCommands:
    """Compiles other recipes for a comparison. The current recipe does not change."""

    def __init__(self, context: WorkbenchContext, ir: IrPane) -> None:
        self._context, self._ir = context, ir

    def comparable_recipes(self) -> list[tuple[TitledRecipe, str]]:
        """Returns the recipes that can be compared with the current one, each with a description."""
        workspace, state = self._context.workspace, self._context.state
        choices = [(TitledRecipe("the current recipe", workspace.recipe), "compare later edits with the current state")]
        choices += [
            (TitledRecipe(f"backend {backend.name}", replace(workspace.recipe, backend=backend.name)), backend.summary)
            for backend in state.backends
            if backend.name != workspace.recipe.backend
        ]
        choices += [
            (TitledRecipe(f"preset {preset.name}", workspace.with_steps_of(preset.recipe)), preset.summary)
            for preset in state.presets
        ]
        choices += [
            (TitledRecipe(f"after: {edit.title}" if edit.title else "the first recipe", edit.recipe), "an earlier edit")
            for edit in workspace.past_edits
        ]
        choices += [
            (
                TitledRecipe(f"graph {number}, {info.name}", workspace.recipe_of(number)),
                f"{len(info.rows)} nodes; the recipe of that graph",
            )
            for number, info in enumerate(state.graphs)
            if number != state.graph
        ]
        return choices

    def choose_recipe_to_compare(self) -> None:
        """Ask for the other recipe, compile it, and show the differences of each stage."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [PickerChoice(recipe.title, summary, recipe) for recipe, summary in self.comparable_recipes()]
        choices.append(PickerChoice("a recipe file", "a TOML file, as given to `buddy-tui run --recipe`", "file"))
        self._context.dialogs.open(PickerScreen("Compare with", choices), self._compare_with_choice)

    def _compare_with_choice(self, other: TitledRecipe | Literal["file"] | None) -> None:
        if other == "file":
            self._context.dialogs.ask("compare with the recipe in the file", "", self._compare_with_file)
        elif other is not None:
            self.compare_with(other)

    def _compare_with_file(self, path: str) -> None:
        """Compare with the recipe in a file, applied to the current graph; without steps, with those of its preset."""
        if not path.strip():
            return
        try:
            file_recipe = from_toml(read_file(parse_path(path)))
            if not file_recipe.steps:
                file_recipe = with_preset(file_recipe, self._context.state.presets)
        except (OSError, ValueError) as error:
            self._context.say(f"{path.strip()}: {getattr(error, 'strerror', None) or error}")
            return
        # The plug-ins that the file names are replaced below, so the user need not trust them.
        needs_trust = required_permissions(replace(file_recipe, plugins=()))
        if needs_trust and not self._context.session.is_trusted:
            self._context.say(f"{path.strip()} is rejected: {rejection_text(needs_trust)}")
            return
        current = self._context.workspace.recipe
        # Plug-ins are code: only those that the user has loaded are used, not those that the file names.
        recipe = replace(
            file_recipe,
            source=current.source,
            arguments=current.arguments,
            graph=current.graph,
            plugins=current.plugins,
        )
        self.compare_with(TitledRecipe(Path(path.strip()).name, recipe))

    def compare_with(self, other: TitledRecipe) -> None:
        """Compile the recipe `other` in the background, then show the differences of its stages in the IR pane."""
        self._context.say(f"compiling {other.title}{self._context.glyphs.ellipsis} press {key_of('cancel')} to cancel")
        self._context.jobs.begin("compare", self._compile_and_compare, other)

    async def _compile_and_compare(self, other: TitledRecipe) -> None:
        """Compile `other`, and show the differences. Shows the error if that fails."""
        compiled = await self._context.jobs.result_of(
            self._context.session.compile_for_comparison(other.recipe), other.title
        )
        if compiled is not None:
            self._context.layout.show_pane("ir")
            stages = ComparedStages(other.title, compiled.stages)
            # The stages of another graph differ from the first on, so the chosen stage is shown instead of that one.
            is_same_graph = other.recipe.graph == self._context.state.graph
            self._ir.comparison.compare_with(stages, at_first_difference=is_same_graph)

    def compare_presets(self) -> None:
        """Compile the program with every applicable preset; show compile times, op counts and code sizes in a table."""
        from buddy.app.screens.presets import PresetsScreen

        current, presets = self._context.workspace.recipe, self._context.state.presets
        recipes = [
            (preset.name, self._context.workspace.with_steps_of(preset.recipe))
            for preset in presets
            if preset.suits(current)
        ]
        if current not in [recipe for _, recipe in recipes]:
            recipes.insert(0, ("current recipe", current))
        self._context.dialogs.open(PresetsScreen(self._context.session, recipes), self._use_preset_answer)

    def _use_preset_answer(self, answer: tuple[str, TitledRecipe] | None) -> None:
        """Compare with the chosen preset, or use it. `answer` has the chosen action and the preset's recipe."""
        if answer is None:
            return
        action, preset = answer
        if action == "compare":
            self.compare_with(preset)
        else:
            self._context.edits.edit(preset.recipe, f"preset {preset.title}")
