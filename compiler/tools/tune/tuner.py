"""Searches for the fastest recipe: chooses points of the space, lets workers try them, and records the results.

The search tries all values of one variation after another, with the others as in the best point so far (coordinate
descent, in a random order in each round). If a round finds no better point, the search tries random points that differ
from the best one in two or three variations, to escape a local minimum (Bergstra and Bengio, "Random Search for
Hyper-Parameter Optimization", 2012).
"""

from __future__ import annotations

import asyncio
import math
import random
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from buddy.compiler.protocol import Attempted, Diagnostic, Tune, Tuned
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.searches import Point, Space
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune.processes import CompareRecipes, RecipesCompared, RecipeTried, TryRecipe, TuningRequest

# The type of an answer.
A = TypeVar("A")

# The number of random points, all tried before, after which the space counts as exhausted.
_MAX_DRAWS = 200


class SearchStrategy:
    """Chooses points to try, `start` and the `preferred` ones first, and receives their scores: the lower, the better.

    `sizes` are the numbers of values of the variations. The choice is deterministic for the same seed and scores.
    """

    def __init__(self, sizes: Sequence[int], start: Point, seed: int = 0, preferred: Sequence[Point] = ()) -> None:
        self._sizes, self._random = tuple(sizes), random.Random(seed)
        self._tried: set[Point] = set()
        self._queue: deque[Point] = deque([start, *preferred])
        # The variations that this round has not tried yet, and whether a better point was found since its start.
        self._axes: list[int] = []
        self._has_improved = True
        self.best, self.best_score = start, math.inf

    def ask(self) -> Point | None:
        """Returns the next point to try, or `None` if the space is exhausted."""
        while True:
            while self._queue:
                point = self._queue.popleft()
                if point not in self._tried:
                    self._tried.add(point)
                    return point
            if len(self._tried) >= math.prod(self._sizes) or not self._refill():
                return None

    def record(self, point: Point, score: float) -> bool:
        """Records the score of a point, infinity if it failed; returns whether it is the best so far."""
        if score >= self.best_score:
            return False
        self.best, self.best_score, self._has_improved = point, score, True
        return True

    def retry(self, point: Point) -> None:
        """Schedules a point again, because the worker that tried it was lost."""
        self._tried.discard(point)
        self._queue.appendleft(point)

    def _refill(self) -> bool:
        """Adds points to the queue; returns false if it finds no new ones."""
        if not self._axes and self._has_improved:
            self._axes, self._has_improved = self._random.sample(range(len(self._sizes)), len(self._sizes)), False
        if self._axes:
            axis = self._axes.pop()
            self._queue.extend(_with_values(self.best, {axis: value}) for value in range(self._sizes[axis]))
            return True
        return self._draw_new_point()

    def _draw_new_point(self) -> bool:
        """Adds a random point to the queue; returns false if `_MAX_DRAWS` draws give no new one."""
        count = len(self._sizes)
        for draw in range(_MAX_DRAWS):
            # If all points near the best one seem to have been tried, draws any point.
            change_count = self._random.choice((2, 3)) if draw < _MAX_DRAWS // 2 else count
            axes = self._random.sample(range(count), min(count, change_count))
            point = _with_values(self.best, {axis: self._random.randrange(self._sizes[axis]) for axis in axes})
            if point not in self._tried:
                self._queue.append(point)
                return True
        return False


def _with_values(point: Point, changes: dict[int, int]) -> Point:
    """Returns the point with the values `changes` of some variations, by index."""
    return tuple(changes.get(axis, value) for axis, value in enumerate(point))


# ---- the search ------------------------------------------------------------------------------------------------------

# The time limit of the final comparison in seconds, without compiling both recipes, and its usual duration.
FINAL_SECONDS, _USUAL_FINAL_SECONDS = 30.0, 6.0
# The number of recipes that the final comparison compiles, and the minimum number of recipes that a search tries.
_FINAL_RECIPES, _MIN_RECIPES = 2, 2


class TuneWorker(Protocol):
    """Tries one recipe after another."""

    async def ask(self, request: TuningRequest) -> Any:
        """Returns the answer. Raises `ConnectionError` if the worker is lost."""
        ...


@dataclass
class Tuner:
    """One search for the request `frame`; calls `report` with each result.

    With `ends_in_time`, the seconds of the request also include the final comparison. `ratios` are the ratios to eager
    of the points tried so far, 0 for a failure.
    """

    frame: Tune
    space: Space
    report: Callable[[Attempted], None]
    ends_in_time: bool = False
    start_time: float = field(default_factory=time.monotonic)
    count: int = 0
    notes: list[str] = field(default_factory=list)
    ratios: dict[Point, float] = field(default_factory=dict)
    max_trial_seconds: float = 0.0

    def __post_init__(self) -> None:
        sizes = [len(variation.values) for variation in self.space.variations]
        self.search = SearchStrategy(sizes, self.space.start, self.frame.seed, [self.space.natural])

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start_time

    async def run_workers(self, workers: Sequence[TuneWorker]) -> list[TuneWorker]:
        """Lets all workers try points until the time is up; returns the workers that were not lost."""
        survived = await asyncio.gather(*(self._run_worker(worker) for worker in workers))
        return [worker for worker, has_survived in zip(workers, survived, strict=True) if has_survived]

    async def _run_worker(self, worker: TuneWorker) -> bool:
        """Lets a worker try points until the time is up; returns false if it was lost."""
        while self._has_time() and (point := self.search.ask()) is not None:
            try:
                start, threads = self.elapsed, self.space.base.threads
                best, max_error = self.search.best_score, self.frame.max_error
                request = TryRecipe(self.space.recipe(point), self.frame.recipe_seconds, best, threads, max_error)
                result = await worker.ask(request)
            except ConnectionError as error:
                self.search.retry(point)
                self._record_loss(error)
                return False
            self.max_trial_seconds = max(self.max_trial_seconds, self.elapsed - start)
            self._record_result(point, result)
        return True

    def _has_time(self) -> bool:
        """Returns whether there is time to try another recipe. With `ends_in_time`, the first two are always tried."""
        if not self.ends_in_time:
            return self.elapsed < self.frame.seconds
        # The final comparison compiles two recipes again, and needs enough runs to compare them.
        compile_seconds = _FINAL_RECIPES * self.max_trial_seconds
        final_seconds = compile_seconds + min(_USUAL_FINAL_SECONDS, self.frame.seconds / 5)
        last_start = self.frame.seconds - self.max_trial_seconds - final_seconds
        return self.elapsed < last_start or self.count < _MIN_RECIPES

    def _record_result(self, point: Point, result: RecipeTried) -> None:
        is_best = self.search.record(point, math.inf if result.problem else result.ratio)
        self.ratios[point] = 0.0 if result.problem else result.ratio
        choice_texts = self.space.words(point)
        self.report(
            Attempted(
                self.frame.request, self.count, choice_texts, result.ratio, result.median, result.eager,
                result.compile_seconds, result.problem, best=is_best, elapsed=self.elapsed, error=result.error,
            )
        )  # fmt: skip
        self.count += 1

    def _record_loss(self, error: ConnectionError) -> None:
        self.notes.append(f"a process that tries recipes was lost: {error}")

    async def finish(self, workers: Sequence[TuneWorker]) -> Tuned:
        """Compares the best recipe with the first one, in interleaved runs on one of `workers`.

        Returns the best recipe if it is clearly faster, else the first one. Raises `JobFailed` if no recipe gave
        eager's results, or all workers are lost.
        """
        first, best = self.space.start, self.search.best
        if math.isinf(self.search.best_score):
            if not workers:
                raise _all_lost_error()
            todo = "run the first recipe to see why"
            raise JobFailed(Diagnostic("no recipe of the space gives eager's results", "tuning", todo))
        final = RecipesCompared(1.0, 1.0, 1.0)
        if best != first:
            timeout = FINAL_SECONDS + 2 * self.frame.recipe_seconds
            comparison = CompareRecipes(self.space.recipe(first), self.space.recipe(best), timeout)
            final = await ask_any(workers, comparison, RecipesCompared, self._record_loss)
        recipe, notes = chosen_recipe(self.frame.recipe, self.space.recipe(best), final)
        chosen = best if recipe is not self.frame.recipe else first
        gain = final if chosen != first else RecipesCompared(1.0, 1.0, 1.0)
        return Tuned(
            self.frame.request, recipe, self.space.words(chosen), tried=self.count, size=self.space.size,
            ratio=self.ratios[chosen], gain=gain.ratio, gain_low=gain.low, gain_high=gain.high, seconds=self.elapsed,
            notes=(*self.notes, *notes),
        )  # fmt: skip


async def ask_any(
    workers: Sequence[TuneWorker],
    request: TuningRequest,
    reply_type: type[A],
    on_loss: Callable[[ConnectionError], object],
) -> A:
    """Returns the first `reply_type` of a worker that is not lost. Raises `JobFailed` if all are lost."""
    for worker in workers:
        try:
            reply: A = await worker.ask(request)
            return reply
        except ConnectionError as error:
            on_loss(error)
    raise _all_lost_error()


def chosen_recipe(first: Recipe, best: Recipe, final: RecipesCompared) -> tuple[Recipe, list[str]]:
    """Returns `best` if it is clearly faster than `first` in the comparison `final`, else `first`, with notes."""
    if final.problem:
        # The first recipe may fail or never end: any correct one is better.
        return best, [f"the first recipe could not be timed for comparison: {final.problem}"]
    if best == first:
        return first, []
    if final.low <= 1.0:
        return first, [
            f"the best recipe is not clearly faster ({final.ratio:.3f} times as fast): the first one is kept"
        ]
    return best, []


def _all_lost_error() -> JobFailed:
    return JobFailed(Diagnostic("the processes that try recipes exited", "tuning", "see the log"))
