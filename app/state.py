"""What the engine has told so far, folded into plain data. No Textual: frames in, names of what changed out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from buddy.app.stages import StageBoard
from buddy.compiler import protocol as p
from buddy.compiler.recipe import Recipe

Topic = Literal["graph", "passes", "stages", "outputs", "status", "lines"]
Job = Literal["open", "compile", "run"]

ALL: frozenset[Topic] = frozenset({"graph", "passes", "stages", "outputs", "status"})
STATUS: frozenset[Topic] = frozenset({"status"})
PRINTOUT_LINES = 5_000


@dataclass
class State:
    """Everything panes draw from. Requests that are under way stand in `jobs`; the newest build in `build`."""

    engine: Literal["starting", "ready", "lost"] = "starting"
    welcome: p.Welcome | None = None
    workers: dict[str, p.WorkerState] = field(default_factory=dict)
    jobs: dict[int, Job] = field(default_factory=dict)
    progress: p.Progress | None = None
    graphs: tuple[p.GraphInfo, ...] = ()
    notes: tuple[str, ...] = ()
    graph: int = 0
    captured: bool = False
    presets: tuple[p.Preset, ...] = ()
    passes: tuple[p.PassInfo, ...] = ()
    ops: tuple[p.OpInfo, ...] = ()
    assignments: dict[str, p.Assignment] = field(default_factory=dict)
    boards: dict[int, StageBoard] = field(default_factory=dict)
    remarks: tuple[tuple[str, str, str], ...] = ()
    compiled: Recipe | None = None
    compile_seconds: float = 0.0
    reused: int = 0
    report: p.RunReport | None = None
    was: p.RunReport | None = None
    ran: Recipe | None = None
    problems: dict[Job, p.Diagnostic] = field(default_factory=dict)
    printout: list[str] = field(default_factory=list)
    log: list[p.Diagnostic] = field(default_factory=list)
    _build: int = 0
    _recipes: dict[int, Recipe] = field(default_factory=dict)

    @property
    def board(self) -> StageBoard:
        """The stages of the graph on the screen."""
        return self.boards.setdefault(self.graph, StageBoard())

    @property
    def info(self) -> p.GraphInfo | None:
        return self.graphs[self.graph] if self.graph < len(self.graphs) else None

    @property
    def busy(self) -> bool:
        return bool(self.jobs)

    @property
    def problem(self) -> p.Diagnostic | None:
        """What is wrong now, the earliest step of the line first."""
        jobs: tuple[Job, ...] = ("open", "compile", "run")
        return next((self.problems[job] for job in jobs if job in self.problems), None)

    def phases(self, preset: str) -> tuple[tuple[str, str], ...]:
        """The phases of a preset, `(name, language)` in order."""
        return next((entry.phases for entry in self.presets if entry.name == preset), ())

    def began(self, job: Job, request: int, recipe: Recipe | None = None) -> None:
        """A request has been sent."""
        self.jobs[request] = job
        self.problems.pop(job, None)
        if recipe is None:
            return
        self._build, self._recipes[request] = request, recipe
        self.graph = recipe.graph
        if recipe != self.compiled:
            self.problems.pop("compile", None)
            self.board.begin("being compiled")

    def lost(self, reason: p.Diagnostic) -> None:
        """The engine is gone, and what was under way with it."""
        self.engine = "lost"
        self.jobs.clear()
        self._recipes.clear()
        self.workers.clear()
        self.progress, self.compiled = None, None
        self.board.fail((), "the engine ended")
        self.log.append(reason)

    def apply(self, frame: p.Frame) -> frozenset[Topic]:
        """Take a frame in; returns what changed."""
        handler = _HANDLERS.get(type(frame))
        return handler(self, frame) if handler else frozenset()

    def ended(self, request: int) -> None:
        self.jobs.pop(request, None)
        self._recipes.pop(request, None)
        if not self.jobs:
            self.progress = None

    # ---- one method a frame --------------------------------------------------------------------------------------

    def _welcome(self, frame: p.Welcome) -> frozenset[Topic]:
        self.engine, self.welcome = "ready", frame
        return STATUS

    def _worker(self, frame: p.WorkerState) -> frozenset[Topic]:
        self.workers[frame.worker] = frame
        return STATUS

    def _progress(self, frame: p.Progress) -> frozenset[Topic]:
        if frame.request in self.jobs:
            self.progress = frame
        return STATUS

    def _printout(self, frame: p.Printout) -> frozenset[Topic]:
        pieces = (self.printout.pop() + frame.text if self.printout else frame.text).split("\n")
        self.printout = [*self.printout, *pieces][-PRINTOUT_LINES:]
        return frozenset({"outputs"})

    def _captured(self, frame: p.Captured) -> frozenset[Topic]:
        self.graphs, self.notes, self.captured = frame.graphs, frame.notes, True
        self.graph = min(self.graph, max(len(frame.graphs) - 1, 0))
        self.ended(frame.request)
        return ALL

    def _assigned(self, frame: p.Assigned) -> frozenset[Topic]:
        if frame.graph != self.graph or frame.request != self._build:
            return frozenset()
        self.assignments = {entry.node: entry for entry in frame.assignments}
        return frozenset({"graph"})

    def _stage(self, frame: p.StageDone) -> frozenset[Topic]:
        if frame.request != self._build:
            return frozenset()
        self.board.add(frame.stage)
        return frozenset({"stages", "passes"})

    def _compiled(self, frame: p.Compiled) -> frozenset[Topic]:
        if self.jobs.get(frame.request) == "compile":
            recipe = self._recipes.get(frame.request)
            self.ended(frame.request)
        else:
            recipe = self._recipes.get(frame.request)
        if frame.request != self._build:
            return STATUS
        self.compiled, self.remarks = recipe, frame.remarks
        self.compile_seconds, self.reused = frame.seconds, frame.reused
        self.problems.pop("compile", None)
        self.board.finish(frame.stages)
        return ALL

    def _ran(self, frame: p.Ran) -> frozenset[Topic]:
        recipe = self._recipes.get(frame.request)
        self.ended(frame.request)
        if self.report is not None and self.report.graph == frame.report.graph:
            self.was = self.report if recipe != self.ran else self.was
        else:
            self.was = None
        self.report, self.ran = frame.report, recipe
        self.problems.pop("run", None)
        return frozenset({"outputs", "status"})

    def _failed(self, frame: p.Failed) -> frozenset[Topic]:
        job = self.jobs.get(frame.request)
        compiled = self._recipes.get(frame.request) == self.compiled
        self.ended(frame.request)
        if job is None:
            self.log.append(frame.diagnostic)
            return STATUS
        if job != "open" and frame.request != self._build:
            return STATUS
        if job != "open" and not compiled:
            self.board.fail(frame.stages, _reason(frame))
        if not frame.cancelled:
            kind = "compile" if job == "run" and not compiled else job
            self.problems[kind] = frame.diagnostic
            self.log.append(frame.diagnostic)
        return ALL

    def _passes(self, frame: p.Passes) -> frozenset[Topic]:
        self.passes = frame.passes
        return frozenset()

    def _ops(self, frame: p.Ops) -> frozenset[Topic]:
        self.ops = frame.ops
        return frozenset()

    def _presets(self, frame: p.Presets) -> frozenset[Topic]:
        self.presets = frame.presets
        return ALL


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
