"""Opens screens: phases, failures, values, plots, numerics, themes, log and help; and the provenance of a node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from buddy.app.actions import key_of
from buddy.app.reports.nodes import (
    EVERY_LINE,
    MACHINE_CODE,
    NodeRemark,
    instruction_count_remark,
    is_computed,
    node_history,
)
from buddy.app.reports.python_lines import parse_location
from buddy.app.session.stages import StagePosition, StageRow
from buddy.compiler.protocol import ExplainCode, FollowNode, NodeRow, Stage
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from textual.app import App

    from buddy.app.actions import Situation
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane
    from buddy.app.panes.source import SourcePane


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
        """Lists the phases with their languages, and shows the last stage of the chosen one."""
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
        """Shows the phase with this number, counted from 1 as on the tabs of the IR pane."""
        if self._context.layout.shows_one_pane:
            self._context.layout.show_pane("ir")
        self._ir.stages.show_phase(number)

    def go_to_failure(self) -> None:
        """Shows the IR at the failure. If it is already shown, or no stage failed, opens the diagnostic."""
        stage = self._ir.chosen_stage
        shows_failure = stage is not None and stage.state == "failed" and self._context.layout.pane_id == "ir"
        if shows_failure or self._context.state.board.failed_stage is None:
            self._context.dialogs.open_problem(self._context.state.problem)
        else:
            self._context.layout.show_pane("ir")
            self._ir.stages.show_failure()

    def show_values(self, *, as_map: bool = False) -> None:
        """Opens the table of output values of the graph's latest run, or, with `as_map`, the map of their errors."""
        from buddy.app.screens.values import ValuesScreen

        state = self._context.state
        outputs = state.report.outputs if state.report else ()
        self._context.dialogs.open(ValuesScreen(state.graph, outputs, self._context.session, as_map=as_map))

    def show_difference_map(self) -> None:
        self.show_values(as_map=True)

    def show_plots(self) -> None:
        """Plots the timings of the runs, the time of each pass, and the distribution of the output values."""
        from buddy.app.reports.plots import plots_of
        from buddy.app.screens.plot import PlotScreen

        plots = plots_of(self._context.state)
        if plots:
            self._context.dialogs.open(PlotScreen(plots, self._context.glyphs))
        else:
            self._context.say(f"nothing to plot yet: press {key_of('run')} to run the program")

    def show_numerics(self) -> None:
        """Compares the result of each node with eager. The chosen node is shown in the graph pane."""
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
        """Opens the list of themes. The workbench previews the theme under the cursor."""
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
        """Opens the log. A result that is chosen there is shown again."""
        from buddy.app.screens.results import LogScreen

        context = self._context
        screen = LogScreen(context.state, context.results.logged, context.status.messages, self._log_path)
        context.dialogs.open(screen, lambda logged: context.results.open(logged) if logged is not None else None)

    def open_help(self) -> None:
        """Opens the list of the keys of the pane that has focus."""
        from buddy.app.screens.detail import help_screen

        self._context.dialogs.open(help_screen(self._context.layout.pane_id, self._situation()))


# ---- the provenance of a node ----------------------------------------------------------------------------------------


# The number of a node's lines that are shown for each stage.
_MAX_LINES_PER_STAGE = 50

# LLVM's remarks, each as (`LLVM`, the stable name of the node, the text).
Remarks = tuple[tuple[str, str, str], ...]


class ProvenanceCommands:
    """Opens screens about the node under the cursor of the graph pane or the IR pane."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane, source: SourcePane) -> None:
        self._context, self._graph, self._ir, self._source = context, graph, ir, source
        # A cache with at most one entry: LLVM's remarks on the recipe for which they were requested last.
        self._llvm_remarks: dict[Recipe, Remarks] = {}

    def follow_node(self) -> None:
        """Shows the IR of a node at every stage."""
        self.with_node(lambda row: self._context.jobs.begin_opening("node", self._follow, row))

    def open_history(self) -> None:
        """Shows what each pass did to a node, or why the pass left it unchanged."""
        self.with_node(lambda row: self._context.jobs.begin_opening("node", self._open_history, row))

    def open_python(self) -> None:
        """Goes to the line that a node comes from in the source pane."""
        self.with_node(self._open_python)

    # ---- choice of the node --------------------------------------------------------------------------------------

    def with_node(self, act: Callable[[NodeRow], object]) -> None:
        """Calls `act` with the node under the cursor, or with the one that the user picks if the line has several."""
        info = self._context.state.info
        rows = {row.stable: row for row in info.rows} if info is not None else {}
        line = self._ir.line_at(self._ir.cursor) if self._context.layout.pane_id == "ir" else None
        current = self._graph.current
        current_names = (current.stable,) if current is not None else ()
        names = line.nodes if line is not None else current_names
        nodes = [rows[name] for name in names if name in rows]
        if not nodes:
            self._context.say("this line comes from no node of the graph" if line is not None else "no node here")
        elif len(nodes) == 1:
            act(nodes[0])
        else:
            self._ask_node(nodes, line.derived_nodes if line is not None else (), act)

    def _ask_node(self, rows: list[NodeRow], derived: tuple[str, ...], act: Callable[[NodeRow], object]) -> None:
        """Lets the user choose one of `rows`, and calls `act` with it.

        `derived` are the stable names of nodes that were derived for the line, because a pass had dropped its location.
        """
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        def act_on_choice(row: NodeRow | None) -> None:
            if row is not None:
                act(row)

        node = self._context.selection.node
        choices = [
            PickerChoice(
                row.display_name, row.target + " (derived)" * (row.stable in derived), row, marked=row.stable == node
            )
            for row in rows
        ]
        self._context.dialogs.open(PickerScreen("Nodes of this line", choices), act_on_choice)

    # ---- the screens ---------------------------------------------------------------------------------------------

    async def _follow(self, row: NodeRow) -> None:
        """Opens the screen with the lines of a node in each stage."""
        stage_rows = self._context.state.board.rows()
        texts = tuple(dict.fromkeys(stage_row.stage.text for stage_row in stage_rows))
        answer = await self._context.queries.request(FollowNode(0, texts, row.stable, _MAX_LINES_PER_STAGE))
        if answer is None:
            return
        from buddy.app.screens.stage_lists import FollowScreen, ProvenanceStep

        traces = {trace.text: trace for trace in answer.traces}
        steps = [
            ProvenanceStep(stage_row, trace)
            for stage_row in stage_rows
            if (trace := traces.get(stage_row.stage.text)) is not None
        ]
        self._context.dialogs.open(FollowScreen(row.display_name, steps, self._ir.chosen_key), self._go_to_position)

    def _go_to_position(self, position: StagePosition | None) -> None:
        if position is not None:
            self._context.layout.show_pane("ir")
            self._ir.jumps.go_to_position(position)

    async def _open_history(self, row: NodeRow) -> None:
        """Opens the screen with the history of a node. Adds LLVM's remarks, which take longer, when they arrive."""
        from buddy.app.screens.stage_lists import NodeHistoryScreen

        state = self._context.state
        stage_rows, assignment = state.board.rows(), state.assignments.get(row.stable)
        instruction_counts = await self._count_instructions(row, stage_rows)

        def history(llvm_remarks: Remarks) -> list[NodeRemark]:
            remarks, stages = (*state.remarks, *llvm_remarks), [stage_row.stage for stage_row in stage_rows]
            return [*node_history(row, assignment, remarks, stages), *instruction_counts]

        self._context.selection.select_node(row.stable)
        recipe = self._context.workspace.recipe
        # Without machine code, LLVM has made no remarks.
        needs_remarks = bool(instruction_counts) and recipe not in self._llvm_remarks
        screen = NodeHistoryScreen(
            row.display_name,
            history(self._llvm_remarks.get(recipe, ())),
            "waiting for LLVM's remarks" if needs_remarks else "",
        )
        self._context.dialogs.open(screen, lambda remark: self._go_to_stage(remark, stage_rows))
        if needs_remarks:
            llvm_remarks = await self._fetch_llvm_remarks(recipe)
            if screen.is_current:
                screen.show(history(llvm_remarks))
                screen.show_progress("")

    async def _fetch_llvm_remarks(self, recipe: Recipe) -> Remarks:
        """LLVM's remarks on the code of a recipe; empty, after a message with the reason, if the request fails."""
        answer = await self._context.queries.request(ExplainCode(0, recipe))
        if answer is None:
            return ()
        self._llvm_remarks = {recipe: answer.remarks}
        return answer.remarks

    async def _count_instructions(self, row: NodeRow, stage_rows: list[StageRow]) -> list[NodeRemark]:
        """A remark with the number of instructions that come from a node and the functions that contain them.

        Empty if there is no assembly yet, or no code is generated for the node.
        """
        assembly = next((stage_row.stage for stage_row in stage_rows if stage_row.stage.language == "asm"), None)
        if assembly is None or not is_computed(row):
            return []
        answer = await self._context.queries.request(FollowNode(0, (assembly.text,), row.stable, EVERY_LINE))
        symbols = await self._context.queries.list_symbols(assembly.text, assembly.language)
        return [instruction_count_remark(answer.traces, symbols)] if answer is not None else []

    def _go_to_stage(self, remark: NodeRemark | None, stage_rows: list[StageRow]) -> None:
        """Shows the stage of the pass that made the remark."""
        if remark is None:
            return
        stage_row = next((stage_row for stage_row in stage_rows if _has_remark(stage_row.stage, remark)), None)
        if stage_row is None:
            self._context.say(f"no stage was recorded for {remark.step}")
            return
        self._context.layout.show_pane("ir")
        self._ir.choose(stage_row)

    def open_line(self, line: str, subject: str) -> None:
        """Shows a Python line (`file:line`), which belongs to `subject`, in the source pane."""
        location = parse_location(line)
        if location is None:
            self._context.say(f"the Python line of {subject} is unknown")
        else:
            self._source.show_location(location)

    def _open_python(self, row: NodeRow) -> None:
        location = self._context.selection.python_lines.location_of(row.stable)
        if location is None:
            self._context.say(f"the Python line of {row.display_name} is unknown")
            return
        self._context.selection.select_node(row.stable)
        self._source.show_location(location)


def _has_remark(stage: Stage, remark: NodeRemark) -> bool:
    """Whether a remark is about a stage: made by its pass, or about machine code if the stage is assembly."""
    return stage.language == "asm" if remark.step == MACHINE_CODE else stage.name == remark.step
