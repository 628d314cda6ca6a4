"""Edits the recipe with pickers and prompts: its history, threads and file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.app.reports.formatting import thread_count
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.recipe import Recipe, to_toml

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext


class RecipeEditCommands:
    """Undo history, reset, threads and saving of the recipe, each by a picker, a prompt or one key."""

    def __init__(self, context: WorkbenchContext) -> None:
        self._context = context

    @property
    def _workspace(self) -> Workspace:
        return self._context.workspace

    def choose_edit(self) -> None:
        """List all edits of the recipe, also undone edits and edits of other workbenches, and go to the chosen one."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        choices = [
            PickerChoice(edit.title or "the first recipe", _distance_text(steps), steps, marked=not steps)
            for steps, edit in self._workspace.all_edits
        ]
        choices += [
            PickerChoice(edit.title or "the first recipe", "by another workbench", edit.recipe)
            for edit in self._workspace.edits_of_others()
        ]
        self._context.dialogs.open(PickerScreen("Edits, latest first", choices), self._go_to_edit)

    def _go_to_edit(self, choice: int | Recipe | None) -> None:
        """Use the recipe of another workbench, or redo (positive) or undo (negative) the chosen number of edits."""
        if isinstance(choice, Recipe):
            self._context.edits.edit(choice, "a recipe of another workbench")
        elif choice:
            self._context.edits.undo_or_redo(choice)

    def reset(self) -> None:
        self._context.edits.edit(self._workspace.preset, "reset to the preset")

    def choose_threads(self) -> None:
        """Choose the number of threads for compiled code and eager, up to the cores of the engine's machine."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        threads, welcome = self._workspace.recipe.threads, self._context.state.welcome
        choices = [
            PickerChoice(thread_count(number), "", number, marked=number == threads)
            for number in thread_choices(welcome.cores if welcome else 1, threads)
        ]
        self._context.dialogs.open(PickerScreen("Threads of compiled code and eager", choices), self._use_threads)

    def _use_threads(self, number: int | None) -> None:
        if number is not None:
            self._context.edits.edit(replace(self._workspace.recipe, threads=number), thread_count(number))

    def ask_save(self) -> None:
        """Ask for the file to save the recipe to."""
        name = self._workspace.program_name
        self._context.dialogs.ask("save recipe to", f"{name}.recipe.toml", self._save_to)

    def _save_to(self, path: str) -> None:
        if path.strip():
            self._context.files.write(path.strip(), to_toml(self._workspace.recipe))


def thread_choices(cores: int, current: int) -> list[int]:
    """The thread counts to choose from: 1 to 8 and powers of two up to `cores`, `cores` itself, and `current`."""
    powers_of_two = (2**exponent for exponent in range(4, cores.bit_length()))
    return sorted({*range(1, min(cores, 8) + 1), *powers_of_two, cores, current})


def _distance_text(steps: int) -> str:
    """The position of an edit relative to the current recipe: undone edits have positive `steps`."""
    if not steps:
        return "the current recipe"
    return f"undone; redo {steps} to restore it" if steps > 0 else f"undo {-steps} to return to it"
