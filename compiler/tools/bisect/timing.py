"""Finds the faster of two compilations by interleaved runs, until the difference is significant."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from buddy.compiler.protocol.artifact import from_bytes
from buddy.compiler.protocol.worker_messages import Reply
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.tools.bisect.trials import RecipeTrials
from buddy.compiler.tools.extract import Subgraph

_LEAST, _MOST = 7, 101
# Shorter samples are dominated by the clock and the call overhead.
_SAMPLE = 1e-3
_SECONDS = 6.0
# Both programs are linked, packed, and run about ten times however slow they are: several times the limit of a step.
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
    """The ratio of the times of two artifacts on `part`, measured until it is significantly above or below `bound`,
    or for a few seconds. `None` if they do not finish.
    """

    def work(_channel: Channel) -> Reply:
        torch.set_num_threads(threads)
        with torch.no_grad():
            sides = [LoadedProgram(from_bytes(data), frozen=True) for data in (first, second)]
            return paired([partial(side, part.tensors, part.numbers) for side in sides], bound)

    found = trials.apart(work, TimeRatio, seconds=_LOADING * trials.criterion.each + _SECONDS)
    return found if isinstance(found, TimeRatio) else None


def paired(sides: Sequence[Callable[[], Any]], bound: float) -> TimeRatio:
    """The ratio of the times of two sides, measured until it is significantly above or below `bound`, or for a few
    seconds.

    Measures pairs of samples; a sample has enough calls of each side for the minimum duration.
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
    """The distribution-free 95 % confidence interval of the median: the order statistics of the sign test, with the
    normal approximation of the binomial distribution.
    """
    ordered, count = sorted(values), len(values)
    rank = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[rank], ordered[count - 1 - rank]


def _seconds(action: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - start) / times
