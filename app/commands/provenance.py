"""Provenance of a node: its text at every stage, its history through all passes, and its Python line."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from buddy.app.reports.node_history import (
    EVERY_LINE,
    MACHINE_CODE,
    NodeRemark,
    in_machine_code,
    is_computed,
    node_history,
)
from buddy.app.session.stages import StagePosition, StageRow
from buddy.compiler.protocol import (
    ExplainCode,
    FollowNode,
    NodeRow,
    Stage,
)
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    from buddy.app.panes.context import WorkbenchContext
    from buddy.app.panes.graph import GraphPane
    from buddy.app.panes.ir import IrPane

_LINES = 50

Remarks = tuple[tuple[str, str, str], ...]


class ProvenanceCommands:
    """Opens screens about the node under the cursor of the graph pane or the IR pane."""

    def __init__(self, context: WorkbenchContext, graph: GraphPane, ir: IrPane) -> None:
        self._context, self._graph, self._ir = context, graph, ir
        # LLVM's remarks on the latest recipe for which they were requested.
        self._code_remarks: dict[Recipe, Remarks] = {}

    def follow_node(self) -> None:
        """Show the text of a node at every stage."""
        self.with_node(lambda row: self._context.jobs.open_after("node", self._follow, row))

    def open_history(self) -> None:
        """Show what each pass did to a node, or why it did nothing."""
        self.with_node(lambda row: self._context.jobs.open_after("node", self._open_history, row))

    def open_python(self) -> None:
        """Show the Python file that a node comes from, at its line."""
        self.with_node(lambda row: self._context.jobs.open_after("node", self._open_python, row))

    # ---- which node ----------------------------------------------------------------------------------------------

    def with_node(self, act: Callable[[NodeRow], object]) -> None:
        """Call `act` with the node under the cursor. Asks which one if a line comes from several nodes."""
        info = self._context.state.info
        rows = {row.stable: row for row in info.rows} if info is not None else {}
        line = self._ir.line_at(self._ir.cursor) if self._context.layout.pane_id == "ir" else None
        current = self._graph.current
        names = line.nodes if line is not None else (current.stable,) if current is not None else ()
        known = [rows[name] for name in names if name in rows]
        if not known:
            self._context.say("no node of the graph maps to this line")
        elif len(known) == 1:
            act(known[0])
        else:
            self._ask_node(known, line.derived if line is not None else (), act)

    def _ask_node(self, rows: list[NodeRow], derived: tuple[str, ...], act: Callable[[NodeRow], object]) -> None:
        from buddy.app.screens.picker import PickerChoice, PickerScreen

        def chosen(row: NodeRow | None) -> None:
            if row is not None:
                act(row)

        node = self._context.selection.node
        choices = [
            PickerChoice(row.name, row.stable + " (derived)" * (row.stable in derived), row, marked=row.stable == node)
            for row in rows
        ]
        self._context.dialogs.open(PickerScreen("Nodes of this line", choices), chosen)

    # ---- the screens ---------------------------------------------------------------------------------------------

    async def _follow(self, row: NodeRow) -> None:
        stages = self._context.state.board.rows()
        texts = tuple(dict.fromkeys(found.stage.text for found in stages))
        answer = await self._context.queries.request(FollowNode(0, texts, row.stable, _LINES))
        if answer is None:
            return
        from buddy.app.screens.follow import FollowScreen, ProvenanceStep

        traces = {trace.text: trace for trace in answer.traces}
        steps = [ProvenanceStep(found, trace) for found in stages if (trace := traces.get(found.stage.text))]
        self._context.dialogs.open(FollowScreen(row.name, steps, self._ir.key), self._go_to_position)

    def _go_to_position(self, place: StagePosition | None) -> None:
        if place is not None:
            self._context.layout.show_pane("ir")
            self._ir.jumps.go_from_here(place)

    async def _open_history(self, row: NodeRow) -> None:
        from buddy.app.screens.follow import NodeHistoryScreen

        state = self._context.state
        stages, assignment = state.board.rows(), state.assignments.get(row.stable)
        machine_code = await self._machine_code_remarks(row, stages)

        def history(remarks: Remarks = ()) -> list[NodeRemark]:
            all_remarks = (*state.remarks, *remarks)
            return [*node_history(row, assignment, all_remarks, [found.stage for found in stages]), *machine_code]

        self._context.selection.select_node(row.stable)
        recipe = self._context.workspace.recipe
        known = self._code_remarks.get(recipe, () if not machine_code else None)
        screen = NodeHistoryScreen(
            row.name, history(known or ()), "" if known is not None else "waiting for LLVM's remarks"
        )
        self._context.dialogs.open(screen, lambda remark: self._go_to_stage(remark, stages))
        if known is None:
            remarks = await self._llvm_remarks(recipe)
            if screen.is_current:
                screen.show(history(remarks))
                screen.tell("")

    async def _llvm_remarks(self, recipe: Recipe) -> Remarks:
        """LLVM's remarks on the code of a recipe; empty, after a message, if they are not available."""
        answer = await self._context.queries.request(ExplainCode(0, recipe))
        if answer is None:
            return ()
        self._code_remarks = {recipe: answer.remarks}
        return answer.remarks

    async def _machine_code_remarks(self, row: NodeRow, stages: list[StageRow]) -> list[NodeRemark]:
        """The number of instructions that come from a node, and their functions; empty before code generation."""
        stage = next((found.stage for found in stages if found.stage.language == "asm"), None)
        if stage is None or not is_computed(row):
            return []
        text = stage.text
        answer = await self._context.queries.request(FollowNode(0, (text,), row.stable, EVERY_LINE))
        symbols = await self._context.queries.symbols(stage.text, stage.language)
        return [in_machine_code(answer.traces, symbols)] if answer is not None else []

    def _go_to_stage(self, remark: NodeRemark | None, stages: list[StageRow]) -> None:
        """Show the stage of the pass that made the remark, at the cursor's last position there, else at the node."""
        found = next((row for row in stages if remark is not None and _is_about(row.stage, remark)), None)
        if found is not None:
            self._context.layout.show_pane("ir")
            self._ir.choose(found)
        elif remark is not None:
            self._context.say(f"{remark.who} has no stage")

    async def _open_python(self, row: NodeRow) -> None:
        path, _, line = row.location.rpartition(":")
        if not path:
            self._context.say(f"the Python line of {row.name} is unknown")
            return
        answer = await self._context.queries.answered(self._context.session.open_python(path))
        if answer is not None:
            from buddy.app.screens.detail import CodeScreen

            screen = CodeScreen(
                self._context.session.display_path(path),
                self._context.session.cache,
                answer.text,
                answer.lines,
                int(line) - 1,
            )
            self._context.dialogs.open(screen, self._go_to_nodes)

    def _go_to_nodes(self, nodes: tuple[str, ...] | None) -> None:
        if nodes:
            self._context.selection.go_node(nodes)


def _is_about(stage: Stage, remark: NodeRemark) -> bool:
    """Whether the remark is about that stage."""
    return stage.language == "asm" if remark.who == MACHINE_CODE else stage.name == remark.who
