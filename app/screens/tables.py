"""The tables of runs, of nodes in eager, of recompilations, and of passes that would change a stage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from textual import work
from textual.binding import Binding, BindingType

from buddy.app.reports import formatting
from buddy.app.reports.compilations import PassPreview, deltas_text, rank_previews
from buddy.app.reports.fallbacks import Fallback, GraphFacts, fallback_rows, fallbacks_summary, reason_and_fix
from buddy.app.reports.recompilations import DynamoRow, dynamo_rows, dynamo_summary
from buddy.app.screens.modal import TableScreen
from buddy.app.session.requests import Requester
from buddy.app.widgets.look import Cell
from buddy.app.widgets.table import Column
from buddy.app.workspace.session_file import RunRecord, recipe_summary
from buddy.compiler.protocol import (
    Assigned,
    Compile,
    DynamoProgress,
    DynamoReport,
    ExplainDynamo,
    Preset,
    Progress,
    Tried,
    TryPasses,
)
from buddy.compiler.protocol.recipe import PassStep, Recipe

if TYPE_CHECKING:
    from buddy.app.session.session import Session


class RunsScreen(TableScreen[RunRecord]):
    """The runs of the session, latest first. Returns `("run", record)`, `("compare", record)` or `None`."""

    TITLE_TEXT = "Runs"
    KEYS_TEXT = "enter restores the recipe and runs it, B compares stages, q closes"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("B", "compare", "Compare", show=False)]

    def __init__(self, runs: Sequence[RunRecord], presets: Sequence[Preset]) -> None:
        self._presets = {preset.name: preset.recipe for preset in presets}
        columns = (
            Column[RunRecord]("at", 8, lambda row: (row.end_time, "dim"), key=lambda row: row.ended_at),
            Column[RunRecord]("recipe", 0, lambda row: (recipe_summary(row.recipe, self._preset(row)), "accent")),
            Column[RunRecord]("inputs", 14, lambda row: (_inputs_text(row), "dim"), min_width=90),
            Column[RunRecord](
                "buddy",
                8,
                lambda row: (formatting.seconds(row.report.compiled.median), "text"),
                right_aligned=True,
                key=lambda row: row.report.compiled.median,
            ),
            Column[RunRecord](
                "eager",
                8,
                lambda row: (formatting.seconds(row.report.eager.median), "dim"),
                right_aligned=True,
                key=lambda row: row.report.eager.median,
            ),
            Column[RunRecord](
                "max|d|",
                8,
                lambda row: (formatting.difference_text(_max_error(row)), "text"),
                right_aligned=True,
                key=_max_error,
            ),
            Column[RunRecord]("result", 8, _verdict_cell),
        )
        super().__init__(columns, list(reversed(runs)))

    def _preset(self, row: RunRecord) -> Recipe | None:
        return self._presets.get(row.recipe.preset)

    def foot_text(self, row: RunRecord) -> str:
        report = row.report
        counts = [f"{report.nodes_compiled} nodes compiled", f"{report.nodes_eager} in eager"]
        nodes = ", ".join([*counts, *formatting.eager_path_texts(report)])
        spread = f"{formatting.seconds(report.compiled.low)} to {formatting.seconds(report.compiled.high)}"
        facts = [
            f"graph {row.recipe.graph}",
            str(row.inputs),
            nodes,
            f"{report.compiled.runs} runs, quartiles {spread}",
        ]
        facts += [formatting.load_text(report.load)] if report.load is not None else []
        return "; ".join([*facts, f"compiled in {formatting.seconds(report.compile_seconds)}"])

    def action_choose(self) -> None:
        if self.current is not None:
            self.dismiss(("run", self.current))

    def action_compare(self) -> None:
        if self.current is not None:
            self.dismiss(("compare", self.current))


def _inputs_text(row: RunRecord) -> str:
    kinds = {"script": "script's", "random": f"seed {row.inputs.seed}"}
    return kinds.get(row.inputs.kind, row.inputs.title)


def _max_error(row: RunRecord) -> float:
    return max((output.max_abs for output in row.report.outputs), default=0.0)


def _verdict_cell(row: RunRecord) -> Cell:
    if row.report.not_compared and not row.report.wrong:
        return ("ran", "warn")
    return ("OK", "ok") if row.report.ok else (row.report.word, "bad")


class FallbacksScreen(TableScreen[Fallback]):
    """Nodes in eager, graph breaks and guards of all graphs. Compiles the graphs that are not compiled yet.

    `recipes` has the recipe of graph number n at index n. Returns the chosen row, or `None`. Closing the screen
    cancels the compilations.
    """

    TITLE_TEXT = "Not compiled"
    KEYS_TEXT = "enter goes to the node or the line, / searches, s sorts, q closes"
    # The reason why an op has no lowering is long: it names the steps to add one.
    FOOT_LINES = 5

    def __init__(self, session: Session, graphs: Sequence[GraphFacts], recipes: Sequence[Recipe]) -> None:
        super().__init__(_FALLBACK_COLUMNS, fallback_rows(graphs))
        self._session, self._graphs, self._recipes = session, list(graphs), recipes
        self._title = self._title_text()

    def on_mount(self) -> None:
        self._compile_graphs()

    def foot_text(self, row: Fallback) -> str:
        return f"{formatting.short_location(row.line)}: {reason_and_fix(row)}" if row.line else reason_and_fix(row)

    @work(exclusive=True, group="fallbacks")
    async def _compile_graphs(self) -> None:
        """Compiles the graphs whose assignments of lowerings to nodes are unknown, one by one, and adds their rows."""
        for facts in [facts for facts in self._graphs if facts.assignments is None]:
            answers: list[Assigned] = []

            # As a default argument, `answers` is the list of this iteration, not of the last one.
            def collect(frame: object, answers: list[Assigned] = answers) -> None:
                if isinstance(frame, Assigned):
                    answers.append(frame)

            self.set_box_title(f"{self._title_text()}: compiling graph {facts.number}")
            frame = Compile(0, self._recipes[facts.number], for_comparison=True)
            await Requester(self._session, self.show_problem).request(frame, collect)
            if answers:
                self._graphs[facts.number] = replace(facts, assignments=answers[-1].assignments)
                self.show(fallback_rows(self._graphs))
        self.set_box_title(self._title_text())

    def show_problem(self, problem: str) -> None:
        """Shows the reason why a graph was not compiled."""
        self.set_box_title(f"{self.TITLE_TEXT}: {problem}")

    def _title_text(self) -> str:
        return f"{self.TITLE_TEXT}: {fallbacks_summary(self._graphs)}"


_KIND_ROLES = {"eager": "warn", "break": "bad", "not compiled": "warn"}
_FALLBACK_COLUMNS: tuple[Column[Fallback], ...] = (
    Column("kind", 12, lambda row: (row.kind, _KIND_ROLES.get(row.kind, "dim"))),
    Column("graph", 5, lambda row: (str(row.graph), "dim"), right_aligned=True),
    Column("node, break or condition", 0, lambda row: (row.title, "accent" if row.node else "text")),
    Column("cost", 13, lambda row: (row.cost, "number"), right_aligned=True),
    Column("line", 24, lambda row: (formatting.short_location(row.line), "dim"), min_width=90),
)

# The selections that `f` shows one after the other: the name in the title, and the kinds of rows; no kinds mean all.
_SELECTIONS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("all", ()),
    ("graph breaks", ("break",)),
    ("recompilations", ("recompiled", "limit", "error")),
    ("guards", ("guard",)),
)


class RecompilationsScreen(TableScreen[DynamoRow]):
    """Runs the script as Python does, and lists graph breaks, recompilations and guards as TorchDynamo reports them.

    Returns the chosen row, or `None`. Closing the screen stops the script.
    """

    TITLE_TEXT = "Recompilations"
    KEYS_TEXT = "enter goes to the line, f selects a kind, / searches, s sorts, q closes"
    FOOT_LINES = 5
    BINDINGS: ClassVar[list[BindingType]] = [Binding("f", "select", "Select", show=False)]

    def __init__(self, session: Session, request: ExplainDynamo) -> None:
        super().__init__(_RECOMPILATION_COLUMNS)
        self._session, self._request = session, request
        self._report = DynamoReport()
        # The index of the shown kinds in `_SELECTIONS`.
        self._selection_index = 0
        # The state of the run, which the title shows.
        self._status = ""

    def on_mount(self) -> None:
        self._run_script()

    def foot_text(self, row: DynamoRow) -> str:
        location = formatting.short_location(row.line)
        title = f"{location}: {row.title}" if location else row.title
        return " · ".join(filter(None, (title, row.change, row.details)))

    @work(exclusive=True, group="recompilations")
    async def _run_script(self) -> None:
        """Runs the script, shows the rows as they arrive, then the summary."""
        self._status = f"running {self._request.source}"
        self._update_title()
        requester = Requester(self._session, self._show_status)
        answer = await requester.request(self._request, self._show_frame)
        if answer is not None:
            problem = answer.report.problem
            self._status = str(problem) if problem is not None else dynamo_summary(answer.report)
            self.show_report(answer.report)

    def _show_frame(self, frame: object) -> None:
        if isinstance(frame, DynamoProgress):
            self.show_report(frame.report)
        elif isinstance(frame, Progress):
            self._show_status(frame.activity)

    def _show_status(self, status: str) -> None:
        self._status = status
        self._update_title()

    def show_report(self, report: DynamoReport) -> None:
        """Shows the rows of a report that are of the selected kinds."""
        self._report = report
        _, kinds = _SELECTIONS[self._selection_index]
        self.show([row for row in dynamo_rows(report) if not kinds or row.kind in kinds])
        self._update_title()

    def action_select(self) -> None:
        """Shows the rows of the next selection of kinds."""
        self._selection_index = (self._selection_index + 1) % len(_SELECTIONS)
        self.show_report(self._report)

    def _update_title(self) -> None:
        name, kinds = _SELECTIONS[self._selection_index]
        self.show_progress(f"only {name}: {self._status}" if kinds else self._status)


_EVENT_ROLES = {"break": "bad", "recompiled": "warn", "limit": "bad", "error": "bad"}
_RECOMPILATION_COLUMNS: tuple[Column[DynamoRow], ...] = (
    Column("kind", 10, lambda row: (row.kind, _EVENT_ROLES.get(row.kind, "dim"))),
    Column("function", 18, lambda row: (row.function, "accent"), min_width=90),
    Column("reason or guard", 0, lambda row: (row.title, "text")),
    Column("before -> after", 26, lambda row: (row.change, "number")),
    Column(
        "cost", 9, lambda row: (row.cost, "dim"), right_aligned=True, key=lambda row: max(row.seconds, row.n_failures)
    ),
    Column("line", 20, lambda row: (formatting.short_location(row.line), "dim"), min_width=90),
)

# The time limit for the runs of all passes together, in seconds.
_TRIAL_SECONDS = 60.0


class TrialsScreen(TableScreen[PassPreview]):
    """Runs each candidate pass on the stage text with the hash `text`, and lists the passes that change it.

    `threads` is the number of threads of each pass. Returns the pass to insert, or `None`. Closing the screen
    cancels the runs.
    """

    TITLE_TEXT = "Passes that change this stage"
    KEYS_TEXT = "enter inserts the pass, q closes"

    def __init__(self, session: Session, text: str, candidates: Sequence[PassStep], threads: int) -> None:
        super().__init__(_TRIAL_COLUMNS)
        self._session, self._text, self._candidates, self._threads = session, text, tuple(candidates), threads
        # The results that have arrived, including those of passes that change nothing.
        self._previews: list[PassPreview] = []

    def on_mount(self) -> None:
        self._try_candidates()

    def foot_text(self, row: PassPreview) -> str:
        if row.tried.problem:
            return f"{row.step.name}: {row.tried.problem}"
        return deltas_text(row.tried.deltas, max_count=20) or "changed operands, types or attributes; the same ops"

    @work(exclusive=True, group="trials")
    async def _try_candidates(self) -> None:
        """Runs the candidates in the engine, and shows each result as it arrives."""
        frame = TryPasses(0, self._text, self._candidates, self._threads, timeout=_TRIAL_SECONDS)
        done = await Requester(self._session, self.show_progress).request(frame, self._show_trial)
        if done is None:
            return
        untried = f", {done.candidates - done.tried} not tried (time limit)" if done.tried < done.candidates else ""
        self._show_counts(untried)

    def _show_trial(self, frame: object) -> None:
        if isinstance(frame, Tried):
            self._previews.append(PassPreview(self._candidates[frame.number], frame))
            if frame.changed or frame.problem:
                self.show(rank_previews(self._previews, with_failed=True))
            self._show_counts("")

    def _show_counts(self, suffix: str) -> None:
        """Shows in the title how many passes change the stage and how many have run, followed by `suffix`."""
        changing = sum(preview.tried.changed for preview in self._previews)
        self.show_progress(f"{changing} change it, {len(self._previews)}/{len(self._candidates)} tried{suffix}")

    def action_choose(self) -> None:
        if self.current is not None and self.current.tried.changed:
            self.dismiss(self.current.step)


def _change_cell(row: PassPreview) -> Cell:
    if row.tried.problem:
        return ("failed", "bad")
    return (deltas_text(row.tried.deltas, max_count=3) or "same ops", "text")


_TRIAL_COLUMNS: tuple[Column[PassPreview], ...] = (
    Column("pass", 34, lambda row: (row.step.name, "dim" if row.tried.problem else "accent")),
    Column("on", 6, lambda row: (row.step.anchor.rpartition(".")[2], "dim"), min_width=90),
    Column("ops", 0, _change_cell),
    Column(
        "time",
        8,
        lambda row: (formatting.milliseconds(row.tried.milliseconds), "dim"),
        right_aligned=True,
        key=lambda row: row.tried.milliseconds,
    ),
)
