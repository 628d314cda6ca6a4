"""Searches for the fastest recipe: chooses points of the space, lets workers try them, and records the results.

One variation after another is varied with the others fixed at the best known point (coordinate descent, in a random
order each round). When a round finds nothing better, random points that differ from the best in two or three variations
escape a local minimum (Bergstra and Bengio, "Random Search for Hyper-Parameter Optimization", 2012).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from buddy.compiler.protocol import Attempted, Diagnostic, Tune, Tuned
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.tuning import Point, Space
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune.messages import CompareRecipes, RecipesCompared, RecipeTried, TryRecipe

# Number of draws without a new point after which the space counts as exhausted.
_VAIN = 200


class SearchStrategy:
    """Yields points to try, `start` and the `likely` ones first, and receives their scores.

    Deterministic for the same seed and scores.
    """

    def __init__(self, sizes: Sequence[int], start: Point, seed: int = 0, likely: Sequence[Point] = ()) -> None:
        self._sizes, self._random = tuple(sizes), random.Random(seed)
        self._tried: set[Point] = set()
        self._ahead: deque[Point] = deque([start, *likely])
        self._round: list[int] = []
        self._gained = True
        self.best, self.least = start, math.inf

    def ask(self) -> Point | None:
        """The next point, or `None` after the last."""
        while True:
            while self._ahead:
                point = self._ahead.popleft()
                if point not in self._tried:
                    self._tried.add(point)
                    return point
            if len(self._tried) >= math.prod(self._sizes) or not self._refill():
                return None

    def tell(self, point: Point, score: float) -> bool:
        """Records the score of a point, infinity if it failed; returns whether it is the best so far."""
        if score >= self.least:
            return False
        self.best, self.least, self._gained = point, score, True
        return True

    def again(self, point: Point) -> None:
        """Schedules a point again after a lost worker did not measure it."""
        self._tried.discard(point)
        self._ahead.appendleft(point)

    def _refill(self) -> bool:
        if not self._round and self._gained:
            self._round, self._gained = self._random.sample(range(len(self._sizes)), len(self._sizes)), False
        if self._round:
            axis = self._round.pop()
            self._ahead.extend(_with(self.best, {axis: value}) for value in range(self._sizes[axis]))
            return True
        return self._draw()

    def _draw(self) -> bool:
        count = len(self._sizes)
        for vain in range(_VAIN):
            # Once all neighbours of the best point have been tried, draw any point.
            several = self._random.choice((2, 3)) if vain < _VAIN // 2 else count
            axes = self._random.sample(range(count), min(count, several))
            point = _with(self.best, {axis: self._random.randrange(self._sizes[axis]) for axis in axes})
            if point not in self._tried:
                self._ahead.append(point)
                return True
        return False


def _with(point: Point, changes: dict[int, int]) -> Point:
    return tuple(changes.get(axis, value) for axis, value in enumerate(point))


# Time limit of the final comparison in seconds, in addition to compiling both recipes, and its usual duration.
_DUEL, _COMPARED = 30.0, 6.0
# The number of recipes that the final comparison compiles, and the minimum number of recipes that a search tries.
_IN_DUEL, _LEAST = 2, 2


class TuneWorker(Protocol):
    """Tries one recipe after another."""

    async def ask(self, question: TryRecipe | CompareRecipes) -> Any:
        """Returns the answer. Raises `ConnectionError` if the worker is lost."""
        ...


@dataclass
class Tuner:
    """One search: the tried recipes, and the start time.

    With `ends_in_time`, the final comparison counts towards the frame's seconds too.
    """

    frame: Tune
    space: Space
    tell: Callable[[Attempted], None]
    ends_in_time: bool = False
    began: float = field(default_factory=time.monotonic)
    count: int = 0
    notes: list[str] = field(default_factory=list)
    ratios: dict[Point, float] = field(default_factory=dict)
    longest: float = 0.0

    def __post_init__(self) -> None:
        sizes = [len(variation.values) for variation in self.space.variations]
        self.search = SearchStrategy(sizes, self.space.start, self.frame.seed, [self.space.natural])

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.began

    async def run_workers(self, workers: Sequence[TuneWorker]) -> list[TuneWorker]:
        """Lets all workers try points until the time is up; returns those that were not lost."""
        ended = await asyncio.gather(*(self._run_worker(worker) for worker in workers))
        return [worker for worker, lives in zip(workers, ended, strict=True) if lives]

    async def _run_worker(self, worker: TuneWorker) -> bool:
        while self._has_time() and (point := self.search.ask()) is not None:
            try:
                before, threads = self.elapsed, self.space.base.threads
                question = TryRecipe(self.space.recipe(point), self.frame.each, self.search.least, threads)
                found = await worker.ask(question)
            except ConnectionError as error:
                self.search.again(point)
                self._record_loss(error)
                return False
            self.longest = max(self.longest, self.elapsed - before)
            self._record_result(point, found)
        return True

    def _has_time(self) -> bool:
        """Whether there is time to try another recipe; the first two are always tried."""
        if not self.ends_in_time:
            return self.elapsed < self.frame.seconds
        # The final comparison compiles two recipes again, and needs enough runs to compare them.
        left = self.frame.seconds - (1 + _IN_DUEL) * self.longest - min(_COMPARED, self.frame.seconds / 5)
        return self.elapsed < left or self.count < _LEAST

    def _record_result(self, point: Point, found: RecipeTried) -> None:
        best = self.search.tell(point, math.inf if found.problem else found.ratio)
        self.ratios[point] = 0.0 if found.problem else found.ratio
        words = self.space.words(point)
        self.tell(
            Attempted(
                self.frame.request, self.count, words, found.ratio, found.median, found.eager, found.compile_seconds,
                found.problem, best, self.elapsed,
            )
        )  # fmt: skip
        self.count += 1

    def _record_loss(self, error: ConnectionError) -> None:
        self.notes.append(f"a process that tries recipes was lost: {error}")

    async def finish(self, workers: Sequence[TuneWorker]) -> Tuned:
        """The best recipe if it is clearly faster than the first one in interleaved runs, else the first one.

        Raises `JobFailed` if no recipe is right, or all of `workers` are lost.
        """
        first, best = self.space.start, self.search.best
        if math.isinf(self.search.least):
            if not workers:
                raise _all_lost_error()
            raise JobFailed(Diagnostic("no recipe of the space gives eager's results", "tuning", "run it to see why"))
        duel = RecipesCompared(1.0, 1.0, 1.0)
        if best != first:
            each = _DUEL + 2 * self.frame.each
            duel = await self._compare_finally(
                workers, CompareRecipes(self.space.recipe(first), self.space.recipe(best), each)
            )
        recipe, notes = self._choose(duel, best)
        chosen = best if recipe is not self.frame.recipe else first
        gain = duel if chosen != first else RecipesCompared(1.0, 1.0, 1.0)
        return Tuned(
            self.frame.request, recipe, self.space.words(chosen), self.count, self.space.size,
            self.ratios[chosen], gain.ratio, gain.low, gain.high, self.elapsed, (*self.notes, *notes),
        )  # fmt: skip

    async def _compare_finally(self, workers: Sequence[TuneWorker], duel: CompareRecipes) -> RecipesCompared:
        """Runs the final comparison on the first worker that is not lost."""
        for worker in workers:
            try:
                found: RecipesCompared = await worker.ask(duel)
                return found
            except ConnectionError as error:
                self._record_loss(error)
        raise _all_lost_error()

    def _choose(self, duel: RecipesCompared, best: Point) -> tuple[Recipe, list[str]]:
        if duel.problem:
            # The first recipe may fail or never end: any correct one is better.
            return self.space.recipe(best), [f"the first recipe could not be timed for comparison: {duel.problem}"]
        if best == self.space.start:
            return self.frame.recipe, []
        if duel.low <= 1.0:
            return self.frame.recipe, [
                f"the best recipe is not clearly faster ({duel.ratio:.3f} times): the first one is kept"
            ]
        return self.space.recipe(best), []


def _all_lost_error() -> JobFailed:
    return JobFailed(Diagnostic("the processes that try recipes exited", "tuning", "see the log"))
