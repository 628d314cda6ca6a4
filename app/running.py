"""What is run on what: the choice of inputs, and the runs so far, each of which can be run again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.app.input_files import file_choice
from buddy.app.runs import RunRecord
from buddy.app.typed import typed_path, typed_seed
from buddy.app.versus import Side
from buddy.compiler.run_report import InputChoice

if TYPE_CHECKING:
    from buddy.app.workbench import Workbench


class Running:
    """Asks for inputs and runs, and shows the runs so far."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def choose_inputs(self) -> None:
        """The script's own inputs, random ones by a seed, or those of a file."""
        from buddy.app.screens.picker import Choice, PickerScreen

        now = self._bench.session.inputs
        choices = [
            Choice("the script's own", "as it was captured with", "script", marked=now.kind == "script"),
            Choice(
                "random", "by a seed: floats as the script's are spread, integers among its own", "random",
                marked=now.kind == "random",
            ),
            Choice("from a file", ".npy, .npz or .pt: tensors of the same shapes", "file", marked=now.kind == "file"),
        ]  # fmt: skip
        self._bench.push_screen(PickerScreen("Inputs", choices), self._kind_chosen)

    def _kind_chosen(self, kind: str | None) -> None:
        now = self._bench.session.inputs
        if kind == "script":
            self._use(InputChoice())
        elif kind == "random":
            self._bench.ask("seed", str(now.seed), self._use_seed)
        elif kind == "file":
            self._bench.ask("inputs from", now.title, self._use_file)

    def _use_seed(self, text: str) -> None:
        try:
            seed = typed_seed(text)
        except ValueError as error:
            self._bench.say(str(error))
            return
        self._use(InputChoice("random", seed))

    def _use_file(self, text: str) -> None:
        try:
            found = file_choice(typed_path(text))
        except (OSError, ValueError) as error:
            self._bench.say(f"{text.strip()}: {error}")
            return
        self._use(found)

    def _use(self, inputs: InputChoice) -> None:
        self._bench.session.inputs = inputs
        self._bench.say(str(inputs))
        self._bench.session.run()

    # ---- the runs so far -----------------------------------------------------------------------------------------

    def show_runs(self) -> None:
        from buddy.app.screens.runs import RunsScreen

        state = self._bench.state
        self._bench.push_screen(RunsScreen(state.runs, state.presets), self._run_chosen)

    def _run_chosen(self, answer: tuple[str, RunRecord] | None) -> None:
        if answer is None:
            return
        act, record = answer
        bench = self._bench
        if act == "compare":
            bench.versus.compare_with(Side("the recipe of that run", record.recipe))
            return
        bench.graphs.show(record.recipe.graph)
        mine = bench.workspace.recipe
        again = replace(record.recipe, source=mine.source, arguments=mine.arguments, plugins=mine.plugins)
        bench.session.inputs = record.inputs
        bench.editing.edit(again, "the recipe of an earlier run")
        bench.session.run()
