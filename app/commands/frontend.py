"""Chooses the frontend and the target dialect of a recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from buddy.app.panes.ir_comparison import ComparedStages
from buddy.app.session.stages import StagePosition
from buddy.app.workspace.frontends import FRONTEND_SUMMARIES, dialects_of, with_frontend
from buddy.compiler.protocol import NodeRow
from buddy.compiler.protocol.recipe import FRONTENDS, TORCH_MLIR, Dialect, Frontend

if TYPE_CHECKING:
    from buddy.app.commands.provenance import ProvenanceCommands
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane


class _FrontendChoice(NamedTuple):
    frontend: Frontend
    dialect: Dialect


class FrontendCommands:
    """Edits the frontend and the dialect of the recipe, and replaces the passes that depend on them."""

    def __init__(self, context: WorkbenchContext, ir: IrPane, provenance: ProvenanceCommands) -> None:
        self._context, self._ir, self._provenance = context, ir, provenance

    def choose_frontend(self) -> None:
        """List every frontend with each dialect that it supports."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        recipe = self._context.workspace.recipe
        current = _FrontendChoice(recipe.frontend, recipe.dialect)
        pairs = [_FrontendChoice(frontend, dialect) for frontend in FRONTENDS for dialect in dialects_of(frontend)]
        choices = [
            PickerChoice(f"{pair.frontend}, {pair.dialect}", _describe_choice(pair), pair, marked=pair == current)
            for pair in pairs
        ]
        self._context.dialogs.open(PickerScreen("Frontend and target dialect", choices), self._use_frontend)

    def next_dialect(self) -> None:
        """Switch to the next dialect that the recipe's frontend supports."""
        recipe = self._context.workspace.recipe
        dialects = dialects_of(recipe.frontend)
        next_dialect = dialects[(dialects.index(recipe.dialect) + 1) % len(dialects)]
        self._use_frontend(_FrontendChoice(recipe.frontend, next_dialect))

    def _use_frontend(self, choice: _FrontendChoice | None) -> None:
        """Set the frontend and the dialect in the recipe. `None` means that the user chose nothing."""
        workspace = self._context.workspace
        recipe = workspace.recipe
        if choice is None or choice == (recipe.frontend, recipe.dialect):
            return
        new_recipe = with_frontend(recipe, self._context.state.presets, *choice)
        frontend = f"frontend {choice.frontend}, " if choice.frontend != recipe.frontend else ""
        self._context.edits.edit(new_recipe, f"{frontend}dialect {choice.dialect}")

    def compare_node(self) -> None:
        """Show the node under the cursor in this compiler's IR and in torch-mlir's IR."""
        from buddy.app.screens.frontend_comparison import FrontendComparisonScreen

        info = self._context.state.info
        if info is not None and info.entry_phase:
            self._context.say(f"{info.name} was given as IR, so it has no FX nodes to compare")
            return
        context = self._context

        def open_comparison(row: NodeRow) -> None:
            screen = FrontendComparisonScreen(context.session, context.workspace.recipe, row)
            context.dialogs.open(screen, self._show_result)

        self._provenance.with_node(open_comparison)

    def _show_result(self, result: StagePosition | ComparedStages | None) -> None:
        """Go to the position that was chosen in the comparison, or compare the stages that were chosen there."""
        if result is None:
            return
        self._context.layout.show_pane("ir")
        if isinstance(result, ComparedStages):
            self._ir.comparison.compare_with(result)
        else:
            self._ir.jumps.go_to_position(result)


def _describe_choice(choice: _FrontendChoice) -> str:
    if choice.frontend == TORCH_MLIR:
        return FRONTEND_SUMMARIES[choice.frontend]
    return f"{FRONTEND_SUMMARIES[choice.frontend]}, {choice.dialect} first"
