"""The recipes of a program, one for each graph, and their storage between sessions. No Textual."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from buddy.app.workspace.files import write_whole
from buddy.app.workspace.history import Edit, History
from buddy.app.workspace.recipe_files import RecipeFile
from buddy.compiler.protocol import GraphInfo
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import PluginFile, Recipe, digest, rebased

# The initial phase of a graph's IR, and its dialects.
Begin = tuple[str, tuple[str, ...]]
Origin = Literal["none", "preset", "restored", "edited"]


class Workspace:
    """The recipes of one program. `graph` is the graph on the screen, which `recipe`, edits and undo refer to.

    Every edit and the shown graph are saved at once under `store`. `plugins` are the plug-ins of every recipe: as given
    by the user, until the engine has reported their contents.
    """

    def __init__(
        self,
        source: str,
        arguments: tuple[str, ...] = (),
        store: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
        plugins: tuple[PluginFile, ...] = (),
    ) -> None:
        self.source = source
        self.arguments = arguments
        self.plugins = plugins
        self.graph = 0
        self.ready = False
        self.problem = ""
        self.news = ""
        self._store = store or default_store()
        self._clock = clock
        self._preset = Recipe(source, arguments)
        self._histories: dict[int, History] = {}
        self._files: dict[int, RecipeFile] = {}
        self._entries: list[Begin] = []

    @property
    def path(self) -> Path:
        """The file of the recipe of the graph on the screen."""
        return self.path_of(self.graph)

    def path_of(self, graph: int) -> Path:
        return recipe_path(self.source, self.arguments, self._store, graph)

    @property
    def recipe(self) -> Recipe:
        return self.recipe_of(self.graph)

    def recipe_of(self, graph: int) -> Recipe:
        """The recipe of a graph, which may not have been shown yet."""
        return self._with_plugins(self._history_of(graph).recipe)

    @property
    def preset(self) -> Recipe:
        """The recipe without the user's edits."""
        return self._with_plugins(self._history.preset)

    @property
    def origin(self) -> Origin:
        """The origin of the recipe."""
        if not self.ready:
            return "none"
        if self._history.restored:
            return "restored"
        return "preset" if self.recipe == self.preset else "edited"

    def begin(self, preset: Recipe) -> None:
        """Load the saved recipe of each graph, or use `preset`. Shows the graph that was shown last."""
        self._preset, self.ready = preset, True
        self._histories.clear()
        self.graph = self._read_shown_graph()
        self._history_of(self.graph)

    def set_graphs(self, graphs: Sequence[GraphInfo]) -> None:
        """Set the graphs of the program. Recipes of graphs that start as IR have passes of earlier phases disabled."""
        begins = [(graph.enters, graph.dialects) for graph in graphs]
        if begins != self._entries and any(enters for enters, _ in (*begins, *self._entries)):
            self._histories.clear()
        self._entries = begins

    def from_preset(self, preset: Recipe) -> Recipe:
        """The recipe of the graph on the screen with the passes of a preset."""
        return self._from_entry_phase(rebased(preset, self.recipe), self.graph)

    def _from_entry_phase(self, recipe: Recipe, graph: int) -> Recipe:
        return adapt_to_phase(recipe, *self._entries[graph]) if graph < len(self._entries) else recipe

    def show(self, graph: int) -> None:
        """Switch to the recipe of another graph."""
        self.graph = graph
        self._save(lambda: write_whole(self._shown_path, f"{graph}\n"))

    def adopt(self, recipe: Recipe) -> None:
        """Start a new graph with `recipe`, and ignore a saved recipe with its number."""
        self._files.pop(recipe.graph, None)
        self._histories[recipe.graph] = History(self._with_address(recipe, recipe.graph), None, self._clock)

    def edit(self, recipe: Recipe, title: str, merge: str = "") -> bool:
        """Make `recipe` the current one. Edits with the same `merge` name in quick succession are undone together."""
        if not self._history.edit(self._with_address(recipe, self.graph), title, merge):
            return False
        self._save(self._save_recipe)
        return True

    def undo(self) -> str:
        """Undo one edit. Returns its title, or an empty string without one."""
        title = self._history.undo()
        if title:
            self._save(self._save_recipe)
        return title

    def redo(self) -> str:
        """Redo the last undone edit. Returns its title, or an empty string without one."""
        title = self._history.redo()
        if title:
            self._save(self._save_recipe)
        return title

    @property
    def journal(self) -> list[tuple[int, Edit]]:
        """Every edit of the graph on the screen, the latest first, with its distance from the current one."""
        return self._history.journal

    def go(self, steps: int) -> None:
        """Redo that many edits, or, for a negative number, undo them."""
        self._history.go(steps)
        self._save(self._save_recipe)

    @property
    def edits(self) -> list[Edit]:
        """Earlier recipes of the graph on the screen, the latest first, each with the title of its edit."""
        return self._history.edits

    def edits_of_others(self) -> list[Edit]:
        """The recipes of other workbenches for the graph on the screen, without those in its own edits."""
        own = {edit.recipe for _, edit in self.journal}
        others = {edit.recipe: edit for edit in reversed(self._file_of(self.graph).others())}
        return [edit for recipe, edit in reversed(others.items()) if recipe not in own]

    @property
    def has_others(self) -> bool:
        """Whether other workbenches have saved edits of the recipe on the screen."""
        return bool(self._file_of(self.graph).others())

    @property
    def can_undo(self) -> bool:
        return self._history.can_undo

    @property
    def can_redo(self) -> bool:
        return self._history.can_redo

    # ---- the recipes ---------------------------------------------------------------------------------------------

    @property
    def _history(self) -> History:
        return self._history_of(self.graph)

    def _history_of(self, graph: int) -> History:
        if graph not in self._histories:
            kept, edits, problem = self._file_of(graph).read() if self.ready else (None, None, "")
            self.problem = problem or self.problem
            begins = self._from_entry_phase(kept, graph) if kept and kept.steps == self._preset.steps else kept
            found = History(self._from_entry_phase(self._with_address(self._preset, graph), graph), begins, self._clock)
            if edits is not None:
                found.take(edits.up_to(kept or found.recipe))
            self._histories[graph] = found
        return self._histories[graph]

    def _with_address(self, recipe: Recipe, graph: int) -> Recipe:
        return msgspec.structs.replace(recipe, source=self.source, arguments=self.arguments, graph=graph, plugins=())

    def _with_plugins(self, recipe: Recipe) -> Recipe:
        """The recipe with the plug-ins that the engine has loaded, which may have changed since the edit."""
        return msgspec.structs.replace(recipe, plugins=self.plugins)

    # ---- saving --------------------------------------------------------------------------------------------------

    def _save(self, keep: Callable[[], None]) -> None:
        self.news = ""
        try:
            keep()
            self.problem = ""
        except OSError as error:
            self.problem = f"the recipe could not be saved: {error}"

    def _save_recipe(self) -> None:
        recipe = None if self.recipe == self.preset else self.recipe
        if self._file_of(self.graph).keep(recipe, self._history.edits_to_save()):
            self.news = "another workbench edited this recipe too: press U to see its edits"

    def _file_of(self, graph: int) -> RecipeFile:
        if graph not in self._files:
            self._files[graph] = RecipeFile(self.path_of(graph), lambda recipe: self._with_address(recipe, graph))
        return self._files[graph]

    @property
    def _shown_path(self) -> Path:
        return self.path_of(0).with_suffix(".graph")

    def _read_shown_graph(self) -> int:
        try:
            return max(0, int(self._shown_path.read_text("utf-8")))
        except (OSError, ValueError):
            return 0


def default_store(machine: str = "") -> Path:
    """The folder of saved recipes; `BUDDY_TUI_STATE` overrides it. Programs on remote hosts have a separate folder."""
    import platformdirs

    here = Path(os.environ.get("BUDDY_TUI_STATE") or platformdirs.user_state_dir("buddy-tui"))
    return here / "machines" / digest(machine) if machine else here


def recipe_path(source: str, arguments: tuple[str, ...], store: Path, graph: int = 0) -> Path:
    """The file of the recipe of a graph of `source`. It does not depend on the current folder."""
    path, colon, name = source.partition(":")
    place = os.path.realpath(path) if os.path.exists(path) else path
    number = f"-{graph}" if graph else ""
    return store / "recipes" / f"{digest(place + colon + name, arguments)}{number}.toml"
