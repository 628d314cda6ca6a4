"""Tries recipes: compiles a subgraph with a recipe in a fork of a warm process, runs it, and compares it with eager."""

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
from buddy.compiler.graph.serialization import graph_hash
from buddy.compiler.ops import registries
from buddy.compiler.ops.lowering import LoweredModule
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.protocol import Criterion
from buddy.compiler.protocol.artifact import to_bytes
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.presets import default_recipe
from buddy.compiler.protocol.recipe import CODE_STEP, LOWERING_STEP, Recipe, digest
from buddy.compiler.protocol.worker_messages import Done, LogText, Message, Reply
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.compare import EXACT, Tolerance, compare, tolerance_of
from buddy.compiler.runtime.graph_interpreter import SEED
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import Task, TaskEnd, run_in_child
from buddy.compiler.tools.extract import Subgraph

OutcomeKind = Literal["right", "fails", "crashes", "hangs", "differs"]
# Called with a description of the current trial, and the completed fraction of the search.
OnProgress = Callable[[str, float], None]

# The step that runs the program; the others are those of the recipe, `LOWERING_STEP` and `CODE_STEP`.
RUN_STEP = -3
# The value of `until`, the last step of a trial, to compile and run the program to the end.
UNTIL_END = -4

# The fixed part of the time limit for a step, in seconds; the steps of the smallest subgraphs take much less.
_BASE_STEP_SECONDS = 3.0


class BisectionStopped(BuddyError):
    """The requester stopped the bisection, or disconnected."""


class TrialStep(Message, frozen=True):
    """The trial starts `step`: the index of a step of the recipe, `LOWERING_STEP`, `CODE_STEP` or `RUN_STEP`."""

    step: int


class TrialResult(Reply, frozen=True):
    """The result that the process of a trial sends at its end; `kind` is therefore never "crashes" or "hangs".

    The fields are those of `RecipeOutcome`.
    """

    kind: OutcomeKind
    step: int = LOWERING_STEP
    text: str = ""
    worst: float = 0.0
    artifact: bytes = b""
    lowered: Mapping[str, str] = {}


@dataclass(frozen=True)
class RecipeOutcome:
    """How a trial ended, and at which step; `text` is the reason of a failure, or describes the greatest difference.

    In a trial with `until`, the kind "right" means only that this step finished. `worst` is the greatest difference
    from eager as a multiple of the tolerance, 0 if all results are within it. `artifact` is the compiled program, b""
    unless it ran to its end. `lowered` maps nodes to the registries that lowered them; it is empty if the trial failed,
    crashed or did not end.
    """

    kind: OutcomeKind
    step: int = LOWERING_STEP
    text: str = ""
    worst: float = 0.0
    artifact: bytes = b""
    lowered: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_right(self) -> bool:
        return self.kind == "right"

    def describe(self, recipe: Recipe) -> str:
        if self.is_right:
            return "it matches eager"
        if self.kind == "differs":
            return f"its results differ from eager's, {self.worst:.3g} times the tolerance: {self.text}"
        what = {"fails": "it fails", "crashes": "the process crashes", "hangs": "it does not end in time"}[self.kind]
        return f"{what} {position_text(self.step, recipe)}" + (f": {self.text}" if self.text else "")


def position_text(step: int, recipe: Recipe) -> str:
    """Returns a phrase for messages, such as "in pass cse (step 3)"."""
    if step >= 0:
        return f"in pass {recipe.steps[step].name} (step {step + 1})"
    return {LOWERING_STEP: "in lowering", CODE_STEP: "in generating machine code", RUN_STEP: "when it runs"}[step]


@dataclass(frozen=True)
class TrialSubject:
    """A subgraph with eager's results (`expected`).

    `key` is a hash of its graph, including the node names, so different subgraphs of a program have different keys.
    """

    subgraph: Subgraph
    expected: list[Any]
    key: str


def make_subject(subgraph: Subgraph, eager: Callable[[Sequence[torch.Tensor]], list[torch.Tensor]]) -> TrialSubject:
    """Runs `eager` on the inputs of a subgraph; returns the subgraph with the results."""
    torch.manual_seed(SEED)
    with torch.no_grad():
        expected = eager(subgraph.tensors)
    return TrialSubject(subgraph, expected, graph_hash(subgraph.graph))


@dataclass
class RecipeTrials:
    """Tries recipes on subgraphs, each combination once.

    Raises `BisectionStopped` when the client stops the bisection or disconnects. `requester` is the channel to the
    client; the trials read only a request to stop from this channel. `overrides` returns the registry of the lowerings
    that override all others. `count` is the number of trials so far.
    """

    requester: Channel
    criterion: Criterion
    overrides: Callable[[], Any]
    count: int = 0
    _largest_node_count: int = 0
    _outcomes: dict[tuple[str, str, int], RecipeOutcome] = field(default_factory=dict)
    _start_time: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The seconds since the bisection started."""
        return time.monotonic() - self._start_time

    @property
    def time_is_up(self) -> bool:
        """Whether the time limit of the bisection has passed."""
        return self.seconds > self.criterion.seconds

    def has_outcome(self, subject: TrialSubject, recipe: Recipe, until: int = UNTIL_END) -> bool:
        return (subject.key, recipe_identity(recipe), until) in self._outcomes

    def __call__(self, subject: TrialSubject, recipe: Recipe, until: int = UNTIL_END) -> RecipeOutcome:
        """Returns the outcome of `recipe` on `subject`; with `until`, stops when the step after it would start."""
        key = subject.key, recipe_identity(recipe), until
        if key not in self._outcomes:
            self.count += 1
            self._outcomes[key] = self._try(subject, recipe, until)
        return self._outcomes[key]

    def _try(self, subject: TrialSubject, recipe: Recipe, until: int) -> RecipeOutcome:
        started_steps = [LOWERING_STEP]

        def on_message(message: Any) -> None:
            if isinstance(message, TrialStep):
                started_steps.append(message.step)

        def work(channel: Channel) -> Reply:
            return _run_trial(channel, subject, recipe, self.overrides(), self.criterion.tolerance, until)

        limit = self._step_limit(subject)
        task = Task(work, _error_result, TrialStep | TrialResult | LogText, on_message, limit, is_renewed=True)
        end = run_in_child(self.requester, task)
        if end.how == "stopped":
            raise BisectionStopped
        if isinstance(end.reply, TrialResult):
            result = end.reply
            step = result.step if result.kind == "fails" and result.step >= 0 else started_steps[-1]
            return RecipeOutcome(result.kind, step, result.text, result.worst, result.artifact, result.lowered)
        return _outcome_of_end(end, started_steps[-1])

    def _step_limit(self, subject: TrialSubject) -> float:
        """Returns the time limit for a step of a trial in seconds, which grows with the size of the subgraph.

        The limit is for one step, so a long pipeline on a slow machine does not exceed it.
        """
        nodes = len(subject.subgraph.graph.operations)
        self._largest_node_count = max(self._largest_node_count, nodes, 1)
        longest = self.criterion.step_seconds
        return min(longest, _BASE_STEP_SECONDS + longest * nodes / self._largest_node_count)

    def run_in_child(
        self,
        work: Callable[[Channel], Reply],
        message_types: Any,
        on_message: Callable[[Any], None] = lambda _: None,
        seconds: float = 0.0,
        subject: TrialSubject | None = None,
    ) -> Reply | None:
        """Returns the reply of `work` in a child process; `on_message` gets earlier messages.

        Returns a failed `TrialResult` if `work` raises, and `None` if the child crashes or exceeds the time limit. The
        limit is `seconds`; if that is 0, the limit for a step of a trial of `subject`; without a subject,
        `criterion.step_seconds`.
        """
        limit = seconds or (self._step_limit(subject) if subject is not None else self.criterion.step_seconds)
        task = Task(work, _error_result, message_types | TrialResult | LogText, on_message, limit)
        end = run_in_child(self.requester, task)
        if end.how == "stopped":
            raise BisectionStopped
        return end.reply


def _outcome_of_end(end: TaskEnd, step: int) -> RecipeOutcome:
    """Returns the outcome of a trial whose process ended without a result, in `step`."""
    if end.how == "late":
        return RecipeOutcome("hangs", step)
    return RecipeOutcome("crashes", step, end.status)


def recipe_identity(recipe: Recipe) -> str:
    """Returns a hash of all parts of a recipe that affect a trial; disabled steps do not count."""
    steps = [(step.name, step.level, step.anchor, step.options) for step in recipe.steps if step.enabled]
    return digest(
        steps, recipe.dialect, recipe.partition, recipe.choices, recipe.threads, recipe.opt_level, recipe.precision,
        recipe.precisions,
    )  # fmt: skip


def _error_result(error: Exception) -> Reply:
    """Returns the result of a trial whose compilation or run raised `error`."""
    if isinstance(error, CompilationError):
        diagnostic = error.diagnostic
        return TrialResult("fails", diagnostic.step if diagnostic.step >= 0 else LOWERING_STEP, diagnostic.what)
    return TrialResult("fails", LOWERING_STEP, f"{type(error).__name__}: {error}")


class _LastStepDone(BaseException):
    """Ends a trial whose last step has finished; it is no `Exception`, because the compiler catches these."""


def _run_trial(
    channel: Channel, subject: TrialSubject, recipe: Recipe, overrides: Any, tolerance_factor: float, until: int
) -> Reply:
    """Runs a trial, in its own process, and sends a `TrialStep` before each step.

    `overrides` are the user's lowerings, `tolerance_factor` multiplies the tolerances, and `until` is the last step.
    """
    lowered: dict[str, str] = {}
    current_step = LOWERING_STEP

    def on_lowered(module: LoweredModule) -> None:
        lowered.update({assigned.node: assigned.lowering for assigned in module.assignments})

    def on_step(step: int) -> None:
        nonlocal current_step
        if until != UNTIL_END and current_step == until:
            raise _LastStepDone
        current_step = step
        channel.send(TrialStep(step))

    try:
        artifact = compile_graph(
            subject.subgraph.graph,
            recipe,
            overrides,
            on_lowered=on_lowered,
            on_step=on_step,
        )
    except _LastStepDone:
        return TrialResult("right", until, lowered=lowered)
    channel.send(TrialStep(RUN_STEP))
    torch.set_num_threads(recipe.threads)
    with torch.no_grad():
        torch.manual_seed(SEED)
        results = LoadedProgram(artifact)(subject.subgraph.tensors, subject.subgraph.numbers)
        worst, text = _compare_with_eager(subject, results, tolerance_factor)
    kind: OutcomeKind = "differs" if worst > 1.0 else "right"
    return TrialResult(kind, RUN_STEP, text, worst, to_bytes(artifact), lowered)


def _compare_with_eager(
    subject: TrialSubject, results: Sequence[torch.Tensor], tolerance_factor: float
) -> tuple[float, str]:
    """Returns the greatest difference from eager's results, as a multiple of the tolerance, and its description.

    The difference is 0 if all results are within the tolerance, and infinite if one is missing or NaN.
    """
    remaining_results = iter(results)
    worst, text = 0.0, ""
    for name, expected in zip(map(str, subject.subgraph.graph.results), subject.expected, strict=True):
        if not isinstance(expected, torch.Tensor):
            continue
        allowed = _scaled_tolerance(expected.dtype, tolerance_factor)
        report = compare(name, next(remaining_results, None), expected, allowed, equal_nan=True)
        if report.verdict == "ok":
            continue
        ratio = _tolerance_ratio(report.max_abs, expected, allowed) if report.verdict == "mismatch" else float("inf")
        if ratio > worst:
            is_missing = report.verdict == "missing"
            text = f"{name} is {report.where}" if is_missing else f"{name} by {report.max_abs:.3g} at {report.where}"
            worst = ratio
    return worst, text


def _scaled_tolerance(dtype: torch.dtype, tolerance_factor: float) -> Tolerance:
    """Returns the tolerance of an element type, multiplied by a factor; equality stays equality."""
    tolerance = tolerance_of(dtype)
    if tolerance == EXACT:
        return tolerance
    return Tolerance(tolerance.absolute * tolerance_factor, tolerance.relative * tolerance_factor)


def _tolerance_ratio(error: float, eager: torch.Tensor, allowed: Tolerance) -> float:
    """Returns `error`, the greatest difference, as a multiple of the allowed difference from an element that is 0.

    The multiple is at least slightly above 1, because an element is out of tolerance.
    """
    if allowed == EXACT:
        return float("inf")
    rms = float(eager[eager.isfinite()].abs().double().square().mean().sqrt()) if eager.numel() else 0.0
    return max(1.0 + 1e-9, error / allowed.bound(rms))


def warm_up(trials: RecipeTrials, dialect: Any) -> None:
    """Compiles a small program in this process, so that its forks start warm.

    First compiles the program in a child process, which may crash if a plug-in replaces compiler code.
    """
    # These import the passes and the lowerings.
    own_passes()
    registries(dialect)
    recipe = default_recipe(dialect=dialect)
    (captured,) = capture(_warm_up_program, (torch.ones(2, 16),))

    def work(_channel: Any) -> Reply:
        compile_graph(captured.graph, recipe)
        return Done()

    if isinstance(trials.run_in_child(work, Done, seconds=_WARM_UP_SECONDS), Done):
        compile_graph(captured.graph, recipe)


# The time limit for the warm-up in the child, many times its usual duration.
_WARM_UP_SECONDS = 10.0


def _warm_up_program(x: torch.Tensor) -> torch.Tensor:
    return functional.softmax(functional.layer_norm(functional.gelu(functional.linear(x, x)), (2,)), -1)
