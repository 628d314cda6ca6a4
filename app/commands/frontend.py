"""The road in, chosen in the workbench: which frontend imports the program, to which dialect, and one node by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from buddy.app.panes.comparison import OtherStages
from buddy.app.panes.navigation import Place
from buddy.app.workspace.frontends import SUMMARIES, flavours_of, on_road
from buddy.compiler.protocol.recipe import FRONTENDS, TORCH_MLIR, Flavour, Frontend

if TYPE_CHECKING:
    from buddy.app.commands.provenance import Provenance
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.ir import IrPane


class _Road(NamedTuple):
    frontend: Frontend
    flavour: Flavour


class Frontends:
    """Edits of the recipe that change its frontend or flavour, and its steps with them."""

    def __init__(self, context: WorkbenchContext, ir: IrPane, provenance: Provenance) -> None:
        self._context, self._ir, self._provenance = context, ir, provenance

    def choose_frontend(self) -> None:
        """List every frontend with every dialect that it gives."""
        from buddy.app.screens.picker import Choice, PickerScreen

        recipe = self._context.workspace.recipe
        now = _Road(recipe.frontend, recipe.flavour)
        found = [_Road(frontend, flavour) for frontend in FRONTENDS for flavour in flavours_of(frontend)]
        choices = [Choice(f"{road.frontend}, {road.flavour}", _told(road), road, marked=road == now) for road in found]
        self._context.dialogs.open(PickerScreen("Frontend, and the dialect it goes to", choices), self._use)

    def next_flavour(self) -> None:
        """The next dialect that the recipe's frontend gives."""
        recipe = self._context.workspace.recipe
        given = flavours_of(recipe.frontend)
        self._use(_Road(recipe.frontend, given[(given.index(recipe.flavour) + 1) % len(given)]))

    def _use(self, road: _Road | None) -> None:
        workspace = self._context.workspace
        recipe = workspace.recipe
        if road is None or road == (recipe.frontend, recipe.flavour):
            return
        changed = on_road(recipe, self._context.state.presets, *road)
        frontend = f"by {road.frontend}, " if road.frontend != recipe.frontend else ""
        self._context.edits.edit(changed, f"{frontend}lowered by {road.flavour}")

    def show_beside(self) -> None:
        """The node here in this compiler's IR and in torch-mlir's."""
        from buddy.app.screens.beside import BesideScreen

        if self._context.state.info is not None and self._context.state.info.enters:
            self._context.say(f"{self._context.state.info.name} begins as IR: no frontend has captured its nodes")
            return
        self._provenance.with_node(
            lambda row: self._context.dialogs.open(
                BesideScreen(self._context.session, self._context.workspace.recipe, row), self._go
            )
        )

    def _go(self, found: Place | OtherStages | None) -> None:
        if found is None:
            return
        self._context.layout.show_pane("ir")
        if isinstance(found, OtherStages):
            self._ir.compare_with(found)
        else:
            self._ir.go_from_here(found)


def _told(road: _Road) -> str:
    if road.frontend == TORCH_MLIR:
        return SUMMARIES[road.frontend]
    return f"{SUMMARIES[road.frontend]}, {road.flavour} first"
