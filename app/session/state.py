"""The state of the session that panes draw: what the frames of the engine have reported, as plain data."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from buddy.app.session.progress import PartTimes, RemainingTimeEstimate
from buddy.app.session.stages import GraphState, Job, StageBoard
from buddy.app.workspace.session_file import RunRecord, make_record, with_run, without_content
from buddy.compiler import protocol as p
from buddy.compiler.protocol.recipe import F32, NATIVE, Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice
from buddy.compiler.protocol.searches import NodePrecision

ItemKey = TypeVar("ItemKey")
Item = TypeVar("Item")

# Maximum number of stage texts for which a pane caches data: more than the stages of a pipeline.
MAX_CACHED_TEXTS = 128
# Maximum number of texts of which a pane caches the generic form. An engine keeps more, so it still has each of these.
MAX_CACHED_FORMS = 32


def keep_newest(items: dict[ItemKey, Item] | list[Item], limit: int) -> None:
    """Deletes the first of `items`, which are in the order of insertion, until at most `limit` are left."""
    excess = len(items) - limit
    if excess <= 0:
        return
    if isinstance(items, list):
        del items[:excess]
    else:
        for key in list(items)[:excess]:
            del items[key]


# A part of the state that a frame may change and that panes draw. "lines" means that lines of a text have been fetched.
Topic = Literal["graph", "passes", "stages", "outputs", "status", "lines"]

# All topics of the state. "lines" is not one of them: the lines are in the cache of the session.
STATE_TOPICS: frozenset[Topic] = frozenset({"graph", "passes", "stages", "outputs", "status"})
# The topic of the state of the engine and of running jobs.
STATUS: frozenset[Topic] = frozenset({"status"})
# The maximum numbers of lines of `State.printout`, and of entries of `State.log`.
MAX_PRINTOUT_LINES = 5_000
MAX_LOG_ENTRIES = 500


@dataclass
class State:
    """The state that panes draw: the engine, the program with its graphs, the running requests, and the results.

    Of the engine: `welcome` is its answer to the greeting, `workers` are its worker processes by name, and `passes`,
    `backends`, `ops` and `presets` are those that it offers. `connection_error` is the error of a lost connection to a
    remote engine, which keeps running. `silent_seconds` is how long the engine has not answered, 0 if it answers.

    Of the program: `captured` says whether `graphs` have been captured or restored, `graph` is the number of the graph
    on the screen, `notes` are remarks on the capture, and `files` are the paths of the script and of its imports.
    `restored_at` is when the graphs were saved if an earlier session has captured them and the script has not run yet,
    in seconds since the epoch; otherwise 0. `changed_files` are the names of the program's files that have changed
    since it was opened. `opening_cancelled` means that the user has cancelled the last attempt to open the program.
    `opens_dump` means that the program is a dump of another compiler.

    `jobs` are the running requests by number, `progress` is their last progress, and `part_times` are the times of
    their parts. `next_inputs` are the inputs of the next run, and `runs` the finished runs, the oldest first.
    `printout` has the lines that the program has printed, and `log` the messages, both without the oldest ones.
    """

    engine: Literal["starting", "ready", "lost"] = "starting"
    connection_error: str = ""
    silent_seconds: int = 0
    welcome: p.Welcome | None = None
    workers: dict[str, p.WorkerState] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    progress: p.Progress | None = None
    graphs: tuple[p.GraphInfo, ...] = ()
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    graph: int = 0
    next_inputs: InputChoice = OWN_INPUTS
    captured: bool = False
    presets: tuple[p.Preset, ...] = ()
    passes: tuple[p.PassInfo, ...] = ()
    backends: tuple[p.BackendInfo, ...] = ()
    ops: tuple[p.OpInfo, ...] = ()
    printout: list[str] = field(default_factory=list)
    log: list[p.Diagnostic] = field(default_factory=list)
    runs: list[RunRecord] = field(default_factory=list)
    opening_cancelled: bool = False
    changed_files: tuple[str, ...] = ()
    restored_at: float = 0.0
    part_times: PartTimes = field(default_factory=PartTimes)
    opens_dump: bool = False
    _open_problem: p.Diagnostic | None = None
    # The estimate of the remaining time of the request that `progress` is from.
    _remaining: RemainingTimeEstimate = field(default_factory=RemainingTimeEstimate)
    _graph_states: dict[int, GraphState] = field(default_factory=dict)
    # The recipes of the running requests that compile or run, and the inputs of those that run, by number.
    _recipes: dict[int, Recipe] = field(default_factory=dict)
    _inputs: dict[int, InputChoice] = field(default_factory=dict)

    def graph_state_of(self, graph: int) -> GraphState:
        """Returns the state of graph number `graph`. Creates it if necessary."""
        return self._graph_states.setdefault(graph, GraphState())

    @property
    def graph_state(self) -> GraphState:
        """The state of the graph on the screen, which the properties below refer to."""
        return self.graph_state_of(self.graph)

    @property
    def board(self) -> StageBoard:
        return self.graph_state.board

    @property
    def assignments(self) -> dict[str, p.Assignment]:
        return self.graph_state.assignments

    @property
    def remarks(self) -> tuple[tuple[str, str, str], ...]:
        return self.graph_state.remarks

    @property
    def compiled_recipe(self) -> Recipe | None:
        return self.graph_state.compiled_recipe

    @property
    def compile_seconds(self) -> float:
        return self.graph_state.compile_seconds

    @property
    def n_reused_stages(self) -> int:
        return self.graph_state.n_reused_stages

    @property
    def report(self) -> p.RunReport | None:
        return self.graph_state.report

    @property
    def previous_report(self) -> p.RunReport | None:
        return self.graph_state.previous_report

    @property
    def run_recipe(self) -> Recipe | None:
        return self.graph_state.run_recipe

    @property
    def profile(self) -> p.ProfileReport | None:
        return self.graph_state.profile

    @property
    def profile_is_stale(self) -> bool:
        """Whether there is a profile of another recipe than the compiled one."""
        if self.profile is None or self.compiled_recipe is None:
            return False
        return self.graph_state.profiled_recipe != self.compiled_recipe

    @property
    def problems(self) -> dict[Job, p.Diagnostic]:
        """The problems of the program and of the graph on the screen, by the job that failed."""
        problems = self.graph_state.problems
        return {"open": self._open_problem, **problems} if self._open_problem else problems

    @property
    def info(self) -> p.GraphInfo | None:
        """The nodes, inputs and outputs of the graph on the screen; `None` before the capture."""
        return self.graphs[self.graph] if self.graph < len(self.graphs) else None

    @property
    def busy(self) -> bool:
        """Whether a request that opens, compiles or runs is running."""
        return bool(self.jobs)

    @property
    def problem(self) -> p.Diagnostic | None:
        """The current problem; if there are several, that of the earliest job: open, compile, run."""
        jobs: tuple[Job, ...] = ("open", "compile", "run")
        return next((self.problems[job] for job in jobs if job in self.problems), None)

    @property
    def seconds_left(self) -> float | None:
        """The estimated remaining seconds of the current progress; `None` if unknown.

        Estimated from the times that the outdated stages took, or without them from the progress so far.
        """
        if self.progress is None:
            return None
        recipe = self._recipes.get(self.progress.request)
        stage_seconds = self.graph_state_of(recipe.graph).board.seconds_left() if recipe is not None else None
        return stage_seconds if stage_seconds is not None else self._remaining.seconds_left()

    @property
    def seconds_since_update(self) -> float:
        """The seconds since the last progress of a running job; 0 without one."""
        return self._remaining.seconds_since_update() if self.progress is not None else 0.0

    def running_jobs(self, graph: int) -> set[Job]:
        """Returns the kinds of jobs, "compile" or "run", that are running for graph number `graph`."""
        return {self.jobs[request] for request, recipe in self._recipes.items() if recipe.graph == graph}

    def phases(self, recipe: Recipe) -> tuple[tuple[str, str], ...]:
        """Returns the phases of a recipe's preset and backend, as `(name, language)` in order.

        A backend that runs no passes replaces the preset's phases: those after the captured graph, or if it takes MLIR,
        those after the first phase in MLIR.
        """
        phases = next((preset.phases for preset in self.presets if preset.name == recipe.preset), ())
        if recipe.runs_passes:
            return phases if recipe.backend == NATIVE else self._with_backend_phases(phases, recipe.backend)
        added = p.PHASES_OF_COMPILERS[recipe.backend]
        _, first_language = added[0]
        if first_language != "mlir":
            return (*phases[:1], *added)
        first_mlir = next((index for index, (_, language) in enumerate(phases) if language == "mlir"), len(phases))
        return (*phases[: first_mlir + 1], *added)

    def _with_backend_phases(self, phases: tuple[tuple[str, str], ...], backend: str) -> tuple[tuple[str, str], ...]:
        """Returns the phases up to the LLVM dialect, then those of a plug-in's backend.

        A phase of the backend has the language of the preset's phase with that name, otherwise LLVM IR.
        """
        added = next((info.phases for info in self.backends if info.name == backend), ())
        if not added:
            return phases
        languages = dict(phases)
        common = [(name, language) for name, language in phases if language not in ("llvm", "asm", "ptx")]
        return (*common, *((name, languages.get(name, "llvm")) for name in added))

    def record_start(
        self, job: Job, request: int, recipe: Recipe | None = None, inputs: InputChoice = OWN_INPUTS
    ) -> None:
        """Records that request number `request` was sent. `recipe` is `None` for "open"; `inputs` are of a run."""
        self.jobs[request] = job
        self._inputs[request] = inputs
        if recipe is None:
            self._open_problem, self.opening_cancelled, self.changed_files = None, False, ()
        else:
            self._recipes[request] = recipe
            self.graph_state_of(recipe.graph).record_start(job, request, recipe)

    def record_reload(self, request: int) -> None:
        """Records that request `request` opens the program again, so the results of runs are outdated."""
        self.record_start("open", request)
        for graph_state in self._graph_states.values():
            graph_state.run_recipe = None

    def record_engine_exit(self, reason: p.Diagnostic) -> None:
        """Records that the engine has exited, which ends its requests. `reason` is added to the log."""
        self._reset_requests("lost")
        self.add_to_log(reason)

    def record_restart(self) -> None:
        """Records that another engine replaces this one. Its request numbers start again."""
        self._reset_requests("starting")

    def _reset_requests(self, engine: Literal["starting", "lost"]) -> None:
        """Ends all requests, and marks the results of every graph as outdated."""
        self.engine, self.connection_error, self.silent_seconds, self.progress = engine, "", 0, None
        self.opening_cancelled, self.restored_at = False, 0.0
        for by_request in (self.jobs, self._recipes, self._inputs):
            by_request.clear()
        self.workers.clear()
        self._mark_outdated("the engine exited")

    def record_profile(self, recipe: Recipe, report: p.ProfileReport) -> None:
        """Records a profile of `recipe`, and the times of the nodes that multiplied in f32.

        A node that was fused into another one has no time of its own.
        """
        graph_state = self.graph_state_of(report.graph)
        graph_state.profile, graph_state.profiled_recipe = report, recipe
        for node in report.nodes:
            if not node.into and recipe.precision_of(node.node) == F32:
                graph_state.f32_seconds[node.node] = node.seconds

    def record_precisions(self, graph: int, nodes: Iterable[NodePrecision]) -> None:
        """Records the result of a search for precisions in graph number `graph`: its `nodes` are matrix products."""
        self.graph_state_of(graph).precisions = {node.node: node for node in nodes}

    def apply(self, frame: p.Frame) -> frozenset[Topic]:
        """Applies a frame. Returns the topics that have changed."""
        handler = _HANDLERS.get(type(frame))
        return handler(self, frame) if handler else frozenset()

    def add_extracted_graph(self, frame: p.Extracted) -> None:
        """Adds an extracted graph, unless it exists, in place of the graphs from its number on."""
        if frame.graph < len(self.graphs) and self.graphs[frame.graph] == frame.info:
            return
        self.graphs = (*self.graphs[: frame.graph], frame.info)
        self._graph_states.pop(frame.graph, None)

    def record_end(self, request: int) -> None:
        """Records that a request has its final answer. This ends the times of its parts if no other request is running.

        The times of an "open" request go on, because a compilation follows.
        """
        if self.jobs.keys() == {request} and self.jobs[request] != "open":
            self.part_times = PartTimes()
        self.jobs.pop(request, None)
        self._recipes.pop(request, None)
        self._inputs.pop(request, None)
        if not self.jobs:
            self.progress = None

    # ---- one method per frame ------------------------------------------------------------------------------------

    def _apply_welcome(self, frame: p.Welcome) -> frozenset[Topic]:
        self.engine, self.welcome = "ready", frame
        return STATUS

    def _apply_worker(self, frame: p.WorkerState) -> frozenset[Topic]:
        self.workers[frame.worker] = frame
        if frame.worker == "host" and frame.state in ("starting", "dead"):
            # The runner is a child process of the host, and has exited with it.
            self.workers.pop("runner", None)
        if frame.end in ("idle", "start"):
            # No request fails by this exit, so only the log reports it.
            self.add_to_log(_worker_exit_warning(frame))
        return STATUS

    def _apply_progress(self, frame: p.Progress) -> frozenset[Topic]:
        if frame.request in self.jobs:
            self.progress = frame
            self.part_times.record(frame.part)
            self._remaining.record(frame.request, frame.done)
        return STATUS

    def _apply_printout(self, frame: p.Printout) -> frozenset[Topic]:
        last_line = self.printout.pop() if self.printout else ""
        self.printout = [*self.printout, *(last_line + frame.text).split("\n")][-MAX_PRINTOUT_LINES:]
        return frozenset({"outputs"})

    def _apply_captured(self, frame: p.Captured) -> frozenset[Topic]:
        """Shows the captured graphs.

        If they differ from those before, drops their profiles and the recipes of their runs.
        """
        if frame.graphs != self.graphs:
            for graph_state in self._graph_states.values():
                graph_state.run_recipe = graph_state.profile = graph_state.profiled_recipe = None
                graph_state.f32_seconds, graph_state.precisions = {}, {}
        self.graphs, self.notes, self.captured = frame.graphs, frame.notes, True
        self.files, self.restored_at = frame.files, 0.0
        self.record_end(frame.request)
        return STATE_TOPICS

    def _apply_reopened(self, frame: p.Reopened) -> frozenset[Topic]:
        self.graphs, self.notes, self.captured = frame.graphs, frame.notes, True
        self.files, self.restored_at = frame.files, frame.saved_at
        return STATE_TOPICS

    def restore_report(self, graph: int) -> None:
        """Shows the last run of `graph` in an earlier session as an outdated one, unless it has been run since."""
        graph_state = self.graph_state_of(graph)
        last = next((run for run in reversed(self.runs) if run.recipe.graph == graph), None)
        if graph_state.report is None and last is not None:
            graph_state.report, graph_state.restored_run, graph_state.inputs = last.report, last, last.inputs

    def _apply_assigned(self, frame: p.Assigned) -> frozenset[Topic]:
        graph_state = self._state_if_same_recipe(frame.request)
        if graph_state is None:
            return frozenset()
        graph_state.assignments = {assignment.node: assignment for assignment in frame.assignments}
        return frozenset({"graph"})

    def _apply_stage(self, frame: p.StageDone) -> frozenset[Topic]:
        graph_state = self._state_if_newest(frame.request)
        if graph_state is None:
            return frozenset()
        graph_state.board.add(frame.stage)
        return frozenset({"stages", "passes"})

    def _apply_compiled(self, frame: p.Compiled) -> frozenset[Topic]:
        graph_state, recipe = self._state_if_same_recipe(frame.request), self._recipes.get(frame.request)
        if self.jobs.get(frame.request) == "compile":
            self.record_end(frame.request)
        if graph_state is None:
            return STATUS
        graph_state.record_compilation(recipe, frame)
        return STATE_TOPICS

    def _apply_ran(self, frame: p.Ran) -> frozenset[Topic]:
        recipe, inputs = self._recipes.get(frame.request), self._inputs.get(frame.request, OWN_INPUTS)
        # A run proves that the script still has this graph.
        self.restored_at = 0.0
        self.record_end(frame.request)
        graph_state = self.graph_state_of(frame.report.graph)
        graph_state.record_run(recipe, frame.report)
        graph_state.inputs = without_content(inputs)
        if recipe is not None:
            self.runs = with_run(self.runs, make_record(time.time(), recipe, frame.report, inputs))
        return frozenset({"outputs", "status"})

    def add_to_log(self, diagnostic: p.Diagnostic) -> None:
        """Adds `diagnostic` to the log, which keeps the newest entries."""
        self.log.append(diagnostic)
        keep_newest(self.log, MAX_LOG_ENTRIES)

    def _apply_failed(self, frame: p.Failed) -> frozenset[Topic]:
        """Records the failure of a request: as the problem of the program or of its graph, and in the log."""
        job, recipe = self.jobs.get(frame.request), self._recipes.get(frame.request)
        graph_state = self._state_if_newest(frame.request)
        self.record_end(frame.request)
        if job is None:
            if not frame.cancelled:
                self.add_to_log(frame.diagnostic)
            return STATUS
        if job == "open":
            self.part_times = PartTimes()
            self._open_problem = None if frame.cancelled else frame.diagnostic
            self.opening_cancelled = frame.cancelled and "open" not in self.jobs.values()
            if self.captured and not frame.cancelled:
                self._mark_outdated("the changed program cannot be loaded")
        elif graph_state is None:
            return STATUS
        else:
            _record_failure(graph_state, frame, job, is_compiled=recipe == graph_state.compiled_recipe)
        if not frame.cancelled:
            self.add_to_log(frame.diagnostic)
        return STATE_TOPICS

    def _mark_outdated(self, reason: str) -> None:
        """Marks the results of every graph as outdated. They stay on the screen."""
        for graph_state in self._graph_states.values():
            graph_state.compiled_recipe = None
            graph_state.board.fail((), reason)

    def _state_if_newest(self, request: int) -> GraphState | None:
        """Returns the state of the graph of `request`; `None` if a newer request has replaced it."""
        recipe = self._recipes.get(request)
        if recipe is None:
            return None
        graph_state = self.graph_state_of(recipe.graph)
        return graph_state if graph_state.newest_request == request else None

    def _state_if_same_recipe(self, request: int) -> GraphState | None:
        """Returns the state of the graph of `request`; `None` if a newer request for another recipe has replaced it.

        Frames of a compilation stay valid if a run of the same recipe has replaced it: the run uses the cached stages,
        and gets no frames for them.
        """
        recipe = self._recipes.get(request)
        if recipe is None:
            return None
        graph_state = self.graph_state_of(recipe.graph)
        return graph_state if recipe == self._recipes.get(graph_state.newest_request) else None

    def _apply_passes(self, frame: p.Passes) -> frozenset[Topic]:
        self.passes, self.backends = frame.passes, frame.backends
        return frozenset({"passes"})

    def _apply_ops(self, frame: p.Ops) -> frozenset[Topic]:
        self.ops = frame.ops
        return frozenset()

    def _apply_presets(self, frame: p.Presets) -> frozenset[Topic]:
        self.presets = frame.presets
        return STATE_TOPICS


def _record_failure(graph_state: GraphState, frame: p.Failed, job: Job, is_compiled: bool) -> None:
    """Records that `job` failed. If `is_compiled`, its recipe was compiled before, so only the run can have failed."""
    if not is_compiled:
        graph_state.board.fail(frame.stages, _failure_reason(frame))
    if not frame.cancelled:
        graph_state.problems[job if is_compiled else "compile"] = frame.diagnostic


def _worker_exit_warning(frame: p.WorkerState) -> p.Diagnostic:
    """Returns the warning about the unexpected exit of a worker."""
    where = "while it was idle" if frame.end == "idle" else "while it started"
    todo = "another worker is starting" if frame.again else "it starts again when it is needed"
    return p.Diagnostic(f"the {frame.worker} worker exited: {frame.reason}", where, todo, "warning")


def _failure_reason(frame: p.Failed) -> str:
    """Returns why the stages after the failure are outdated."""
    if frame.cancelled:
        return "cancelled"
    failed_pass = next((stage.name for stage in frame.stages if stage.state == "failed"), "")
    return f"{failed_pass} failed" if failed_pass else "compilation failed"


# The methods that apply frames and return the topics that have changed, by the class of the frame. Frames of other
# classes do not change the state.
_HANDLERS: dict[type[p.Frame], Callable[[State, Any], frozenset[Topic]]] = {
    p.Welcome: State._apply_welcome,
    p.WorkerState: State._apply_worker,
    p.Progress: State._apply_progress,
    p.Printout: State._apply_printout,
    p.Captured: State._apply_captured,
    p.Reopened: State._apply_reopened,
    p.Assigned: State._apply_assigned,
    p.StageDone: State._apply_stage,
    p.Compiled: State._apply_compiled,
    p.Ran: State._apply_ran,
    p.Failed: State._apply_failed,
    p.Passes: State._apply_passes,
    p.Ops: State._apply_ops,
    p.Presets: State._apply_presets,
}
