"""Tries recipes on a loaded program: compiles each in a child process, compares it with eager, and times it."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Refused, Reply, Trouble
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.graph_interpreter import SEED
from buddy.compiler.runtime.measure import timed, with_threads
from buddy.compiler.runtime.sensitivity import compared
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forks import Task, TaskEnd, run_in_child
from buddy.compiler.tools.bisect.slowness import time_pairs
from buddy.compiler.tools.tune.messages import CompareRecipes, RecipesCompared, RecipeTried, TryRecipe

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph, Eager

_LEAST, _MOST = 3, 50
_SECONDS = 0.6
# A recipe that is this many times slower than the best one is not timed after its first pair of runs.
_HOPELESS = 1.5


def serve_attempts(channel: Channel, captured: CapturedGraph) -> None:
    """Answers `TryRecipe` and `CompareRecipes` with graph `captured`, until the channel closes."""
    while (request := channel.receive()) is not None:
        if isinstance(request, TryRecipe):
            channel.send(_try_in_child(channel, captured, request))
        elif isinstance(request, CompareRecipes):
            channel.send(_compare_in_child(channel, captured, request))


def _try_in_child(channel: Channel, captured: CapturedGraph, request: TryRecipe) -> Reply:
    found = _run_in_child(channel, lambda _: try_recipe(captured, request), RecipeTried, request.each)
    return found.reply if isinstance(found.reply, RecipeTried) else RecipeTried(problem=_problem(found, request.each))


def _compare_in_child(channel: Channel, captured: CapturedGraph, request: CompareRecipes) -> Reply:
    found = _run_in_child(channel, lambda _: _compare_recipes(captured, request), RecipesCompared, request.each)
    return (
        found.reply
        if isinstance(found.reply, RecipesCompared)
        else RecipesCompared(problem=_problem(found, request.each))
    )


def _run_in_child(channel: Channel, work: Callable[[Channel], Reply], kind: Any, seconds: float) -> TaskEnd:
    types = kind | Refused | Trouble
    return run_in_child(channel, Task(work, _error_reply(kind), types, lambda _: None, seconds))


def _error_reply(kind: type[RecipeTried] | type[RecipesCompared]) -> Callable[[Exception], Reply]:
    def reply(error: Exception) -> Reply:
        if isinstance(error, CompilationError):
            return kind(problem=error.diagnostic.what)
        return kind(problem=f"{type(error).__name__}: {error}")

    return reply


def _problem(found: TaskEnd, seconds: float) -> str:
    if found.how == "late":
        return f"not done in {seconds:g} s"
    return f"crashed: {found.status}" if found.how == "crashed" else found.how


def try_recipe(captured: CapturedGraph, request: TryRecipe) -> RecipeTried:
    """Tries one recipe in this process. Raises `CompilationError`, and exceptions of ops in eager."""
    if captured.eager is None:
        return RecipeTried(problem="there is no reference for its results")
    artifact, seconds = timed(lambda: _compiled(captured, request.recipe))
    with with_threads(request.recipe.threads), torch.no_grad():
        program = LoadedProgram(artifact, frozen=True)
        problem = _difference(captured, captured.eager, program)
        if problem:
            return RecipeTried(compile_seconds=seconds, problem=problem)
        ours, theirs = _time_pairs(captured, captured.timed or captured.eager, program, request)
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return RecipeTried(statistics.median(ratios), statistics.median(ours), statistics.median(theirs), seconds)


def _compiled(captured: CapturedGraph, recipe: Recipe) -> Artifact:
    first: Any = captured.first()
    return compile_graph(captured.graph, recipe, first)


def _difference(captured: CapturedGraph, eager: Eager, program: LoadedProgram) -> str:
    """Describes a result that differs from eager's; empty if all agree."""
    torch.manual_seed(SEED)
    results = iter(program(captured.tensors, captured.numbers))
    torch.manual_seed(SEED)
    tensors = 0
    expected = eager(captured.tensors)
    for index, value in enumerate(expected):
        if isinstance(value, torch.Tensor):
            report = compared(captured, expected, index, next(results, None), equal_nan=True)
            tensors += 1
            if report.verdict != "ok":
                return f"{report.name} differs from eager by {report.max_abs:.3g}"
    if next(results, None) is not None:
        return "it returns more results than eager"
    return "" if tensors else "it returns no tensor, so it cannot be compared with eager"


def _time_pairs(
    captured: CapturedGraph, eager: Eager, program: LoadedProgram, request: TryRecipe
) -> tuple[list[float], list[float]]:
    """Seconds of interleaved compiled and eager runs, which stop early if the recipe cannot reach the best ratio."""
    ours: list[float] = []
    theirs: list[float] = []
    deadline = time.monotonic() + _SECONDS
    while len(ours) < _MOST and (len(ours) < _LEAST or time.monotonic() < deadline):
        ours.append(timed(lambda: program(captured.tensors, captured.numbers))[1])
        with with_threads(request.eager_threads):
            theirs.append(timed(lambda: eager(captured.tensors))[1])
        if not math.isinf(request.bound) and ours[0] > _HOPELESS * request.bound * theirs[0]:
            break
    return ours, theirs


def _compare_recipes(captured: CapturedGraph, request: CompareRecipes) -> Reply:
    def program(recipe: Recipe) -> Callable[[], Any]:
        loaded = LoadedProgram(_compiled(captured, recipe), frozen=True)
        return lambda: loaded(captured.tensors, captured.numbers)

    with with_threads(request.first.threads), torch.no_grad():
        found = time_pairs([program(request.first), program(request.second)], 1.0)
    return RecipesCompared(found.median, found.low, found.high)
