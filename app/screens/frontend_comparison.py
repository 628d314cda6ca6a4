"""Compares two frontends: one node in the IR of this compiler, next to the node in the IR of torch-mlir."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual import events, work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container, Vertical

from buddy.app.panes.ir_comparison import ComparedStages
from buddy.app.reports import formatting
from buddy.app.reports.compilations import FrontendPipeline, frontend_pipelines, phase_stages
from buddy.app.screens.modal import ListScreen
from buddy.app.session.requests import Requester
from buddy.app.session.stages import StageKey, StagePosition
from buddy.app.widgets.code_view import NodeLine, NodeLines
from buddy.app.widgets.prompt import Prompt
from buddy.app.workspace.presets import dialects_of
from buddy.compiler.protocol import FollowNode, Frame, NodeRow, Progress, Stage, StageDone
from buddy.compiler.protocol.recipe import TORCH_MLIR, Dialect, Recipe

if TYPE_CHECKING:
    from buddy.app.session.session import Session


# The minimum width of the screen, in cells, for two sides next to each other. Otherwise one is above the other.
MIN_SIDE_BY_SIDE_WIDTH = 120
# For each stage, at most this many lines of the node are shown.
_MAX_LINES = 400
# The index of the phase of torch-mlir whose IR is in the target dialect. Phase 0 has the imported IR, phase 1 the IR
# that is ready for the conversion to the dialect.
_TARGET_DIALECT_PHASE = 2
# The summaries of the keys, the most important first.
KEYS = ("tab sides", "[ ] phases", "f dialect", "enter goes to the line", "q closes", "B all stages", "< > sideways")


class ComparedStage(NamedTuple):
    """The last stage of a phase, with its lines that come from the node.

    `hidden_count` is the number of the node's lines beyond `_MAX_LINES`. `main_line` is the number of the line that
    represents the node, -1 without one.
    """

    key: StageKey
    stage: Stage
    lines: list[NodeLine]
    hidden_count: int
    main_line: int


class FrontendComparisonScreen(ListScreen["StagePosition | ComparedStages | None"]):
    """Shows a node in the IR of two pipelines: side 0 is this compiler, side 1 torch-mlir.

    `recipe` is the current recipe, which one of the sides may have, and `row` is the node. Returns a line of the
    current recipe's stages to go to, the stages of the other pipeline to compare with, or `None`. Closing the screen
    cancels a running compilation.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("tab,shift+tab", "other_side", show=False, priority=True),
        Binding("right_square_bracket", "next_phase(1)", show=False),
        Binding("left_square_bracket", "next_phase(-1)", show=False),
        Binding("f", "next_dialect", show=False),
        Binding("B", "compare", show=False),
        Binding("enter", "choose", show=False),
        Binding("greater_than_sign,right", "sideways(16)", show=False),
        Binding("less_than_sign,left", "sideways(-16)", show=False),
        Binding("y", "copy", show=False),
    ]

    def __init__(self, session: Session, recipe: Recipe, row: NodeRow) -> None:
        self._session, self._recipe, self._row = session, recipe, row
        # The dialect to which torch-mlir compiles.
        self._dialect: Dialect = recipe.dialect
        # In these lists, index 0 is this compiler, and index 1 torch-mlir.
        self._pipelines = frontend_pipelines(recipe, session.state.presets, self._dialect)
        self._views = [NodeLines(pipeline.title) for pipeline in self._pipelines]
        self._phase_stages: list[list[ComparedStage]] = [[], []]
        self._stages: list[tuple[Stage, ...]] = [(), ()]
        self._problems = ["", ""]
        self._phase_index = 0
        super().__init__(f"{row.display_name} {row.target}", "", self._views[0])

    def compose(self) -> ComposeResult:
        with Vertical(id="box", classes="editor") as box:
            box.border_title = self._title
            with Container(id="sides"):
                yield from self._views
            yield Prompt()

    def fit(self) -> None:
        """Places the sides next to each other on a wide screen, and shows the keys that fit in the box."""
        self.query_one("#sides").set_class(self.app.size.width >= MIN_SIDE_BY_SIDE_WIDTH, "-side-by-side")
        self.query_one("#box").border_subtitle = self.keys_text()

    def keys_text(self) -> str:
        return formatting.join_fitting(list(KEYS), ", ", self.app.size.width - 8)

    def on_mount(self) -> None:
        self._compile()

    def on_resize(self, event: events.Resize) -> None:
        self.fit()

    def show_progress(self, text: str) -> None:
        self.set_box_title(f"{self._title}: {text}" if text else self._title)

    # ---- compilation ---------------------------------------------------------------------------------------------

    @work(exclusive=True, group="compare-node")
    async def _compile(self) -> None:
        """Compiles both sides, first the one with the current recipe, if any, because its stages are cached."""
        for view in self._views:
            view.show("", [], "compiling")
        for side in sorted((0, 1), key=lambda side: self._pipelines[side].recipe != self._recipe):
            await self._compile_side(side)
        self.show_progress("")

    async def _compile_side(self, side: int) -> None:
        """Compiles the pipeline of a side, and shows its stages, also those of a compilation that fails."""
        pipeline = self._pipelines[side]
        finished_stages: list[Stage] = []

        def handle_frame(frame: Frame) -> None:
            if isinstance(frame, StageDone):
                finished_stages.append(frame.stage)
                self.show_progress(f"{pipeline.title}, {frame.stage.name}")
            elif isinstance(frame, Progress):
                self.show_progress(f"{pipeline.title}, {frame.activity}")

        problems: list[str] = []
        request = self._session.compile_for_comparison(pipeline.recipe, handle_frame)
        compiled = await Requester(self._session, problems.append).await_answer(request)
        self._stages[side] = compiled.stages if compiled is not None else tuple(finished_stages)
        self._problems[side] = "".join(problems)
        self._phase_stages[side] = await self._find_lines(pipeline, self._stages[side])
        self._draw(side)

    async def _find_lines(self, pipeline: FrontendPipeline, stages: tuple[Stage, ...]) -> list[ComparedStage]:
        """Returns the last stage of each phase, with the lines of the node. If a request fails, shows the reason."""
        requester = Requester(self._session, self.show_progress)
        return await requester.await_answer(self._request_lines(pipeline, stages)) or []

    async def _request_lines(self, pipeline: FrontendPipeline, stages: tuple[Stage, ...]) -> list[ComparedStage]:
        """Requests the lines of the node in the last stage of each phase. Raises `UnavailableError`."""
        keyed_stages = phase_stages(pipeline, stages)
        texts = tuple(dict.fromkeys(stage.text for _, stage in keyed_stages))
        node = self._row.stable
        answer = await self._session.request(FollowNode(0, texts, node, _MAX_LINES))
        traces = {trace.text: trace for trace in answer.traces}
        compared = []
        for key, stage in keyed_stages:
            if (trace := traces.get(stage.text)) is not None:
                numbers_and_derived = sorted(zip(trace.lines, trace.marks, strict=True))
                lines = [
                    NodeLine(number, await self._fetch_line(stage.text, number), derived)
                    for number, derived in numbers_and_derived
                ]
                main_line = await self._session.find_main_line(stage.text, node)
                hidden_count = trace.direct + trace.derived - len(lines)
                compared.append(ComparedStage(key, stage, lines, hidden_count, main_line))
        return compared

    async def _fetch_line(self, text: str, number: int) -> str:
        """Returns line `number` (from 0) of the text with the hash `text`. Raises `UnavailableError`."""
        cache = self._session.cache
        await cache.load(text, number, 1)
        line = cache.get(text, number)
        return line.text if line is not None else ""

    def _draw(self, side: int) -> None:
        """Draws the shown stage of a side, or a message if the side has no stage."""
        shown, view, problem = self._shown_stage(side), self._views[side], self._problems[side]
        if shown is None:
            view.show("", [], "no IR from this pipeline", problem)
            return
        stages = self._phase_stages[side]
        position = f" ({stages.index(shown) + 1} of {len(stages)})" if len(stages) > 1 else ""
        hidden = f", {shown.hidden_count} more lines" if shown.hidden_count else ""
        note = "no line comes from the node"
        view.show(f"{shown.stage.phase}{position}{hidden}", shown.lines, note, problem, shown.main_line)

    def _shown_stage(self, side: int) -> ComparedStage | None:
        """Returns the stage on a side, `None` without one: of torch-mlir, the chosen phase's; else the first one."""
        stages = self._phase_stages[side]
        index = self._phase_index if side == 1 else 0
        return stages[min(index, len(stages) - 1)] if stages else None

    # ---- keys ----------------------------------------------------------------------------------------------------

    @property
    def _side(self) -> int:
        return self._views.index(self._view)  # type: ignore[arg-type]

    def action_other_side(self) -> None:
        self._view = self._views[1 - self._side]
        self._view.focus()
        for view in self._views:
            view.refresh()

    def action_next_phase(self, by: int) -> None:
        """Moves by `by` phases of torch-mlir."""
        self._phase_index = max(0, min(self._phase_index + by, len(self._phase_stages[1]) - 1))
        self._draw(1)

    def action_next_dialect(self) -> None:
        """Compiles with torch-mlir to the next target dialect, and shows the IR in that dialect."""
        dialects = dialects_of(TORCH_MLIR)
        self._dialect = dialects[(dialects.index(self._dialect) + 1) % len(dialects)]
        self._pipelines = frontend_pipelines(self._recipe, self._session.state.presets, self._dialect)
        self._views[1].title = self._pipelines[1].title
        self._phase_index = _TARGET_DIALECT_PHASE
        self._compile()

    def action_sideways(self, by: int) -> None:
        for view in self._views:
            view.scroll_sideways(by)

    def action_copy(self) -> None:
        self.app.copy_to_clipboard("\n".join(line.text for line in self._views[self._side].lines))

    def action_compare(self) -> None:
        """Closes the screen with all stages of the pipeline that does not have the current recipe."""
        other = 1 if self._pipelines[0].recipe == self._recipe else 0
        if self._stages[other]:
            self.dismiss(ComparedStages(self._pipelines[other].title, self._stages[other]))

    def action_choose(self) -> None:
        """Closes the screen with the line under the cursor, or, on the side of another recipe, with all its stages."""
        shown, line = self._shown_stage(self._side), self._views[self._side].current
        if self._pipelines[self._side].recipe != self._recipe:
            self.action_compare()
        elif shown is not None and line is not None:
            self.dismiss(StagePosition(shown.key, line.number))

    def on_cursor_view_double_clicked(self) -> None:
        self.action_choose()
