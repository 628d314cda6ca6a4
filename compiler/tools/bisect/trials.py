"""Trials: compiles and runs a recipe on a subgraph in a fork of a warm process, and compares it with eager."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch.nn import functional

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.frontend.capture import capture
from buddy.compiler.graph.serialize import graph_hash
from buddy.compiler.ops import registries
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.protocol import Criterion
from buddy.compiler.protocol.artifact import Artifact, from_bytes, to_bytes
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import CODE, LOWERING, Recipe, digest
from buddy.compiler.protocol.worker_messages import Done, Message, Refused, Reply, Trouble
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.compare import EXACT, TOLERANCES, Tolerance, compare
from buddy.compiler.runtime.graph_interpreter import SEED
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import Task, TaskEnd, run_in_child
from buddy.compiler.tools.extract import Subgraph

Kind = Literal["right", "fails", "crashes", "hangs", "differs"]
Tell = Callable[[str, float], None]

# The position of a trial during the run, after all steps of the recipe.
RUN = -3
# As the last step of a trial: the trial runs to the end.
EVERY = -4

# The minimum time limit for a step in seconds, many times the duration for the smallest subgraph.
_LEAST = 3.0


class Stopped(Exception):
    """The client no longer waits for the search."""


class TrialStep(Message, frozen=True):
    """The step that a trial starts, or `LOWERING`, `CODE` or `RUN`."""

    step: int


class TrialResult(Reply, frozen=True):
    """The result of a trial that finished; `worst` is the greatest difference as a multiple of the tolerance."""

    kind: Kind
    step: int = LOWERING
    text: str = ""
    worst: float = 0.0
    artifact: bytes = b""
    lowered: Mapping[str, str] = {}


@dataclass(frozen=True)
class RecipeOutcome:
    """How a trial ended, and at which step; `lowered` maps nodes to their registries, if lowering finished."""

    kind: Kind
    step: int = LOWERING
    text: str = ""
    worst: float = 0.0
    artifact: bytes = b""
    lowered: Mapping[str, str] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return self.kind == "right"

    def describe(self, recipe: Recipe) -> str:
        """The outcome as text."""
        if self.right:
            return "it matches eager"
        if self.kind == "differs":
            return f"its results differ from eager's, {self.worst:.3g} times the tolerance: {self.text}"
        what = {"fails": "it fails", "crashes": "the process crashes", "hangs": "it does not end in time"}[self.kind]
        return f"{what} {place(self.step, recipe)}" + (f": {self.text}" if self.text else "")


def place(step: int, recipe: Recipe) -> str:
    if step >= 0:
        return f"in pass {recipe.steps[step].name} (step {step + 1})"
    return {LOWERING: "in lowering", CODE: "in generating machine code", RUN: "when it runs"}[step]


@dataclass(frozen=True)
class TrialSubject:
    """A subgraph with eager's results. `key` identifies it by its nodes, which have the names of the whole program."""

    part: Subgraph
    expected: list[Any]
    key: str


def subject_of(part: Subgraph, eager: Callable[[Sequence[torch.Tensor]], list[Any]]) -> TrialSubject:
    torch.manual_seed(SEED)
    with torch.no_grad():
        expected = eager(part.tensors)
    return TrialSubject(part, expected, graph_hash(part.graph))


@dataclass
class RecipeTrials:
    """Tries recipes on subgraphs, each combination once. Raises `Stopped` when `master` disconnects."""

    master: Channel
    criterion: Criterion
    first: Callable[[], Any]
    count: int = 0
    _largest: int = 0
    _known: dict[tuple[str, str, int], RecipeOutcome] = field(default_factory=dict)
    _began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    @property
    def time_is_up(self) -> bool:
        return self.seconds > self.criterion.within

    def knows(self, subject: TrialSubject, recipe: Recipe, until: int = EVERY) -> bool:
        """Whether the result is cached."""
        return (subject.key, identity(recipe), until) in self._known

    def __call__(self, subject: TrialSubject, recipe: Recipe, until: int = EVERY) -> RecipeOutcome:
        """The outcome of `recipe` on `subject`; with `until`, the trial stops after that step."""
        key = subject.key, identity(recipe), until
        if key not in self._known:
            self.count += 1
            self._known[key] = self._try(subject, recipe, until)
        return self._known[key]

    def _try(self, subject: TrialSubject, recipe: Recipe, until: int) -> RecipeOutcome:
        reached = [LOWERING]

        def note(message: Any) -> None:
            if isinstance(message, TrialStep):
                reached.append(message.step)

        def work(channel: Channel) -> Reply:
            return _run_trial(channel, subject, recipe, self.first(), self.criterion.tolerance, until)

        limit = self._limit(subject)
        task = Task(work, _error_result, TrialStep | TrialResult | Refused | Trouble, note, limit, renewed=True)
        ended = run_in_child(self.master, task)
        if ended.how == "stopped":
            raise Stopped
        if isinstance(ended.reply, TrialResult):
            found = ended.reply
            step = found.step if found.kind == "fails" and found.step >= 0 else reached[-1]
            return RecipeOutcome(found.kind, step, found.text, found.worst, found.artifact, found.lowered)
        return _outcome_of_end(ended, reached[-1])

    def _limit(self, subject: TrialSubject) -> float:
        """The time limit for a step of a trial, in seconds: the full limit for the largest subgraph so far, or less.

        It applies to a step, not to the trial: this distinguishes a step that never ends from a slow machine.
        """
        nodes = len(subject.part.graph.operations)
        self._largest = max(self._largest, nodes)
        return min(self.criterion.each, _LEAST + self.criterion.each * nodes / self._largest)

    def run_in_child(
        self,
        work: Callable[[Channel], Reply],
        types: Any,
        note: Callable[[Any], None] = lambda _: None,
        seconds: float = 0.0,
        subject: TrialSubject | None = None,
    ) -> Reply | None:
        """Returns the reply of `work` in a child process, or `None`; `note` receives earlier messages.

        The time limit is `seconds`, by default that of a step of a trial of `subject`.
        """
        limit = seconds or (self._limit(subject) if subject is not None else self.criterion.each)
        ended = run_in_child(
            self.master, Task(work, _error_result, types | TrialResult | Refused | Trouble, note, limit)
        )
        if ended.how == "stopped":
            raise Stopped
        return ended.reply


def _outcome_of_end(ended: TaskEnd, step: int) -> RecipeOutcome:
    if ended.how == "late":
        return RecipeOutcome("hangs", step)
    if isinstance(ended.reply, Refused):
        return RecipeOutcome("fails", step, ended.reply.diagnostic.what)
    return RecipeOutcome("crashes", step, ended.status)


def identity(recipe: Recipe) -> str:
    """The part of a recipe that determines the compilation: disabled steps do not count."""
    steps = [(step.name, step.level, step.anchor, step.options) for step in recipe.steps if step.enabled]
    return digest(steps, recipe.dialect, recipe.partition, recipe.choices, recipe.threads, recipe.opt_level)


def _error_result(error: Exception) -> Reply:
    if isinstance(error, CompilationError):
        found = error.diagnostic
        return TrialResult("fails", found.step if found.step >= 0 else LOWERING, found.what)
    return TrialResult("fails", LOWERING, f"{type(error).__name__}: {error}")


class _LastStepDone(BaseException):
    """The last step of a trial has finished."""


def _run_trial(channel: Channel, subject: TrialSubject, recipe: Recipe, first: Any, times: float, until: int) -> Reply:
    """Runs a trial in the process of the trial."""
    lowered: dict[str, str] = {}
    reached = LOWERING

    def begins(step: int) -> None:
        nonlocal reached
        if until != EVERY and reached == until:
            raise _LastStepDone
        reached = step
        channel.send(TrialStep(step))

    try:
        artifact = compile_graph(
            subject.part.graph,
            recipe,
            first,
            on_lowered=lambda found: lowered.update({a.node: a.lowering for a in found.assignments}),
            on_step=begins,
        )
    except _LastStepDone:
        return TrialResult("right", until, lowered=lowered)
    channel.send(TrialStep(RUN))
    torch.set_num_threads(recipe.threads)
    with torch.no_grad():
        torch.manual_seed(SEED)
        results = LoadedProgram(artifact)(subject.part.tensors, subject.part.numbers)
        worst, text = _difference(subject, results, times)
    kind: Kind = "differs" if worst > 1.0 else "right"
    return TrialResult(kind, RUN, text, worst, to_bytes(artifact), lowered)


def _difference(subject: TrialSubject, results: Sequence[torch.Tensor], times: float) -> tuple[float, str]:
    """The greatest difference of a result from eager's, as a multiple of the tolerance, and the name of the result."""
    found = iter(results)
    worst, text = 0.0, ""
    for name, value in zip(map(str, subject.part.graph.results), subject.expected, strict=True):
        if not isinstance(value, torch.Tensor):
            continue
        allowed = _tolerance_of(value.dtype, times)
        report = compare(name, next(found, None), value, allowed, equal_nan=True)
        if report.verdict == "ok":
            continue
        ratio = _tolerance_ratio(report.max_abs, value, allowed) if report.verdict == "mismatch" else float("inf")
        if ratio > worst:
            worst, text = ratio, f"{name} by {report.max_abs:.3g} at {report.where}"
    return worst, text


def _tolerance_of(dtype: torch.dtype, times: float) -> Tolerance:
    own = TOLERANCES.get(dtype, EXACT)
    return own if own == EXACT else Tolerance(own.absolute * times, own.relative * times)


def _tolerance_ratio(error: float, eager: torch.Tensor, allowed: Tolerance) -> float:
    """The greatest difference as a multiple of the absolute tolerance, more than 1 since an element exceeds it."""
    if allowed == EXACT:
        return float("inf")
    rms = float(eager[eager.isfinite()].abs().double().square().mean().sqrt()) if eager.numel() else 0.0
    return max(1.0 + 1e-9, error / allowed.bound(rms))


def artifact_of(outcome: RecipeOutcome) -> Artifact:
    """The artifact of a trial that was right."""
    return from_bytes(outcome.artifact)


def warm_up(trials: RecipeTrials, dialect: Any) -> None:
    """Compiles a small program, first in a child, because a plug-in that replaces compiler code may crash."""
    own_passes()
    registries(dialect)
    recipe = default_recipe(dialect=dialect)
    (captured,) = capture(_program, (torch.ones(2, 16),))

    def work(_channel: Any) -> Reply:
        compile_graph(captured.graph, recipe)
        return Done()

    if isinstance(trials.run_in_child(work, Done, seconds=_PATIENCE), Done):
        compile_graph(captured.graph, recipe)


# Time limit of the warm-up in seconds, many times its usual duration.
_PATIENCE = 10.0


def _program(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(functional.layer_norm(functional.gelu(functional.linear(x, x)), (2,)), -1)
