"""Opens the screens for phases, failures, values, plots, numerics, themes, the log and help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buddy.app.actions import key_of

if TYPE_CHECKING:
    from textual.app import App

    from buddy.app.actions import Situation
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane


class ScreenCommands:
    """Opens screens, which are imported when they are first opened.

    `log_path` is the file of the engine's log, `None` without one. `situation` returns the current situation, which
    decides which actions are enabled.
    """

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
        """List the phases with their languages, and show the last stage of the chosen one."""
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
        """Show the phase with this number, counted from 1 as on the tabs of the IR pane."""
        if self._context.layout.shows_one_pane:
            self._context.layout.show_pane("ir")
        self._ir.stages.show_phase(number)

    def go_to_failure(self) -> None:
        """Show the IR at the failure. If it is already shown, or no stage failed, open the diagnostic."""
        stage = self._ir.chosen_stage
        shows_failure = stage is not None and stage.state == "failed" and self._context.layout.pane_id == "ir"
        if shows_failure or self._context.state.board.failed_stage is None:
            self._context.dialogs.open_problem(self._context.state.problem)
        else:
            self._context.layout.show_pane("ir")
            self._ir.stages.show_failure()

    def show_values(self, *, as_map: bool = False) -> None:
        """Open the table of output values of the graph's latest run, or, with `as_map`, the map of their errors."""
        from buddy.app.screens.values import ValuesScreen

        state = self._context.state
        outputs = state.report.outputs if state.report else ()
        self._context.dialogs.open(ValuesScreen(state.graph, outputs, self._context.session, as_map=as_map))

    def show_difference_map(self) -> None:
        self.show_values(as_map=True)

    def show_plots(self) -> None:
        """Plot the timings of the runs, the time of each pass, and the distribution of the output values."""
        from buddy.app.reports.plots import plots_of
        from buddy.app.screens.plot import PlotScreen

        plots = plots_of(self._context.state)
        if plots:
            self._context.dialogs.open(PlotScreen(plots, self._context.glyphs))
        else:
            self._context.say(f"nothing to plot yet: press {key_of('run')} to run the program")

    def show_numerics(self) -> None:
        """Compare the result of each node with eager. The chosen node is shown in the graph pane."""
        from buddy.app.screens.numerics import NumericsScreen

        if self._context.state.info is not None:
            context, recipe, info = self._context, self._context.workspace.recipe, self._context.state.info
            screen = NumericsScreen(context.session, recipe, info, context.results.add)
            context.dialogs.open(screen, self._go_to_node)

    def _go_to_node(self, node: str | None) -> None:
        if node:
            self._context.layout.show_pane("graph")
            self._graph.show_node(node)
            self._context.selection.select_node(node)

    def choose_theme(self) -> None:
        """Open the list of themes. The workbench previews the theme under the cursor."""
        from buddy.app.screens.picker import PickerChoice, PickerScreen
        from buddy.themes.palette import themes

        initial = self._app.theme
        choices = [
            PickerChoice(theme.title, theme.name, theme.name, marked=theme.name == initial)
            for theme in themes().values()
        ]

        def show(name: str) -> None:
            self._app.theme = name

        def use_theme(name: str | None) -> None:
            show(name or initial)
            if name is not None:
                self._context.say(f'theme: {name}; to keep it, set theme = "{name}" in config.toml')

        self._context.dialogs.open(PickerScreen("Themes", choices, show), use_theme)

    def open_log(self) -> None:
        """Open the log. A result that is chosen there is shown again."""
        from buddy.app.screens.results import LogScreen

        context = self._context
        screen = LogScreen(context.state, context.results.logged, context.status.messages, self._log_path)
        context.dialogs.open(screen, lambda logged: context.results.open(logged) if logged is not None else None)

    def open_help(self) -> None:
        """Open the list of the keys of the pane that has focus."""
        from buddy.app.screens.detail import help_screen

        self._context.dialogs.open(help_screen(self._context.layout.pane_id, self._situation()))
