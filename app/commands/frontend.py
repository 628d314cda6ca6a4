"""The road in, chosen in the workbench: which frontend imports the program, to which dialect, and one node by both."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from buddy.app.panes.comparison import OtherStages
from buddy.app.panes.navigation import Place
from buddy.app.workspace.frontends import SUMMARIES, flavours_of, on_road
from buddy.compiler.protocol.recipe import FRONTENDS, TORCH_MLIR, Flavour, Frontend

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench


class _Road(NamedTuple):
    frontend: Frontend
    flavour: Flavour


class Frontends:
    """Edits of the recipe that change its frontend or flavour, and its steps with them."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def choose_frontend(self) -> None:
        """List every frontend with every dialect that it gives."""
        from buddy.app.screens.picker import Choice, PickerScreen

        recipe = self._bench.workspace.recipe
        now = _Road(recipe.frontend, recipe.flavour)
        found = [_Road(frontend, flavour) for frontend in FRONTENDS for flavour in flavours_of(frontend)]
        choices = [Choice(f"{road.frontend}, {road.flavour}", _told(road), road, marked=road == now) for road in found]
        self._bench.push_screen(PickerScreen("Frontend, and the dialect it goes to", choices), self._use)

    def next_flavour(self) -> None:
        """The next dialect that the recipe's frontend gives."""
        recipe = self._bench.workspace.recipe
        given = flavours_of(recipe.frontend)
        self._use(_Road(recipe.frontend, given[(given.index(recipe.flavour) + 1) % len(given)]))

    def _use(self, road: _Road | None) -> None:
        workspace = self._bench.workspace
        recipe = workspace.recipe
        if road is None or road == (recipe.frontend, recipe.flavour):
            return
        changed = on_road(recipe, self._bench.state.presets, *road)
        frontend = f"by {road.frontend}, " if road.frontend != recipe.frontend else ""
        self._bench.editing.edit(changed, f"{frontend}lowered by {road.flavour}")

    def show_beside(self) -> None:
        """The node here in this compiler's IR and in torch-mlir's."""
        from buddy.app.screens.beside import BesideScreen

        bench = self._bench
        if bench.state.info is not None and bench.state.info.enters:
            bench.say(f"{bench.state.info.name} begins as IR: no frontend has captured its nodes")
            return
        bench.provenance.with_node(
            lambda row: bench.push_screen(BesideScreen(bench.session, bench.workspace.recipe, row), self._go)
        )

    def _go(self, found: Place | OtherStages | None) -> None:
        if found is None:
            return
        self._bench.show_pane("ir")
        if isinstance(found, OtherStages):
            self._bench.ir.compare_with(found)
        else:
            self._bench.ir.go_from_here(found)


def _told(road: _Road) -> str:
    if road.frontend == TORCH_MLIR:
        return SUMMARIES[road.frontend]
    return f"{SUMMARIES[road.frontend]}, {road.flavour} first"
