"""Which of two compilations is the faster one, by runs taken in turn until that is clear."""

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
from buddy.compiler.tools.bisect.trials import Trials
from buddy.compiler.tools.extract import Part

_LEAST, _MOST = 7, 101
# A sample shorter than this is mostly the clock's and the caller's own.
_SAMPLE = 1e-3
_SECONDS = 6.0
# Both programs are linked and packed, and run some ten times however slow they are: several times what a step may take.
_LOADING = 4


class Ratio(Reply, frozen=True):
    """How many times as long the first takes as the second: the median of paired runs, and the interval that holds it
    with 95 % certainty."""

    median: float
    low: float
    high: float
    pairs: int


def ratio(trials: Trials, part: Part, first: bytes, second: bytes, threads: int, bound: float) -> Ratio | None:
    """How the times of two artifacts compare on `part`; measured until it is clear on which side of `bound` they are,
    or for a few seconds. `None` where they do not come to an end."""

    def work(_channel: Channel) -> Reply:
        torch.set_num_threads(threads)
        with torch.no_grad():
            sides = [LoadedProgram(from_bytes(data), frozen=True) for data in (first, second)]
            return paired([partial(side, part.tensors, part.numbers) for side in sides], bound)

    found = trials.apart(work, Ratio, seconds=_LOADING * trials.criterion.each + _SECONDS)
    return found if isinstance(found, Ratio) else None


def paired(sides: Sequence[Callable[[], Any]], bound: float) -> Ratio:
    """How the times of two sides compare, measured until it is clear on which side of `bound` that is, or for a few
    seconds: pairs of samples, each side as often in a sample as makes the shorter one long enough."""
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
    return Ratio(statistics.median(ratios), low, high, len(ratios))


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Between which values the median lies with 95 % certainty, whatever their distribution: the order statistics of
    the sign test, by the normal approximation of the binomial distribution."""
    ordered, count = sorted(values), len(values)
    rank = max(0, math.floor((count - 1.96 * math.sqrt(count)) / 2))
    return ordered[rank], ordered[count - 1 - rank]


def _seconds(action: Callable[[], Any], times: int) -> float:
    start = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - start) / times
