"""One node in every stage, and in this compiler's and torch-mlir's IR side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical

from buddy.app.panes.ir_comparison import ComparedStages
from buddy.app.panes.pane import Column
from buddy.app.reports import formatting
from buddy.app.reports.node_history import FrontendPipeline, NodeRemark, frontend_pipelines, phase_stages, remark_text
from buddy.app.screens.modal import ListScreen
from buddy.app.screens.tables import TableScreen
from buddy.app.session.requests import Requester
from buddy.app.session.stages import Key, StagePosition, StageRow
from buddy.app.widgets.code_view import NodeLine, NodeLines
from buddy.app.widgets.look import Cell
from buddy.app.workspace.frontends import dialects_of
from buddy.compiler.protocol import FollowNode, Frame, NodeRow, NodeTrace, Progress, Stage, StageDone
from buddy.compiler.protocol.recipe import TORCH_MLIR, Dialect, Recipe

if TYPE_CHECKING:
    from buddy.app.session.session import Session


class ProvenanceStep(NamedTuple):
    """A stage, and the lines of its text that come from the node."""

    row: StageRow
    trace: NodeTrace


class FollowScreen(TableScreen[ProvenanceStep]):
    """Returns the chosen line, or `None`. The cursor starts at the stage `here`."""

    KEYS_TEXT = "enter goes to the line, q closes"

    def __init__(self, node: str, steps: Sequence[ProvenanceStep], here: Key | None) -> None:
        super().__init__(_STAGE_COLUMNS, steps)
        self._title = f"{node} in all stages"
        self._table.cursor = next((place for place, step in enumerate(steps) if step.row.key == here), 0)

    def about(self, row: ProvenanceStep) -> str:
        """The first lines of the node in the stage."""
        return "  |  ".join(row.trace.excerpts[:4]) or "no line is left: other ops do its work"

    def action_choose(self) -> None:
        if self.current is not None and self.current.trace.lines:
            self.dismiss(StagePosition(self.current.row.key, self.current.trace.lines[0]))


def _text(step: ProvenanceStep) -> Cell:
    if not step.trace.excerpts:
        return ("-", "dim")
    mark = "(derived) " if step.trace.marks[0] else ""
    return (mark + step.trace.excerpts[0], "dim" if mark else "text")


def _lines(step: ProvenanceStep) -> Cell:
    derived = f" +{formatting.count(step.trace.derived)}" if step.trace.derived else ""
    return (f"{formatting.count(step.trace.own)}{derived}", "number")


_STAGE_COLUMNS: tuple[Column[ProvenanceStep], ...] = (
    Column("stage", 26, lambda step: (step.row.stage.name, "accent" if step.row.stage.changed else "dim")),
    Column("phase", 9, lambda step: (step.row.stage.phase, "dim"), since=100),
    Column("lines", 9, _lines, right=True),
    Column("line", 7, lambda step: (str(step.trace.lines[0] + 1) if step.trace.lines else "", "number"), right=True),
    Column("text", 0, _text),
)


class NodeHistoryScreen(TableScreen[NodeRemark]):
    """Returns the entry whose stage the user wants to see, or `None`."""

    KEYS_TEXT = "enter goes to the stage of the pass, q closes"

    def __init__(self, node: str, history: Sequence[NodeRemark], status: str = "") -> None:
        super().__init__(_HISTORY_COLUMNS, history)
        self._heading = f"Pass history of {node}"
        self._title = f"{self._heading}: {status}" if status else self._heading

    def show_progress(self, text: str) -> None:
        self.set_box_title(f"{self._heading}: {text}" if text else self._heading)

    def about(self, row: NodeRemark) -> str:
        return f"{row.source}: {remark_text(row)}"


_HISTORY_COLUMNS: tuple[Column[NodeRemark], ...] = (
    Column("who", 28, lambda remark: (remark.source, "accent")),
    Column("what", 0, lambda remark: (remark_text(remark), "text")),
)


# On narrower screens, one side is above the other.
BESIDE_FROM = 120
# Maximum number of lines shown of one node.
_LINES = 400
# The phases of torch-mlir: imported, ready for conversion, converted.
_AT_DIALECT = 2
KEYS = ("tab sides", "[ ] phases", "f dialect", "enter goes to the line", "q closes", "B all stages", "< > sideways")


class ComparedStage(NamedTuple):
    """A stage of a side, the node's lines in it (and the number of lines not shown), and its main line."""

    key: Key
    stage: Stage
    lines: list[NodeLine]
    more: int
    place: int


class FrontendComparisonScreen(ListScreen["StagePosition | ComparedStages | None"]):
    """Returns a line of the recipe's stages to go to, or all stages of the other pipeline to compare with.

    Closing the screen cancels a running compilation.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f1,question_mark", "dismiss(None)", "Close", show=False, priority=True),
        Binding("tab,shift+tab", "turn", show=False, priority=True),
        Binding("right_square_bracket", "level(1)", show=False),
        Binding("left_square_bracket", "level(-1)", show=False),
        Binding("f", "dialect", show=False),
        Binding("B", "compare", show=False),
        Binding("enter", "choose", show=False),
        Binding("greater_than_sign,right", "sideways(16)", show=False),
        Binding("less_than_sign,left", "sideways(-16)", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, session: Session, recipe: Recipe, row: NodeRow) -> None:
        self._session, self._recipe, self._row = session, recipe, row
        self._dialect: Dialect = recipe.dialect
        self._pipelines = frontend_pipelines(recipe, session.state.presets, self._dialect)
        self._views = [NodeLines(pipeline.title) for pipeline in self._pipelines]
        self._levels: list[list[ComparedStage]] = [[], []]
        self._stages: list[tuple[Stage, ...]] = [(), ()]
        self._problems = ["", ""]
        self._level = 0
        super().__init__(f"{row.name} {row.target}", "", self._views[0])

    def compose(self) -> ComposeResult:
        with Vertical(id="box", classes="editor") as box:
            box.border_title = self._title
            with Container(id="sides"):
                yield from self._views

    def fit(self) -> None:
        """Make the box as high as the screen, and place the sides next to each other if they fit."""
        width = self.app.size.width
        self.query_one("#sides").set_class(width >= BESIDE_FROM, "-beside")
        self.query_one("#box").border_subtitle = formatting.join_fitting(list(KEYS), ", ", width - 8)

    def on_mount(self) -> None:
        self._compile()

    def on_resize(self, event: events.Resize) -> None:
        self.fit()

    def show_progress(self, text: str) -> None:
        self.set_box_title(f"{self._title}: {text}" if text else self._title)

    # ---- compiling both ------------------------------------------------------------------------------------------

    @work(exclusive=True, group="beside")
    async def _compile(self) -> None:
        """Compile both sides. The recipe's side is first, because it is cached."""
        for view in self._views:
            view.show("", [], "compiling")
        for side in sorted((0, 1), key=lambda side: self._pipelines[side].recipe != self._recipe):
            await self._compile_side(side)
        self.show_progress("")

    async def _compile_side(self, side: int) -> None:
        pipeline, received = self._pipelines[side], list[Stage]()

        def take(frame: Frame) -> None:
            if isinstance(frame, StageDone):
                received.append(frame.stage)
                self.show_progress(f"{pipeline.title}, {frame.stage.name}")
            elif isinstance(frame, Progress):
                self.show_progress(f"{pipeline.title}, {frame.what}")

        problems: list[str] = []
        request = self._session.compile_beside(pipeline.recipe, take)
        compiled = await Requester(self._session, problems.append).answered(request)
        # After a failure, show the stages before it.
        self._stages[side] = compiled.stages if compiled is not None else tuple(received)
        self._problems[side] = "".join(problems)
        self._levels[side] = await self._find_lines(pipeline, self._stages[side])
        self._draw(side)

    async def _find_lines(self, pipeline: FrontendPipeline, stages: tuple[Stage, ...]) -> list[ComparedStage]:
        return await Requester(self._session, self.show_progress).answered(self._request_lines(pipeline, stages)) or []

    async def _request_lines(self, pipeline: FrontendPipeline, stages: tuple[Stage, ...]) -> list[ComparedStage]:
        found = phase_stages(pipeline, stages)
        texts = tuple(dict.fromkeys(stage.text for _, stage in found))
        node = self._row.stable
        answer = await self._session.request(FollowNode(0, texts, node, _LINES))
        traces = {trace.text: trace for trace in answer.traces}
        made = []
        for key, stage in found:
            if (trace := traces.get(stage.text)) is not None:
                pairs = sorted(zip(trace.lines, trace.marks, strict=True))
                lines = [NodeLine(line, await self._text(stage.text, line), mark) for line, mark in pairs]
                place = await self._session.find_place(stage.text, node)
                made.append(ComparedStage(key, stage, lines, trace.own + trace.derived - len(lines), place))
        return made

    async def _text(self, text: str, number: int) -> str:
        cache = self._session.cache
        await cache.load(text, number, 1)
        line = cache.get(text, number)
        return line.text if line is not None else ""

    def _draw(self, side: int) -> None:
        shown, view, problem = self._shown_stage(side), self._views[side], self._problems[side]
        if shown is None:
            view.show("", [], "no IR from this pipeline", problem)
            return
        found = self._levels[side]
        place = f" ({found.index(shown) + 1} of {len(found)})" if len(found) > 1 else ""
        more = f", {shown.more} more lines" if shown.more else ""
        none = "no line maps to the node"
        view.show(f"{shown.stage.phase}{place}{more}", shown.lines, none, problem, shown.place)

    def _shown_stage(self, side: int) -> ComparedStage | None:
        found = self._levels[side]
        return found[min(self._level if side else 0, len(found) - 1)] if found else None

    # ---- keys ----------------------------------------------------------------------------------------------------

    @property
    def _side(self) -> int:
        return self._views.index(self._view)  # type: ignore[arg-type]

    def action_turn(self) -> None:
        """Focus the other side."""
        self._view = self._views[1 - self._side]
        self._view.focus()
        for view in self._views:
            view.refresh()

    def action_level(self, by: int) -> None:
        """Show another phase of torch-mlir."""
        self._level = max(0, min(self._level + by, len(self._levels[1]) - 1))
        self._draw(1)

    def action_dialect(self) -> None:
        """Compile with torch-mlir to the next target dialect, and show that dialect."""
        given = dialects_of(TORCH_MLIR)
        self._dialect = given[(given.index(self._dialect) + 1) % len(given)]
        self._pipelines = frontend_pipelines(self._recipe, self._session.state.presets, self._dialect)
        self._views[1].title = self._pipelines[1].title
        self._level = _AT_DIALECT
        self._compile()

    def action_sideways(self, by: int) -> None:
        for view in self._views:
            view.sideways(by)

    def action_copy(self) -> None:
        """Copy the lines of the focused side."""
        self.app.copy_to_clipboard("\n".join(line.text for line in self._views[self._side].lines))

    def action_compare(self) -> None:
        """Return all stages of the other pipeline."""
        other = int(self._pipelines[0].recipe == self._recipe)
        if self._stages[other]:
            self.dismiss(ComparedStages(self._pipelines[other].title, self._stages[other]))

    def action_choose(self) -> None:
        """Return the line, if the focused side is the recipe's; else compare with the stages of the other pipeline."""
        shown, line = self._shown_stage(self._side), self._views[self._side].current
        if self._pipelines[self._side].recipe != self._recipe:
            self.action_compare()
        elif shown is not None and line is not None:
            self.dismiss(StagePosition(shown.key, line.number))

    def on_cursor_view_opened(self) -> None:
        self.action_choose()
