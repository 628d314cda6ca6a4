"""Edits of the recipe that the user makes on a screen, and the screens that show the recipe."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from buddy.app.reports.formatting import thread_count
from buddy.app.workspace.workspace import Workspace
from buddy.compiler.protocol.recipe import Recipe, to_toml

if TYPE_CHECKING:
    from textual.app import App

    from buddy.app.actions import Situation
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane


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


class OverlayCommands:
    """Opens pickers, help, diagnostics and the log; their screens are imported when they are first opened."""

    def __init__(
        self,
        context: WorkbenchContext,
        app: App[Any],
        graph: GraphPane,
        ir: IrPane,
        log_path: Path | None,
        situation: Callable[[], Situation],
    ) -> None:
        self._context, self._app, self._graph, self._ir = context, app, graph, ir
        self._log_path, self._situation = log_path, situation

    def choose_phase(self) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        languages = dict(self._context.state.phases(self._context.workspace.recipe))
        choices = [
            PickerChoice(tab.name, languages.get(tab.name, ""), tab.name, marked=tab.name == self._ir.stages.phase)
            for tab in self._ir.stages.tabs()
        ]
        self._context.dialogs.open(PickerScreen("Phases", choices), self._show_phase)

    def _show_phase(self, name: str | None) -> None:
        if name is not None:
            self._context.layout.show_pane("ir")
            self._ir.stages.show_phase_named(name)

    def show_phase(self, number: int) -> None:
        if self._context.layout.folded:
            self._context.layout.show_pane("ir")
        self._ir.stages.show_phase(number)

    def go_failure(self) -> None:
        """Show the IR at the failure; if it is already shown, open the whole diagnostic."""
        failed = (
            self._ir.stage is not None and self._ir.stage.state == "failed" and self._context.layout.pane_id == "ir"
        )
        if failed or self._context.state.board.failed is None:
            self._context.dialogs.open_problem(self._context.state.problem)
        else:
            self._context.layout.show_pane("ir")
            self._ir.stages.show_failure()

    def show_values(self, *, as_map: bool = False) -> None:
        """Open the values of the graph's latest run."""
        from buddy.app.screens.values import ValuesScreen

        state = self._context.state
        outputs = state.report.outputs if state.report else ()
        self._context.dialogs.open(ValuesScreen(state.graph, outputs, self._context.session, as_map=as_map))

    def show_difference_map(self) -> None:
        self.show_values(as_map=True)

    def show_plots(self) -> None:
        """Plot the timings of the runs, the time per pass, and the distribution of the output values."""
        from buddy.app.reports.plots import plots_of
        from buddy.app.screens.plot import PlotScreen

        found = plots_of(self._context.state)
        if found:
            self._context.dialogs.open(PlotScreen(found, self._context.glyphs))
        else:
            self._context.say("nothing to plot yet: press r to run the program")

    def show_numerics(self) -> None:
        """Compare each node with eager. The chosen node is shown in the graph pane."""
        from buddy.app.screens.numerics import NumericsScreen

        if self._context.state.info is not None:
            screen = NumericsScreen(self._context.session, self._context.workspace.recipe, self._context.state.info)
            self._context.dialogs.open(screen, self._go_to_node)

    def _go_to_node(self, node: str | None) -> None:
        if node:
            self._context.layout.show_pane("graph")
            self._graph.show_node(node)
            self._context.selection.select_node(node)

    def choose_theme(self) -> None:
        """Open the list of themes; the theme under the cursor is previewed."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen
        from buddy.themes.palette import themes

        before = self._app.theme
        choices = [PickerChoice(one.title, one.name, one.name, one.name == before) for one in themes().values()]

        def show(name: str) -> None:
            self._app.theme = name

        def chosen(name: str | None) -> None:
            show(name or before)
            if name is not None:
                self._context.say(f'theme: {name}; to keep it, set theme = "{name}" in config.toml')

        self._context.dialogs.open(PickerScreen("Themes", choices, show), chosen)

    def open_log(self) -> None:
        from buddy.app.screens.detail import log_screen

        self._context.dialogs.open(log_screen(self._context.state, self._log_path))

    def open_help(self) -> None:
        from buddy.app.screens.detail import help_screen

        self._context.dialogs.open(help_screen(self._context.layout.pane_id, self._situation()))
