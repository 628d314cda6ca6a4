"""Commands that edit the recipe: go to an earlier edit, reset to the preset, set threads, save to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.app.reports.formatting import thread_count
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.recipe import Recipe, to_toml

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext


class RecipeEditCommands:
    """Opens pickers and prompts, and edits the recipe with the answers."""

    def __init__(self, context: WorkbenchContext) -> None:
        self._context = context

    @property
    def _workspace(self) -> Workspace:
        return self._context.workspace

    def choose_edit(self) -> None:
        """List all edits of the recipe, including undone ones and those of other workbenches, and go to one."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [
            PickerChoice(edit.title or "the first recipe", _distance_text(steps), steps, marked=not steps)
            for steps, edit in self._workspace.journal
        ]
        choices += [
            PickerChoice(edit.title or "the first recipe", "by another workbench", edit.recipe)
            for edit in self._workspace.edits_of_others()
        ]
        self._context.dialogs.open(PickerScreen("Edits, latest first", choices), self._go_to_edit)

    def _go_to_edit(self, steps: int | Recipe | None) -> None:
        if isinstance(steps, Recipe):
            self._context.edits.edit(steps, "a recipe of another workbench")
        elif steps:
            self._context.edits.go(steps)

    def reset(self) -> None:
        self._context.edits.edit(self._workspace.preset, "reset to the preset")

    def choose_threads(self) -> None:
        """Choose the number of threads for compiled code and eager, up to the cores of the engine's machine."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        now, welcome = self._workspace.recipe.threads, self._context.state.welcome
        choices = [
            PickerChoice(thread_count(number), "", number, marked=number == now)
            for number in thread_choices(welcome.cores if welcome else 1, now)
        ]
        self._context.dialogs.open(PickerScreen("Threads of compiled code and eager", choices), self._use_threads)

    def _use_threads(self, number: int | None) -> None:
        if number is not None:
            self._context.edits.edit(replace(self._workspace.recipe, threads=number), thread_count(number))

    def ask_save(self) -> None:
        name = Path(self._workspace.source.partition(":")[0]).stem or "program"
        self._context.dialogs.ask("save recipe to", f"{name}.recipe.toml", self._save_to)

    def _save_to(self, path: str) -> None:
        if path.strip():
            self._context.files.write(path.strip(), to_toml(self._workspace.recipe))


def thread_choices(cores: int, now: int) -> list[int]:
    """The thread counts to choose from: 1 to 8, powers of two, `cores` and `now`."""
    numbers = {*range(1, min(cores, 8) + 1), *(2**k for k in range(4, cores.bit_length()) if 2**k <= cores), cores, now}
    return sorted(numbers)


def _distance_text(steps: int) -> str:
    """The distance of an edit from the current recipe."""
    if not steps:
        return "the current recipe"
    return f"undone, {steps} ahead" if steps > 0 else f"{-steps} back"
