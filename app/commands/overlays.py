"""What opens over the panes, and the ways to phases and failures."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from buddy.app.workbench.app import Workbench


class Overlays:
    """Opens pickers, help, diagnostics and the log; their screens are imported when they are first opened."""

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    def choose_phase(self) -> None:
        from buddy.app.screens.picker import Choice, PickerScreen

        languages = dict(self._bench.state.phases(self._bench.workspace.recipe))
        choices = [
            Choice(tab.name, languages.get(tab.name, ""), tab.name, marked=tab.name == self._bench.ir.phase)
            for tab in self._bench.ir.tabs()
        ]
        self._bench.push_screen(PickerScreen("Phases", choices), self._show_phase)

    def _show_phase(self, name: str | None) -> None:
        if name is not None:
            self._bench.show_pane("ir")
            self._bench.ir.show_phase_named(name)

    def show_phase(self, number: int) -> None:
        if self._bench.folded:
            self._bench.show_pane("ir")
        self._bench.ir.show_phase(number)

    def go_failure(self) -> None:
        """The IR at the failure; read again there, the whole diagnostic."""
        failed = (
            self._bench.ir.stage is not None
            and self._bench.ir.stage.state == "failed"
            and self._bench.pane.pane_id == "ir"
        )
        if failed or self._bench.state.board.failed is None:
            self.open_problem()
        else:
            self._bench.show_pane("ir")
            self._bench.ir.show_failure()

    def open_problem(self) -> None:
        from buddy.app.screens.detail import problem_screen

        if self._bench.state.problem is not None:
            self._bench.push_screen(problem_screen(self._bench.state.problem))

    def show_values(self, *, as_map: bool = False) -> None:
        """The values of the graph's latest run."""
        from buddy.app.screens.values import ValuesScreen

        state, session = self._bench.state, self._bench.session
        outputs = state.report.outputs if state.report else ()
        self._bench.push_screen(ValuesScreen(state.graph, outputs, session.ask, as_map=as_map))

    def show_difference_map(self) -> None:
        self.show_values(as_map=True)

    def show_plots(self) -> None:
        """Timings over the runs, time per pass, how the values of outputs are spread."""
        from buddy.app.reports.run_plots import plots_of
        from buddy.app.screens.plot import PlotScreen

        found = plots_of(self._bench.state)
        if found:
            self._bench.push_screen(PlotScreen(found, self._bench.glyphs))
        else:
            self._bench.say("there is nothing to plot yet: r runs the program")

    def show_numerics(self) -> None:
        """Every node beside eager; what is chosen there is gone to."""
        from buddy.app.screens.numerics import NumericsScreen

        bench = self._bench
        if bench.state.info is not None:
            screen = NumericsScreen(bench.session, bench.workspace.recipe, bench.state.info)
            bench.push_screen(screen, self._node_chosen)

    def _node_chosen(self, node: str | None) -> None:
        if node:
            self._bench.show_pane("graph")
            self._bench.graph.show_node(node)
            self._bench.selection.select_node(node)

    def choose_theme(self) -> None:
        """A list of themes, each shown while the cursor is on it."""
        from buddy.app.screens.picker import Choice, PickerScreen
        from buddy.themes.palette import themes

        before = self._bench.theme
        choices = [Choice(one.title, one.name, one.name, one.name == before) for one in themes().values()]

        def chosen(name: str | None) -> None:
            self._bench.theme = name or before
            if name is not None:
                self._bench.say(f'theme: {name}; for good: theme = "{name}" in config.toml')

        self._bench.push_screen(PickerScreen("Themes", choices, self._bench.show_theme), chosen)

    def open_log(self) -> None:
        from buddy.app.screens.log import log_screen

        self._bench.push_screen(log_screen(self._bench.state, self._bench.log_path))

    def open_help(self) -> None:
        from buddy.app.screens.help import help_screen

        self._bench.push_screen(help_screen(self._bench.pane.pane_id, self._bench.situation()))
