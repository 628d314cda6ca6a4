"""Opens screens over the panes, and shows phases and failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from textual.app import App

    from buddy.app.actions import Situation
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane


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
        from buddy.app.reports.run_plots import plots_of
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
        from buddy.app.screens.log import log_screen

        self._context.dialogs.open(log_screen(self._context.state, self._log_path))

    def open_help(self) -> None:
        from buddy.app.screens.help import help_screen

        self._context.dialogs.open(help_screen(self._context.layout.pane_id, self._situation()))
