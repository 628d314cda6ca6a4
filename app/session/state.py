"""The state that the engine has reported, as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from buddy.app.session.progress import ProgressRate
from buddy.app.session.stages import StageBoard
from buddy.app.workspace.session_file import RunRecord, recorded, with_run, without_content
from buddy.compiler import protocol as p
from buddy.compiler.protocol.numerics import NodeNumbers, NumericsReport
from buddy.compiler.protocol.recipe import NATIVE, Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice

# Maximum number of stage texts with cached data: more than a pipeline has.
TEXTS = 128
# Maximum number of texts with another form: fewer than an engine keeps.
FORMS = 32


def keep_newest(kept: dict[Any, Any] | list[Any], most: int) -> None:
    """Drop the oldest entries of `kept` beyond `most`."""
    if isinstance(kept, list):
        del kept[: max(0, len(kept) - most)]
    else:
        for key in list(kept)[: max(0, len(kept) - most)]:
            del kept[key]


Topic = Literal["graph", "passes", "stages", "outputs", "status", "lines"]
Job = Literal["open", "compile", "run"]

ALL: frozenset[Topic] = frozenset({"graph", "passes", "stages", "outputs", "status"})
STATUS: frozenset[Topic] = frozenset({"status"})
PRINTOUT_LINES = 5_000
LOGGED = 500


@dataclass
class GraphState:
    """The state of one graph. `build` is the newest request that compiles or runs it."""

    board: StageBoard = field(default_factory=StageBoard)
    assignments: dict[str, p.Assignment] = field(default_factory=dict)
    remarks: tuple[tuple[str, str, str], ...] = ()
    compiled: Recipe | None = None
    compile_seconds: float = 0.0
    reused: int = 0
    report: p.RunReport | None = None
    previous_report: p.RunReport | None = None
    ran: Recipe | None = None
    inputs: InputChoice = OWN_INPUTS
    problems: dict[Job, p.Diagnostic] = field(default_factory=dict)
    build: int = 0
    numerics: tuple[Recipe, NumericsReport] | None = None
    numbers: dict[str, NodeNumbers] = field(default_factory=dict)
    profile: p.ProfileReport | None = None
    profiled: Recipe | None = None

    def record_start(self, job: Job, request: int, recipe: Recipe) -> None:
        """Record that a request for `recipe` was sent."""
        self.build = request
        self.problems.pop(job, None)
        if recipe != self.compiled:
            self.problems.pop("compile", None)
            self.board.begin("compiling")

    def record_compilation(self, recipe: Recipe | None, frame: p.Compiled) -> None:
        """Record that the compilation of `recipe` is complete."""
        self.compiled, self.remarks = recipe, frame.remarks
        self.compile_seconds, self.reused = frame.seconds, frame.reused
        self.problems.pop("compile", None)
        self.board.finish(frame.stages)

    def record_run(self, recipe: Recipe | None, report: p.RunReport) -> None:
        """Record a run of `recipe`, and keep the previous report for comparison."""
        self.previous_report = self.report if recipe != self.ran else self.previous_report
        self.report, self.ran = report, recipe
        self.problems.pop("run", None)

    def record_comparison(self, recipe: Recipe, report: NumericsReport) -> None:
        """Record a comparison of every node of `recipe` with the reference."""
        self.numerics, self.numbers = (recipe, report), report.by_node()


@dataclass
class State:
    """The state that panes draw. `jobs` are the running requests; `graph` is the graph on the screen.

    `link` is the error of the connection to a remote engine, which keeps running; `silent` is the number of seconds
    that the engine has not answered, 0 if it does. `opening_cancelled` means that the user has cancelled the last
    attempt to open the program.
    """

    engine: Literal["starting", "ready", "lost"] = "starting"
    link: str = ""
    silent: int = 0
    welcome: p.Welcome | None = None
    workers: dict[str, p.WorkerState] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    progress: p.Progress | None = None
    graphs: tuple[p.GraphInfo, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    graph: int = 0
    wanted_inputs: InputChoice = OWN_INPUTS
    captured: bool = False
    presets: tuple[p.Preset, ...] = ()
    passes: tuple[p.PassInfo, ...] = ()
    backends: tuple[p.BackendInfo, ...] = ()
    ops: tuple[p.OpInfo, ...] = ()
    printout: list[str] = field(default_factory=list)
    log: list[p.Diagnostic] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)
    opening_cancelled: bool = False
    _opening: p.Diagnostic | None = None
    _rate: ProgressRate = field(default_factory=ProgressRate)
    _graph_states: dict[int, GraphState] = field(default_factory=dict)
    _recipes: dict[int, Recipe] = field(default_factory=dict)
    _inputs: dict[int, InputChoice] = field(default_factory=dict)

    def of(self, graph: int) -> GraphState:
        """The state of graph number `graph`."""
        return self._graph_states.setdefault(graph, GraphState())

    @property
    def shown(self) -> GraphState:
        """The state of the graph on the screen, which the properties below refer to."""
        return self.of(self.graph)

    @property
    def board(self) -> StageBoard:
        return self.shown.board

    @property
    def assignments(self) -> dict[str, p.Assignment]:
        return self.shown.assignments

    @property
    def remarks(self) -> tuple[tuple[str, str, str], ...]:
        return self.shown.remarks

    @property
    def compiled(self) -> Recipe | None:
        return self.shown.compiled

    @property
    def compile_seconds(self) -> float:
        return self.shown.compile_seconds

    @property
    def reused(self) -> int:
        return self.shown.reused

    @property
    def report(self) -> p.RunReport | None:
        return self.shown.report

    @property
    def previous_report(self) -> p.RunReport | None:
        return self.shown.previous_report

    @property
    def ran(self) -> Recipe | None:
        return self.shown.ran

    @property
    def profile(self) -> p.ProfileReport | None:
        return self.shown.profile

    @property
    def profile_is_stale(self) -> bool:
        """Whether the profile is of another recipe than the compiled one."""
        return self.profile is not None and self.compiled is not None and self.shown.profiled != self.compiled

    @property
    def problems(self) -> dict[Job, p.Diagnostic]:
        """The problems of the program and of the graph on the screen."""
        return {"open": self._opening, **self.shown.problems} if self._opening else self.shown.problems

    @property
    def info(self) -> p.GraphInfo | None:
        return self.graphs[self.graph] if self.graph < len(self.graphs) else None

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    @property
    def problem(self) -> p.Diagnostic | None:
        """The current problem; the earliest in pipeline order, if there are several."""
        jobs: tuple[Job, ...] = ("open", "compile", "run")
        return next((self.problems[job] for job in jobs if job in self.problems), None)

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining seconds: by the last times of the missing stages, else by the progress so far."""
        recipe = self._recipes.get(self.progress.request) if self.progress is not None else None
        if recipe is not None and (left := self.of(recipe.graph).board.seconds_left()) is not None:
            return left
        return self._rate.seconds_left() if self.progress is not None else None

    @property
    def seconds_since_progress(self) -> float:
        """The seconds since the last progress."""
        return self._rate.seconds_since_progress() if self.progress is not None else 0.0

    def under_way(self, graph: int) -> set[Job]:
        """The kind of work that is running for a graph."""
        return {self.jobs[request] for request, recipe in self._recipes.items() if recipe.graph == graph}

    def phases(self, recipe: Recipe) -> tuple[tuple[str, str], ...]:
        """The phases of a recipe's preset and backend, as `(name, language)` in order."""
        found = next((entry.phases for entry in self.presets if entry.name == recipe.preset), ())
        if recipe.runs_passes:
            return found if recipe.backend == NATIVE else self._with_phases_of(recipe.backend, found)
        first = next((place for place, (_, language) in enumerate(found) if language == "mlir"), len(found))
        return (*found[: first + 1], *((name, "mlir") for name in p.IREE_PHASES))

    def _with_phases_of(self, backend: str, found: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """The phases up to the LLVM dialect, and those of a plug-in's backend, which are LLVM IR unless known."""
        added = next((entry.phases for entry in self.backends if entry.name == backend), ())
        languages = dict(found)
        kept = [phase for phase in found if phase[1] not in ("llvm", "asm", "ptx")] if added else found
        return (*kept, *((name, languages.get(name, "llvm")) for name in added))

    def record_start(
        self, job: Job, request: int, recipe: Recipe | None = None, inputs: InputChoice = OWN_INPUTS
    ) -> None:
        """Record that a request was sent; `inputs` are the inputs of a run."""
        self.jobs[request] = job
        self._inputs[request] = inputs
        if recipe is None:
            self._opening, self.opening_cancelled = None, False
        else:
            self._recipes[request] = recipe
            self.of(recipe.graph).record_start(job, request, recipe)

    def record_reload(self, request: int) -> None:
        """Mark the current results as outdated while the program is reloaded."""
        self.record_start("open", request)
        for graph_state in self._graph_states.values():
            graph_state.ran = None

    def record_engine_exit(self, reason: p.Diagnostic) -> None:
        """Record that the engine has exited, which ends its requests."""
        self._reset_requests("lost")
        self.note(reason)

    def record_restart(self) -> None:
        """Record that another engine replaces this one. Its request numbers start again."""
        self._reset_requests("starting")

    def _reset_requests(self, engine: Literal["starting", "lost"]) -> None:
        self.engine, self.link, self.silent, self.progress = engine, "", 0, None
        self.opening_cancelled = False
        for under_way in (self.jobs, self._recipes, self._inputs, self.workers):
            under_way.clear()
        self._outdated("the engine exited")

    def record_profile(self, recipe: Recipe, report: p.ProfileReport) -> None:
        """Record a profile of the graph of `recipe`."""
        graph_state = self.of(report.graph)
        graph_state.profile, graph_state.profiled = report, recipe

    def apply(self, frame: p.Frame) -> frozenset[Topic]:
        """Apply a frame. Returns the changed parts."""
        handler = _HANDLERS.get(type(frame))
        return handler(self, frame) if handler else frozenset()

    def add_extract(self, frame: p.Extracted) -> None:
        """Add an extracted graph, unless it exists. State of another graph with the same number is dropped."""
        if frame.graph < len(self.graphs) and self.graphs[frame.graph] == frame.info:
            return
        self.graphs = (*self.graphs[: frame.graph], frame.info)
        self._graph_states.pop(frame.graph, None)

    def record_end(self, request: int) -> None:
        self.jobs.pop(request, None)
        self._recipes.pop(request, None)
        self._inputs.pop(request, None)
        if not self.jobs:
            self.progress = None

    # ---- one method per frame ------------------------------------------------------------------------------------

    def _welcome(self, frame: p.Welcome) -> frozenset[Topic]:
        self.engine, self.welcome = "ready", frame
        return STATUS

    def _worker(self, frame: p.WorkerState) -> frozenset[Topic]:
        self.workers[frame.worker] = frame
        if frame.worker == "host" and frame.state in ("starting", "dead"):
            # The runner is a child process of the host, and has exited with it.
            self.workers.pop("runner", None)
        if frame.end in ("idle", "start"):
            self.note(_worker_ended(frame))
        return STATUS

    def _progress(self, frame: p.Progress) -> frozenset[Topic]:
        if frame.request in self.jobs:
            self.progress = frame
            self._rate.note(frame.request, frame.done)
        return STATUS

    def _printout(self, frame: p.Printout) -> frozenset[Topic]:
        pieces = (self.printout.pop() + frame.text if self.printout else frame.text).split("\n")
        self.printout = [*self.printout, *pieces][-PRINTOUT_LINES:]
        return frozenset({"outputs"})

    def _captured(self, frame: p.Captured) -> frozenset[Topic]:
        if frame.graphs != self.graphs:
            for graph_state in self._graph_states.values():
                graph_state.ran = graph_state.profile = graph_state.profiled = None
        self.graphs, self.notes, self.captured = frame.graphs, frame.notes, True
        self.files = frame.files
        self.record_end(frame.request)
        return ALL

    def _assigned(self, frame: p.Assigned) -> frozenset[Topic]:
        graph_state = self._newest_recipe(frame.request)
        if graph_state is None:
            return frozenset()
        graph_state.assignments = {entry.node: entry for entry in frame.assignments}
        return frozenset({"graph"})

    def _stage(self, frame: p.StageDone) -> frozenset[Topic]:
        graph_state = self._newest(frame.request)
        if graph_state is None:
            return frozenset()
        graph_state.board.add(frame.stage)
        return frozenset({"stages", "passes"})

    def _compiled(self, frame: p.Compiled) -> frozenset[Topic]:
        graph_state, recipe = self._newest_recipe(frame.request), self._recipes.get(frame.request)
        if self.jobs.get(frame.request) == "compile":
            self.record_end(frame.request)
        if graph_state is None:
            return STATUS
        graph_state.record_compilation(recipe, frame)
        return ALL

    def _ran(self, frame: p.Ran) -> frozenset[Topic]:
        recipe, inputs = self._recipes.get(frame.request), self._inputs.get(frame.request, OWN_INPUTS)
        self.record_end(frame.request)
        graph_state = self.of(frame.report.graph)
        graph_state.record_run(recipe, frame.report)
        graph_state.inputs = without_content(inputs)
        if recipe is not None:
            self.runs = with_run(self.runs, recorded(time.time(), recipe, frame.report, inputs))
        return frozenset({"outputs", "status"})

    def note(self, diagnostic: p.Diagnostic) -> None:
        """Add `diagnostic` to the log, which keeps the newest entries."""
        self.log.append(diagnostic)
        keep_newest(self.log, LOGGED)

    def _failed(self, frame: p.Failed) -> frozenset[Topic]:
        job, graph_state, recipe = (
            self.jobs.get(frame.request),
            self._newest(frame.request),
            self._recipes.get(frame.request),
        )
        self.record_end(frame.request)
        if job is None:
            if not frame.cancelled:
                self.note(frame.diagnostic)
            return STATUS
        if job == "open":
            self._opening = None if frame.cancelled else frame.diagnostic
            self.opening_cancelled = frame.cancelled and "open" not in self.jobs.values()
            if self.captured and not frame.cancelled:
                self._outdated("the changed program cannot be loaded")
        elif graph_state is None:
            return STATUS
        else:
            _fail(graph_state, frame, job, recipe == graph_state.compiled)
        if not frame.cancelled:
            self.note(frame.diagnostic)
        return ALL

    def _outdated(self, reason: str) -> None:
        """Keep the results of every graph, but mark them as outdated."""
        for graph_state in self._graph_states.values():
            graph_state.compiled = None
            graph_state.board.fail((), reason)

    def _newest(self, request: int) -> GraphState | None:
        """The graph of a request, unless a newer request has replaced it."""
        recipe = self._recipes.get(request)
        graph_state = self.of(recipe.graph) if recipe is not None else None
        return graph_state if graph_state is not None and graph_state.build == request else None

    def _newest_recipe(self, request: int) -> GraphState | None:
        """The graph of a request, unless a newer request for another recipe has replaced it.

        A run that replaces the compilation of the same recipe uses the cached stages and gets no frames for them.
        """
        recipe = self._recipes.get(request)
        graph_state = self.of(recipe.graph) if recipe is not None else None
        return graph_state if graph_state is not None and recipe == self._recipes.get(graph_state.build) else None

    def _passes(self, frame: p.Passes) -> frozenset[Topic]:
        self.passes, self.backends = frame.passes, frame.backends
        return frozenset({"passes"})

    def _ops(self, frame: p.Ops) -> frozenset[Topic]:
        self.ops = frame.ops
        return frozenset()

    def _presets(self, frame: p.Presets) -> frozenset[Topic]:
        self.presets = frame.presets
        return ALL


def _fail(graph_state: GraphState, frame: p.Failed, job: Job, compiled: bool) -> None:
    """Record that a compilation or run failed; `compiled` means that the compilation was complete."""
    if not compiled:
        graph_state.board.fail(frame.stages, _reason(frame))
    if not frame.cancelled:
        graph_state.problems[job if compiled else "compile"] = frame.diagnostic


def _worker_ended(frame: p.WorkerState) -> p.Diagnostic:
    """Log the unexpected exit of a worker that makes no request fail."""
    where = "while it was idle" if frame.end == "idle" else "while it started"
    todo = "another worker is starting" if frame.again else "it starts again when it is needed"
    return p.Diagnostic(f"the {frame.worker} worker exited: {frame.what}", where, todo, "warning")


def _reason(frame: p.Failed) -> str:
    if frame.cancelled:
        return "cancelled"
    failed = next((stage.name for stage in frame.stages if stage.state == "failed"), "")
    return f"{failed} failed" if failed else "compilation failed"


_HANDLERS: dict[type[p.Frame], Callable[[State, Any], frozenset[Topic]]] = {
    p.Welcome: State._welcome,
    p.WorkerState: State._worker,
    p.Progress: State._progress,
    p.Printout: State._printout,
    p.Captured: State._captured,
    p.Assigned: State._assigned,
    p.StageDone: State._stage,
    p.Compiled: State._compiled,
    p.Ran: State._ran,
    p.Failed: State._failed,
    p.Passes: State._passes,
    p.Ops: State._ops,
    p.Presets: State._presets,
}
