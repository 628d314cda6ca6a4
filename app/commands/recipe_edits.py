"""What the user does to the recipe: edits, undo, and writing it and other texts to files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.app.reports.formatting import thread_count
from buddy.app.session.state import ALL
from buddy.app.workspace.atomic_write import write_whole
from buddy.app.workspace.input_parsing import typed_path
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.recipe import Recipe, to_toml

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench


class Editing:
    """Edits of the recipe; each is compiled at once."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    @property
    def _workspace(self) -> Workspace:
        return self._bench.workspace

    def edit(self, recipe: Recipe, title: str, merge: str = "") -> None:
        """Make `recipe` the current one and compile it."""
        if self._workspace.edit(recipe, title, merge):
            self._changed(title)

    def _changed(self, message: str) -> None:
        news = self._workspace.news
        self._bench.say(self._workspace.problem or (f"{message} · {news}" if news else message))
        self._bench.session.edited()
        self._bench.session_changed(ALL)

    def undo(self) -> None:
        self._changed(f"undone: {self._workspace.undo()}")

    def redo(self) -> None:
        self._changed(f"done again: {self._workspace.redo()}")

    def choose_edit(self) -> None:
        """List all edits of the recipe, undone ones and those of other workbenches too, and go to the one chosen."""
        from buddy.app.screens.picker import Choice, PickerScreen

        choices = [
            Choice(edit.title or "the first recipe", _place_of(steps), steps, marked=not steps)
            for steps, edit in self._workspace.journal
        ]
        choices += [
            Choice(edit.title or "its first recipe", "by another workbench", edit.recipe)
            for edit in self._workspace.edits_of_others()
        ]
        self._bench.push_screen(PickerScreen("Edits, the latest first", choices), self._go_edit)

    def _go_edit(self, steps: int | Recipe | None) -> None:
        if isinstance(steps, Recipe):
            self.edit(steps, "a recipe of another workbench")
        elif steps:
            self._workspace.go(steps)
            self._changed(f"{abs(steps)} edit{'s' * (abs(steps) > 1)} {'done again' if steps > 0 else 'undone'}")

    def reset(self) -> None:
        self.edit(self._workspace.preset, "back to the preset")

    def choose_threads(self) -> None:
        """Ask how many threads compiled code and eager may use, up to as many as the engine's machine has cores."""
        from buddy.app.screens.picker import Choice, PickerScreen

        now, welcome = self._workspace.recipe.threads, self._bench.state.welcome
        choices = [
            Choice(thread_count(number), "", number, marked=number == now)
            for number in thread_choices(welcome.cores if welcome else 1, now)
        ]
        self._bench.push_screen(PickerScreen("Threads of compiled code and of eager", choices), self._use_threads)

    def _use_threads(self, number: int | None) -> None:
        if number is not None:
            self.edit(replace(self._workspace.recipe, threads=number), thread_count(number))

    def ask_save(self) -> None:
        name = Path(self._workspace.source.partition(":")[0]).stem or "program"
        self._bench.ask("save recipe to", f"{name}.recipe.toml", self._save_to)

    def _save_to(self, path: str) -> None:
        if path.strip():
            self.write_file(path.strip(), to_toml(self._workspace.recipe))

    def write_file(self, path: str, text: str) -> None:
        """Write a file where the user said, and say so; one that is there already is asked about."""
        try:
            target = typed_path(path)
            there = target.exists() and not target.is_dir()
        except (OSError, ValueError) as error:
            self._bench.say(f"{path} could not be written: {getattr(error, 'strerror', None) or error}")
            return
        if there:
            self._bench.confirm(f"{path} is there already. Replace it?", lambda: self._write(path, target, text))
        else:
            self._write(path, target, text)

    def _write(self, path: str, target: Path, text: str) -> None:
        try:
            write_whole(target, text)
        except OSError as error:
            self._bench.say(f"{path} could not be written: {error.strerror}")
        else:
            self._bench.say(f"written to {path}")


def thread_choices(cores: int, now: int) -> list[int]:
    """The numbers of threads to choose from: each up to 8, then powers of two, and as many as there are cores."""
    numbers = {*range(1, min(cores, 8) + 1), *(2**k for k in range(4, cores.bit_length()) if 2**k <= cores), cores, now}
    return sorted(numbers)


def _place_of(steps: int) -> str:
    """Where an edit stands beside the recipe as it is."""
    if not steps:
        return "the recipe as it is now"
    return f"undone, {steps} ahead" if steps > 0 else f"{-steps} back"
