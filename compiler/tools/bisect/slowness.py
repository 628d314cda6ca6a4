"""Finds the pass that makes a program slow, by interleaved runs of two compilations."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from buddy.compiler.protocol import BisectionResult
from buddy.compiler.protocol.artifact import from_bytes
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Reply
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.tools.bisect import nodes, reproducing, steps
from buddy.compiler.tools.bisect.trials import RecipeOutcome, RecipeTrials, Tell, TrialSubject
from buddy.compiler.tools.extract import Subgraph

_LEAST, _MOST = 7, 101
# Shorter samples are dominated by the clock and the call overhead.
_SAMPLE = 1e-3
_SECONDS = 6.0
# A multiple of the time limit of a step: both programs are linked, packed, and run about ten times.
_LOADING = 4


class TimeRatio(Reply, frozen=True):
    """The ratio of the first time to the second: the median of paired runs, and its 95 % confidence interval."""

    median: float
    low: float
    high: float
    pairs: int


def ratio(
    trials: RecipeTrials, part: Subgraph, first: bytes, second: bytes, threads: int, bound: float
) -> TimeRatio | None:
    """The ratio of the times of two artifacts on `part`; `None` if they do not finish.

    Measures until the ratio is significantly above or below `bound`, or for a few seconds.
    """

    def work(_channel: Channel) -> Reply:
        torch.set_num_threads(threads)
        with torch.no_grad():
            sides = [LoadedProgram(from_bytes(data), frozen=True) for data in (first, second)]
            return time_pairs([partial(side, part.tensors, part.numbers) for side in sides], bound)

    found = trials.run_in_child(work, TimeRatio, seconds=_LOADING * trials.criterion.each + _SECONDS)
    return found if isinstance(found, TimeRatio) else None


def time_pairs(sides: Sequence[Callable[[], Any]], bound: float) -> TimeRatio:
    """The ratio of the times of two sides.

    Measures pairs of samples until the ratio is significantly above or below `bound`, or for a few seconds. A sample
    has enough calls of each side for the minimum duration.
    """
    once = [_seconds(side, 1) for side in sides for _ in range(2)][1::2]
    times = max(1, math.ceil(_SAMPLE / max(min(once), 1e-9)))
    ratios: list[float] = []
    deadline = time.monotonic() + _SECONDS
    while len(ratios) < _MOST and (len(ratios) < _LEAST or time.monotonic() < deadline):
        ratios.append(_seconds(sides[0], times) / _seconds(sides[1], times))
        low, high = interval(ratios)
        if len(ratios) >= _LEAST and not low <= bound <= high:
            break
    low, high = interval(ratios)
    return TimeRatio(statistics.median(ratios), low, high, len(ratios))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """The distribution-free 95 % confidence interval of the median.

    Its ends are the order statistics of the sign test, by the normal approximation of the binomial distribution.
    """
    ordered, count = sorted(values), len(values)
    rank = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[rank], ordered[count - 1 - rank]


def _seconds(action: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - start) / times


# For programs with more nodes, only the largest function is tried.
_LARGE = 96


def find_slowing_step(
    trials: RecipeTrials, whole: TrialSubject, recipe: Recipe, first: RecipeOutcome, say: Tell
) -> BisectionResult:
    """Finds the step without which the program is `criterion.slower` times as fast; of several, the most expensive.

    Steps that the recipe's preset does not have are tried first; if one of them is responsible, the others are not
    tried.
    """
    if not first.artifact:
        return BisectionResult(f"nothing to time: {first.describe(recipe)}", recipe, first.describe(recipe))
    part = _largest_function(whole, recipe)
    for places in _candidates(recipe):
        found = {}
        for place in places:
            if not trials.time_is_up:
                say(f"without {recipe.steps[place].name}, on {len(part.part.graph.operations)} nodes", 0.5)
                gain = _measure_gain(trials, part, recipe, place)
                if gain is not None and gain.low > trials.criterion.slower:
                    found[place] = gain
        if found:
            worst = max(found, key=lambda place: found[place].median)
            return _make_result(trials, whole, part, recipe, worst, say)
    return BisectionResult(f"no pass makes it {trials.criterion.slower:g} times as slow or more", recipe)


def _largest_function(whole: TrialSubject, recipe: Recipe) -> TrialSubject:
    """The function with most of a large program's nodes, with its real inputs; a small program itself."""
    if len(whole.part.graph.operations) <= _LARGE:
        return whole
    return next((found for found in nodes.functions_of(whole, recipe)), whole)


def _candidates(recipe: Recipe) -> tuple[list[int], list[int]]:
    """The optional steps: those that the preset of that name does not have, and the others."""
    known = presets().get(recipe.preset)
    usual = Counter((step.name, step.anchor) for step in known.recipe.steps if step.enabled) if known else Counter()
    foreign, others = list[int](), list[int]()
    for place in steps.optional_steps(recipe):
        step = recipe.steps[place]
        usual[step.name, step.anchor] -= 1
        (foreign if usual[step.name, step.anchor] < 0 or steps.origin(step) else others).append(place)
    return foreign, others


def _measure_gain(trials: RecipeTrials, part: TrialSubject, recipe: Recipe, place: int) -> TimeRatio | None:
    """The ratio of the program's time with step `place` to that without; `None` if it cannot be measured."""
    slow, fast = trials(part, recipe), trials(part, steps.without_steps(recipe, [place]))
    if not fast.artifact or fast.artifact == slow.artifact:
        return None
    return ratio(trials, part.part, slow.artifact, fast.artifact, recipe.threads, trials.criterion.slower)


def _make_result(
    trials: RecipeTrials, whole: TrialSubject, part: TrialSubject, recipe: Recipe, place: int, say: Tell
) -> BisectionResult:
    """Describes the most expensive step: its share of the whole program's time, and the nodes it slows down."""
    say("the whole program with and without it", 0.8)
    bound = trials.criterion.slower
    gain = _measure_gain(trials, whole, recipe, place)
    blamed = steps.culprits(recipe, [place])
    name = f"{blamed[0].step.name}{blamed[0].origin and f' ({blamed[0].origin})'}"

    def slows(found: TrialSubject) -> bool:
        if trials.time_is_up:
            return False
        say(f"{name} is at fault; {len(found.part.graph.operations)} nodes with and without it", 0.9)
        told = _measure_gain(trials, found, recipe, place)
        return told is not None and told.low > bound

    small = nodes.smallest_failing_part(part, recipe, slows)
    made = reproducing.reproducer(trials, small, recipe, place)
    confirmed = gain is not None and gain.low > 1.0
    times = f"takes {gain.median:.2f} times ({gain.low:.2f} to {gain.high:.2f}) as long" if gain is not None else ""
    return BisectionResult(
        f"{name} is at fault: with it the program {times or 'does not finish in time'}",
        steps.without_steps(recipe, [place]),
        "it is slower than without the pass",
        blamed,
        nodes=tuple(nodes.computing_nodes(small.part)),
        confirmed=confirmed,
        functions=made.functions,
        name=made.name,
        before=made.before,
        after=made.after,
        command=made.command,
    )
