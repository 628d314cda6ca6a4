"""Finds the pass that makes a program slow, by interleaved runs of two compilations."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

import torch

from buddy.compiler.protocol import BisectionResult
from buddy.compiler.protocol.artifact import from_bytes
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.worker_messages import Reply
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.tools.bisect import faults, reproducing
from buddy.compiler.tools.bisect.trials import OnProgress, RecipeOutcome, RecipeTrials, TrialSubject
from buddy.compiler.tools.extract import Subgraph

# The numbers of pairs of samples in a measurement.
_MIN_PAIRS, _MAX_PAIRS = 7, 101
# The minimum duration of a sample in seconds; the clock's resolution and the overhead of calls distort shorter ones.
_SAMPLE_SECONDS = 1e-3
# The time limit in seconds for the samples of a measurement.
_MAX_SAMPLING_SECONDS = 6.0
# The time limit for a measurement without its samples, as a multiple of the time limit for a step: both programs are
# linked, their weights are packed, and they run about ten times.
_LOADING_LIMIT_FACTOR = 4


class TimeRatio(Reply, frozen=True):
    """The ratio of two times: the median over paired samples, and its 95 % confidence interval."""

    median: float
    low: float
    high: float
    pairs: int


def measure_ratio(
    trials: RecipeTrials, part: Subgraph, first: bytes, second: bytes, threads: int, bound: float
) -> TimeRatio | None:
    """Returns the ratio of the times of artifacts `first` and `second` on `part`; `None` if the runs do not finish.

    Measures like `time_pairs`.
    """

    def work(_channel: Channel) -> Reply:
        torch.set_num_threads(threads)
        with torch.no_grad():
            programs = [LoadedProgram(from_bytes(artifact), frozen=True) for artifact in (first, second)]
            return time_pairs([partial(program, part.tensors, part.numbers) for program in programs], bound)

    reply = trials.run_in_child(
        work, TimeRatio, seconds=_LOADING_LIMIT_FACTOR * trials.criterion.step_seconds + _MAX_SAMPLING_SECONDS
    )
    return reply if isinstance(reply, TimeRatio) else None


def time_pairs(programs: Sequence[Callable[[], object]], bound: float) -> TimeRatio:
    """Returns the ratio of the time of the first of two programs to that of the second.

    Measures pairs of samples until the ratio is significantly above or below `bound`, or for `_MAX_SAMPLING_SECONDS`. A
    sample has as many calls as the faster program needs for `_SAMPLE_SECONDS`.
    """
    # Each program is called twice; the first call warms up, so only the second one counts.
    call_seconds = [_seconds_per_call(program, 1) for program in programs for _ in range(2)][1::2]
    calls = max(1, math.ceil(_SAMPLE_SECONDS / max(min(call_seconds), 1e-9)))
    ratios: list[float] = []
    deadline = time.monotonic() + _MAX_SAMPLING_SECONDS
    while len(ratios) < _MAX_PAIRS and (len(ratios) < _MIN_PAIRS or time.monotonic() < deadline):
        ratios.append(_seconds_per_call(programs[0], calls) / _seconds_per_call(programs[1], calls))
        low, high = sign_test_interval(ratios)
        if len(ratios) >= _MIN_PAIRS and not low <= bound <= high:
            break
    low, high = sign_test_interval(ratios)
    return TimeRatio(statistics.median(ratios), low, high, len(ratios))


def sign_test_interval(values: Sequence[float]) -> tuple[float, float]:
    """Returns the distribution-free 95 % confidence interval of the median.

    Its ends are the order statistics of the sign test, by the normal approximation of the binomial distribution.
    """
    ordered, count = sorted(values), len(values)
    # 95 % of a normal distribution is within 1.96 deviations of its mean.
    rank = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[rank], ordered[count - 1 - rank]


def _seconds_per_call(program: Callable[[], object], calls: int) -> float:
    """Makes a number of calls, and returns their mean duration."""
    start = time.perf_counter()
    for _ in range(calls):
        program()
    return (time.perf_counter() - start) / calls


# ---- search ----------------------------------------------------------------------------------------------------------

# In programs with more nodes, only the largest function is measured: each trial compiles its nodes again.
_MAX_WHOLE_NODES = 96


def find_slowing_step(
    trials: RecipeTrials, whole: TrialSubject, recipe: Recipe, outcome: RecipeOutcome, report: OnProgress
) -> BisectionResult:
    """Finds the step without which the program is at least `criterion.slower` times as fast.

    Of several such steps, it finds the one with the greatest speedup. Steps that the recipe's preset lacks are tried
    first; if one of them is responsible, the others are not tried. `outcome` is that of the unmodified program.
    """
    if not outcome.artifact:
        return BisectionResult(f"nothing to time: {outcome.describe(recipe)}", recipe, outcome.describe(recipe))
    part = _largest_function(whole, recipe)
    for indices in _candidate_steps(recipe):
        speedups = {}
        for index in indices:
            if not trials.time_is_up:
                report(f"without {recipe.steps[index].name}, on {len(part.subgraph.graph.operations)} nodes", 0.5)
                speedup = _measure_speedup(trials, part, recipe, index)
                if speedup is not None and speedup.low > trials.criterion.slower:
                    speedups[index] = speedup
        if speedups:
            worst = max(speedups, key=lambda index: speedups[index].median)
            return _make_result(trials, whole, part, recipe, worst, report)
    return BisectionResult(f"no pass makes the program {trials.criterion.slower:g} times as slow or more", recipe)


def _largest_function(whole: TrialSubject, recipe: Recipe) -> TrialSubject:
    """Returns the function with the most nodes of a large program, with its real inputs; a small program itself."""
    if len(whole.subgraph.graph.operations) <= _MAX_WHOLE_NODES:
        return whole
    return next(iter(faults.function_subjects(whole, recipe)), whole)


def _candidate_steps(recipe: Recipe) -> tuple[list[int], list[int]]:
    """Returns the optional steps: those that the recipe's preset lacks or that plug-ins define, and the others."""
    preset = presets().get(recipe.preset)
    preset_steps = preset.recipe.steps if preset else ()
    unmatched_preset_steps = Counter((step.name, step.anchor) for step in preset_steps if step.enabled)
    added, others = list[int](), list[int]()
    for index in faults.optional_steps(recipe):
        step = recipe.steps[index]
        unmatched_preset_steps[step.name, step.anchor] -= 1
        is_added = unmatched_preset_steps[step.name, step.anchor] < 0 or faults.plugin_of_step(step)
        (added if is_added else others).append(index)
    return added, others


def _measure_speedup(trials: RecipeTrials, part: TrialSubject, recipe: Recipe, index: int) -> TimeRatio | None:
    """Returns the ratio of the program's time with step `index` to that without; `None` if it cannot be measured."""
    with_step, without_step = trials(part, recipe), trials(part, faults.without_steps(recipe, [index]))
    if not without_step.artifact or without_step.artifact == with_step.artifact:
        return None
    bound = trials.criterion.slower
    return measure_ratio(trials, part.subgraph, with_step.artifact, without_step.artifact, recipe.threads, bound)


def _make_result(
    trials: RecipeTrials, whole: TrialSubject, part: TrialSubject, recipe: Recipe, index: int, report: OnProgress
) -> BisectionResult:
    """Returns the result with step `index` as the culprit: its effect on the program, and the nodes it slows down."""
    report("the whole program with and without it", 0.8)
    bound = trials.criterion.slower
    speedup = _measure_speedup(trials, whole, recipe, index)
    culprits = faults.make_culprits(recipe, [index])
    name = faults.culprit_label(culprits[0])

    def is_slowed(subject: TrialSubject) -> bool:
        if trials.time_is_up:
            return False
        report(f"{name} is at fault; {len(subject.subgraph.graph.operations)} nodes with and without it", 0.9)
        subject_speedup = _measure_speedup(trials, subject, recipe, index)
        return subject_speedup is not None and subject_speedup.low > bound

    small = faults.smallest_failing_part(part, recipe, is_slowed)
    reproducer = reproducing.make_reproducer(trials, small, recipe, index)
    confirmed = speedup is not None and speedup.low > 1.0
    effect = "does not finish in time"
    if speedup is not None:
        effect = f"takes {speedup.median:.2f} times ({speedup.low:.2f} to {speedup.high:.2f}) as long"
    return BisectionResult(
        f"{name} is at fault: with it the program {effect}",
        faults.without_steps(recipe, [index]),
        "it is slower than without the pass",
        culprits,
        nodes=tuple(faults.computing_nodes(small.subgraph)),
        confirmed=confirmed,
        functions=reproducer.functions,
        name=reproducer.file_name,
        before=reproducer.before,
        after=reproducer.after,
        command=reproducer.command,
    )
