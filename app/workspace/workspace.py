"""The recipes of a program, one for each graph, and their storage between sessions. Does not import Textual."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from buddy.app.actions import key_of
from buddy.app.workspace.files import write_text_atomically
from buddy.app.workspace.history import Edit, History
from buddy.app.workspace.presets import with_steps_of
from buddy.app.workspace.recipe_files import RecipeFile
from buddy.compiler.protocol import GraphInfo
from buddy.compiler.protocol.presets import adapt_to_phase
from buddy.compiler.protocol.recipe import DUMP, PluginFile, Recipe, digest
from buddy.compiler.protocol.source_locations import split_source

# The phase of a graph that starts as IR ("" for a captured graph), and the dialects of its IR.
EntryPhase = tuple[str, tuple[str, ...]]
Origin = Literal["none", "preset", "restored", "edited"]


class Workspace:
    """The recipes of one program. `graph` is the graph on the screen, which `recipe`, edits and undo refer to.

    Every edit and the number of the shown graph are saved at once under `store`. `plugins` are the plug-ins of every
    recipe: paths from the command line, until the engine has loaded them and reported their hashes. `is_loaded` is true
    after `load`. `problem` is the error of the last save. `notice` is the message that another workbench has saved the
    recipe too, or empty.
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
        self.is_loaded = False
        self.problem = ""
        self.notice = ""
        self.store = store or default_store()
        self._clock = clock
        self._preset = Recipe(source, arguments)
        self._histories: dict[int, History] = {}
        self._files: dict[int, RecipeFile] = {}
        self._entry_phases: list[EntryPhase] = []

    @property
    def path(self) -> Path:
        """The file of the recipe of the graph on the screen."""
        return self.path_of(self.graph)

    def path_of(self, graph: int) -> Path:
        return recipe_path(self.source, self.arguments, self.store, graph)

    def is_same_program(self, source: str, arguments: tuple[str, ...]) -> bool:
        """Whether `source` with `arguments` is the program of this workspace."""
        return recipe_path(source, arguments, self.store) == self.path_of(0)

    @property
    def recipe(self) -> Recipe:
        return self.recipe_of(self.graph)

    def recipe_of(self, graph: int) -> Recipe:
        """Returns the recipe of a graph, which may not have been shown yet."""
        return self._with_plugins(self._history_of(graph).recipe)

    @property
    def preset(self) -> Recipe:
        """The recipe without the user's edits."""
        return self._with_plugins(self._history.preset)

    @property
    def origin(self) -> Origin:
        """Where the recipe of the graph on the screen comes from."""
        if not self.is_loaded:
            return "none"
        if self._history.is_restored:
            return "restored"
        return "preset" if self.recipe == self.preset else "edited"

    def load(self, preset: Recipe) -> None:
        """Starts with the saved recipe of each graph, or with `preset`, and with the graph that was shown last."""
        self._preset, self.is_loaded = preset, True
        self._histories.clear()
        self.graph = self._read_shown_graph()
        self._history_of(self.graph)

    def set_graphs(self, graphs: Sequence[GraphInfo]) -> None:
        """Sets the graphs of the program. In the preset of a graph that starts as IR, earlier phases are disabled.

        If the program has such graphs, and their phases have changed, all histories are loaded again.
        """
        phases = [(graph.entry_phase, graph.dialects) for graph in graphs]
        if phases != self._entry_phases and any(phase for phase, _ in (*phases, *self._entry_phases)):
            self._histories.clear()
        self._entry_phases = phases

    @property
    def program_name(self) -> str:
        """The name of the program's file without its suffix, for the names of files that are written."""
        return split_source(self.source).stem

    def with_steps_of(self, preset: Recipe) -> Recipe:
        """Returns the recipe of the graph on the screen with the passes of a preset, like `presets.with_steps_of`."""
        return self._disable_earlier_phases(with_steps_of(self.recipe, preset), self.graph)

    def _disable_earlier_phases(self, recipe: Recipe, graph: int) -> Recipe:
        """Returns `recipe` without the passes of phases before the one at which the graph starts."""
        if graph >= len(self._entry_phases):  # not captured yet
            return recipe
        return adapt_to_phase(recipe, *self._entry_phases[graph])

    def show_graph(self, graph: int) -> None:
        """Switches to the recipe of another graph, and saves its number as the shown graph."""
        self.graph = graph
        self._try_to_save(lambda: write_text_atomically(self._shown_graph_path, f"{graph}\n"))

    def add_graph(self, recipe: Recipe) -> None:
        """Adds the graph of `recipe`, with `recipe` as its preset. A saved recipe with its number is ignored."""
        self._files.pop(recipe.graph, None)
        self._histories[recipe.graph] = History(self._for_graph(recipe, recipe.graph), None, self._clock)

    def edit(self, recipe: Recipe, title: str, merge_key: str = "") -> bool:
        """Makes `recipe` the current one, and saves it. Returns false if it is already the current one.

        Edits with the same non-empty `merge_key` in quick succession are undone together.
        """
        if not self._history.edit(self._for_graph(recipe, self.graph), title, merge_key):
            return False
        self._save_recipe()
        return True

    def undo(self) -> str:
        """Undoes one edit. Returns its title, or an empty string if there is nothing to undo."""
        title = self._history.undo()
        if title:
            self._save_recipe()
        return title

    def redo(self) -> str:
        """Redoes the last undone edit. Returns its title, or an empty string if there is nothing to redo."""
        title = self._history.redo()
        if title:
            self._save_recipe()
        return title

    @property
    def all_edits(self) -> list[tuple[int, Edit]]:
        """Every edit of the graph on the screen, the latest first, with its distance from the current one."""
        return self._history.all_edits

    def undo_or_redo(self, steps: int) -> None:
        """Redoes that many edits, or, for a negative number, undoes them."""
        self._history.undo_or_redo(steps)
        self._save_recipe()

    @property
    def past_edits(self) -> list[Edit]:
        """Earlier recipes of the graph on the screen, the latest first, each with the title of its edit."""
        return self._history.past_edits

    def edits_of_others(self) -> list[Edit]:
        """Returns the edits of other workbenches for the graph on the screen whose recipes are not in `all_edits`.

        The edits of the workbench that saved last come first. Of edits with equal recipes, only the first is returned.
        """
        own_recipes = {edit.recipe for _, edit in self.all_edits}
        others: dict[Recipe, Edit] = {}
        for edit in self._file_of(self.graph).edits_of_others():
            if edit.recipe not in own_recipes:
                others.setdefault(edit.recipe, edit)
        return list(others.values())

    @property
    def has_edits_of_others(self) -> bool:
        """Whether other workbenches have saved edits of the graph on the screen."""
        return bool(self._file_of(self.graph).edits_of_others())

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
        """Returns the history of a graph's recipe, which is loaded at the first use."""
        if graph not in self._histories:
            may_read_saved = self.is_loaded and not self._is_dump(graph)
            saved, edits, problem = self._file_of(graph).read() if may_read_saved else (None, None, "")
            self.problem = problem or self.problem
            preset = self._disable_earlier_phases(self._for_graph(self._preset, graph), graph)
            # A recipe whose passes the user has not edited is adapted to the graph like the preset.
            has_preset_steps = saved is not None and saved.steps == self._preset.steps
            initial = self._disable_earlier_phases(saved, graph) if saved and has_preset_steps else saved
            history = History(preset, initial, self._clock)
            if edits is not None:
                history.continue_from(edits.with_current(saved or history.recipe))
            self._histories[graph] = history
        return self._histories[graph]

    def _is_dump(self, graph: int) -> bool:
        """Whether a graph comes from a dump, whose recipe has no passes.

        A recipe that is saved for the path of a dump belongs to an earlier program, so it is not read.
        """
        return graph < len(self._entry_phases) and self._entry_phases[graph][0] == DUMP

    def _for_graph(self, recipe: Recipe, graph: int) -> Recipe:
        """Returns `recipe` for a graph of this program, without plug-ins, as it is stored."""
        return msgspec.structs.replace(recipe, source=self.source, arguments=self.arguments, graph=graph, plugins=())

    def _with_plugins(self, recipe: Recipe) -> Recipe:
        """Returns `recipe` with the current plug-ins, which may have changed since the edit that made `recipe`."""
        return msgspec.structs.replace(recipe, plugins=self.plugins)

    # ---- saving --------------------------------------------------------------------------------------------------

    def _save_recipe(self) -> None:
        """Saves the recipe and its history. If the recipe equals the preset, its file is deleted."""
        self._try_to_save(self._write_recipe)

    def _try_to_save(self, write: Callable[[], None]) -> None:
        """Calls `write`. An `OSError` becomes `problem`."""
        self.notice = ""
        try:
            write()
            self.problem = ""
        except OSError as error:
            self.problem = f"the recipe could not be saved: {error}"

    def _write_recipe(self) -> None:
        recipe = None if self.recipe == self.preset else self.recipe
        if self._file_of(self.graph).save(recipe, self._history.history_to_save()):
            self.notice = f"another workbench edited this recipe too: press {key_of('edits')} to see its edits"

    def _file_of(self, graph: int) -> RecipeFile:
        if graph not in self._files:
            self._files[graph] = RecipeFile(self.path_of(graph), lambda recipe: self._for_graph(recipe, graph))
        return self._files[graph]

    @property
    def _shown_graph_path(self) -> Path:
        return self.path_of(0).with_suffix(".graph")

    def _read_shown_graph(self) -> int:
        try:
            return max(0, int(self._shown_graph_path.read_text("utf-8")))
        except (OSError, ValueError):
            return 0


def default_store(host: str = "") -> Path:
    """Returns the folder of saved recipes; `BUDDY_TUI_STATE` overrides it. Each remote `host` has a folder inside."""
    import platformdirs

    folder = Path(os.environ.get("BUDDY_TUI_STATE") or platformdirs.user_state_dir("buddy-tui"))
    return folder / "machines" / digest(host) if host else folder


def recipe_path(source: str, arguments: tuple[str, ...], store: Path, graph: int = 0) -> Path:
    """Returns the path of a graph's recipe. For an existing source, it does not depend on the working directory."""
    parts = split_source(source)
    target = os.path.realpath(parts.target) if os.path.exists(parts.target) else parts.target
    number = f"-{graph}" if graph else ""
    return store / "recipes" / f"{digest(parts.with_target(target), arguments)}{number}.toml"
