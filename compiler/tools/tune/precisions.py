"""Chooses the precision of each matrix product, so that the outputs stay within a given error.

First, all products are timed in each precision, in the whole program. Then the error of the outputs is measured with
one product at a time in each precision that saves time. Errors of different products are nearly independent, so their
squares add up; precisions are chosen in the order of the time that they save per squared error. The whole program is
then compiled and its actual error is measured. While this error exceeds the limit, or is far below it, the budget of
the choice is scaled.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import NamedTuple, TypeVar

from msgspec.structs import replace

from buddy.compiler.protocol import Attempted, Diagnostic, Frame, Progress, Tune, Tuned
from buddy.compiler.protocol.recipe import F32, PRECISIONS, Precision, PrecisionChoice, Recipe
from buddy.compiler.protocol.searches import FrontPoint, NodePrecision, PrecisionEffect
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune.processes import (
    CompareRecipes,
    ErrorsMeasured,
    MeasuredError,
    MeasureErrors,
    NodesTimed,
    RecipesCompared,
    RecipeTried,
    TimeNodes,
    TryRecipe,
    TuningRequest,
)
from buddy.compiler.tools.tune.tuner import FINAL_SECONDS, TuneWorker, ask_any, chosen_recipe

# The type of an answer.
A = TypeVar("A")

# The fractions of the time limit after which the timing of precisions and the measurement of errors end.
_TIMING_END, _MEASURING_END = 0.4, 0.7
# The order in which precisions are timed: those that are likely to save the most time first.
_LIKELY_FASTEST: tuple[Precision, ...] = (F32, "bf16", "int8-dynamic", "bf16x3")
_TIMING_ORDER = (*_LIKELY_FASTEST, *(precision for precision in PRECISIONS if precision not in _LIKELY_FASTEST))
# The duration in seconds of one request to measure errors; progress is reported after each.
_ERROR_REQUEST_SECONDS = 3.0
# A precision that saves a smaller fraction of a product's time is ignored, because it may be noise.
_MIN_SAVING = 0.02
# The search for the budget ends at an error above this fraction of the limit, or after this many recipes.
_NEAR_LIMIT, _MAX_RECIPES = 0.8, 8
# An additional factor for a new budget, because the error is not exactly proportional to the budget.
_MARGIN = 0.95
# The fractions of the final budget for which further recipes are tried.
_FRONT_BUDGETS = (1 / 3, 1 / 10)


class PrecisionStep(NamedTuple):
    """One step of the greedy choice: a precision for a node, which adds `squared_error` and saves `saved` seconds."""

    node: str
    precision: Precision
    squared_error: float
    saved: float


def greedy_steps(nodes: Sequence[NodePrecision]) -> list[PrecisionStep]:
    """Returns the steps from f32 to the fastest precisions, by decreasing time saved per squared error.

    The steps of a node are the upper convex hull of its precisions: each saves less time per error than the one before.
    """
    steps = [step for node in nodes for step in _steps_of(node)]
    return sorted(steps, key=_saved_per_error, reverse=True)


def _saved_per_error(step: PrecisionStep) -> float:
    return step.saved / step.squared_error if step.squared_error else math.inf


def _steps_of(node: NodePrecision) -> Iterator[PrecisionStep]:
    """Yields the steps of one node: each goes to the precision that saves the most time per added squared error."""
    options = [effect for effect in node.effects if 0 <= effect.error < math.inf and effect.saved > 0]
    squared_error, saved = 0.0, 0.0
    while True:
        candidates = [
            PrecisionStep(node.node, effect.precision, max(0.0, effect.error**2 - squared_error), effect.saved - saved)
            for effect in options
            if effect.saved > saved
        ]
        if not candidates:
            return
        step = max(candidates, key=lambda step: (_saved_per_error(step), step.saved))
        yield step
        squared_error, saved = squared_error + step.squared_error, saved + step.saved


def choose_within(steps: Sequence[PrecisionStep], budget: float) -> dict[str, Precision]:
    """Returns the precision of each node that the greedy choice changes within an error of `budget`.

    A step that does not fit is omitted, with the later steps of its node.
    """
    chosen: dict[str, Precision] = {}
    finished_nodes: set[str] = set()
    remaining = budget**2
    for step in steps:
        if step.node in finished_nodes or step.squared_error > remaining:
            finished_nodes.add(step.node)
            continue
        remaining -= step.squared_error
        chosen[step.node] = step.precision
    return chosen


def estimated_front(steps: Sequence[PrecisionStep]) -> tuple[FrontPoint, ...]:
    """Returns the estimates of all prefixes of `steps`."""
    errors = accumulate((step.squared_error for step in steps), initial=0.0)
    savings = accumulate((step.saved for step in steps), initial=0.0)
    return tuple(FrontPoint(math.sqrt(error), saved) for error, saved in zip(errors, savings, strict=True))


@dataclass
class PrecisionSearch:
    """One search for the request `frame`, whose `max_error` is the limit; calls `report` with progress and results.

    `count` is the number of recipes tried so far. `chosen` are the precisions of the best of them, {} for all products
    in f32, `None` before any choice was tried; `best_ratio` is its ratio to eager.
    """

    frame: Tune
    report: Callable[[Frame], None]
    start_time: float = field(default_factory=time.monotonic)
    notes: list[str] = field(default_factory=list)
    count: int = 0
    max_trial_seconds: float = 0.0
    workers: Sequence[TuneWorker] = ()
    best_ratio: float = math.inf
    chosen: dict[str, Precision] | None = None

    @property
    def elapsed(self) -> float:
        return time.monotonic() - self.start_time

    @property
    def limit(self) -> float:
        assert self.frame.max_error is not None
        return self.frame.max_error

    @property
    def f32_recipe(self) -> Recipe:
        """The recipe with all products in f32."""
        return replace(self.frame.recipe, precision=F32, precisions=())

    async def run(self, workers: Sequence[TuneWorker]) -> Tuned:
        """Searches with the first of `workers`, or the next one if it exits.

        Raises `JobFailed` if all exit, or if neither the first recipe nor float32 runs.
        """
        self.workers = workers
        first = await self._try(self.frame.recipe, ("the first recipe",))
        if first.problem:
            f32_result = await self._try_precisions({})
            if f32_result.problem:  # float32 has no error, so the reason is another one
                todo = "give each recipe more time (--each) if it is not done in time, else run it to see why"
                raise JobFailed(
                    Diagnostic(f"the recipe with all products in f32 fails: {f32_result.problem}", "tuning", todo)
                )
        else:
            self.best_ratio = first.ratio
        nodes = await self._measure_errors(await self._time_products())
        steps = greedy_steps(nodes)
        if steps:
            await self._search_budget(steps)
        elif nodes:
            self.notes.append("no precision within reach makes a product faster here")
        return await self._finish(first, nodes, steps)

    # ---- measurements ------------------------------------------------------------------------------------------------

    async def _time_products(self) -> list[NodePrecision]:
        """Returns all products of float32 with the time that each precision saves, without errors."""
        timed: dict[Precision, NodesTimed] = {}
        for number, precision in enumerate(_TIMING_ORDER):
            if number > 1 and self.elapsed > _TIMING_END * self.frame.seconds:
                self.notes.append(f"not enough time to measure {', '.join(_TIMING_ORDER[number:])}")
                break
            self._report_progress(f"timing products in {precision}", number / len(_TIMING_ORDER))
            result = await self._ask(
                TimeNodes(replace(self.f32_recipe, precision=precision), self.frame.recipe_seconds), NodesTimed
            )
            if result.problem:
                self.notes.append(f"products in {precision} were not timed: {result.problem}")
            else:
                timed[precision] = result
        if F32 not in timed:
            return []
        times = {precision: _times_by_kind(result, precision) for precision, result in timed.items()}
        applied = {
            precision: {product.node for product in result.products if product.precision == precision}
            for precision, result in timed.items()
        }
        nodes = []
        for product in timed[F32].products:
            seconds = times[F32][product.kind]
            effects = tuple(
                PrecisionEffect(precision, seconds - times[precision][product.kind])
                for precision in timed
                if precision != F32 and product.node in applied[precision]
            )
            nodes.append(NodePrecision(product.node, seconds, F32, effects))
        return nodes

    async def _measure_errors(self, nodes: Sequence[NodePrecision]) -> list[NodePrecision]:
        """Returns the nodes with the errors of the precisions that save time, as far as there is time for them."""
        pairs = _pairs_to_measure(nodes)
        errors: dict[tuple[str, str], float] = {}
        reused = 0
        while len(errors) < len(pairs) and (not errors or self.elapsed < _MEASURING_END * self.frame.seconds):
            self._report_progress(f"errors of single products, {len(errors)}/{len(pairs)}", len(errors) / len(pairs))
            request = MeasureErrors(tuple(pairs), _ERROR_REQUEST_SECONDS)
            result = await self._ask(request, ErrorsMeasured)
            if result.problem:
                self.notes.append(f"errors were not measured: {result.problem}")
                break
            errors, reused = {(entry.node, entry.precision): entry.error for entry in result.errors}, result.reused
        if reused:
            self.notes.append(f"{reused} errors of single products are from an earlier search")
        if len(errors) < len(pairs):
            self.notes.append(f"{len(pairs) - len(errors)} of {len(pairs)} errors were not measured: give more time")
        return [
            replace(
                node,
                effects=tuple(
                    replace(effect, error=errors.get((node.node, effect.precision), -1.0)) for effect in node.effects
                ),
            )
            for node in nodes
        ]

    # ---- recipes -----------------------------------------------------------------------------------------------------

    async def _search_budget(self, steps: Sequence[PrecisionStep]) -> None:
        """Tries choices within varying budgets until the error is near the limit, then some within smaller budgets."""
        budget, largest_passed, smallest_failed = _MARGIN * self.limit, 0.0, math.inf
        tried: list[dict[str, Precision]] = [{}]
        fastest = choose_within(steps, math.inf)
        while len(tried) <= _MAX_RECIPES and self._has_time():
            chosen = choose_within(steps, budget)
            if chosen in tried:
                break
            tried.append(chosen)
            result = await self._try_precisions(chosen)
            is_within = not result.problem
            if is_within:
                largest_passed = max(largest_passed, budget)
            else:
                smallest_failed = min(smallest_failed, budget)
            if is_within and (chosen == fastest or result.error >= _NEAR_LIMIT * self.limit):
                break
            geometric_mean = math.sqrt(largest_passed * smallest_failed) if largest_passed else 0.0
            if result.error <= 0:  # the recipe failed for another reason; a smaller budget changes fewer products
                budget = geometric_mean or smallest_failed / 2
                continue
            budget *= _MARGIN * self.limit / result.error
            is_between = largest_passed < budget < smallest_failed
            if not is_between and largest_passed and smallest_failed < math.inf:
                budget = geometric_mean
        for fraction in _FRONT_BUDGETS:
            chosen = choose_within(steps, fraction * (largest_passed or self.limit))
            if chosen not in tried and self._has_time():
                tried.append(chosen)
                await self._try_precisions(chosen)

    def _has_time(self) -> bool:
        """Returns whether there is time to try another recipe and, if a better one is known, for the final comparison.

        One choice is always tried.
        """
        remaining = self.frame.seconds - self.elapsed
        n_recipes = 3 if self.chosen else 1  # the final comparison compiles two recipes
        return self.chosen is None or remaining > n_recipes * self.max_trial_seconds

    async def _try_precisions(self, chosen: dict[str, Precision]) -> RecipeTried:
        """Tries the recipe with these precisions, and keeps it if it is the fastest so far."""
        result = await self._try(self._recipe(chosen), _choice_texts(chosen))
        if not result.problem and result.ratio < self.best_ratio:
            self.best_ratio, self.chosen = result.ratio, chosen
        elif self.chosen is None:
            self.chosen = {}
        return result

    def _recipe(self, chosen: dict[str, Precision]) -> Recipe:
        choices = sorted(PrecisionChoice(node, precision) for node, precision in chosen.items())
        return replace(self.f32_recipe, precisions=tuple(choices))

    async def _try(self, recipe: Recipe, choice_texts: tuple[str, ...]) -> RecipeTried:
        """Tries a recipe, and reports the result under `choice_texts`, which describe how it differs from others."""
        self._report_progress(f"recipe {self.count + 1}: {', '.join(choice_texts)}")
        start = self.elapsed
        request = TryRecipe(recipe, self.frame.recipe_seconds, math.inf, self.frame.recipe.threads, self.limit)
        result = await self._ask(request, RecipeTried)
        self.max_trial_seconds = max(self.max_trial_seconds, self.elapsed - start)
        self.report(
            Attempted(
                self.frame.request, self.count, choice_texts, result.ratio, result.median, result.eager,
                result.compile_seconds, result.problem, best=not result.problem and result.ratio < self.best_ratio,
                elapsed=self.elapsed, error=result.error,
            )
        )  # fmt: skip
        self.count += 1
        return result

    async def _finish(
        self, first: RecipeTried, nodes: Sequence[NodePrecision], steps: Sequence[PrecisionStep]
    ) -> Tuned:
        """Compares the best recipe with the first one, whose trial is `first`; returns the result of the search."""
        chosen, final = self.chosen or {}, RecipesCompared(1.0, 1.0, 1.0)
        best = self._recipe(chosen) if chosen or first.problem else self.frame.recipe
        if best != self.frame.recipe:
            self._report_progress("comparing the best recipe with the first one")
            timeout = FINAL_SECONDS + 2 * self.frame.recipe_seconds
            final = await self._ask(CompareRecipes(self.frame.recipe, best, timeout), RecipesCompared)
        recipe, notes = chosen_recipe(self.frame.recipe, best, final)
        is_best = recipe != self.frame.recipe
        final = final if is_best else RecipesCompared(1.0, 1.0, 1.0)
        applied = tuple(replace(node, precision=recipe.precision_of(node.node)) for node in nodes)
        return Tuned(
            self.frame.request, recipe, _choice_texts(chosen) if is_best else ("the first recipe",),
            tried=self.count, size=self.count, ratio=self.best_ratio if is_best else first.ratio, gain=final.ratio,
            gain_low=final.low, gain_high=final.high, seconds=self.elapsed, notes=(*self.notes, *notes),
            nodes=applied, front=estimated_front(steps),
        )  # fmt: skip

    # ---- messages ----------------------------------------------------------------------------------------------------

    async def _ask(self, request: TuningRequest, answer: type[A]) -> A:
        return await ask_any(self.workers, request, answer, self._record_loss)

    def _record_loss(self, error: ConnectionError) -> None:
        self.notes.append(f"a process that tries recipes was lost: {error}")
        self.workers = self.workers[1:]

    def _report_progress(self, what: str, done: float = -1.0) -> None:
        self.report(Progress(self.frame.request, what, done))


def _times_by_kind(timed: NodesTimed, precision: Precision) -> dict[str, float]:
    """Returns the mean time of the products of each kind that are computed in `precision`."""
    seconds = defaultdict[str, list[float]](list)
    for product in timed.products:
        if precision in (F32, product.precision):
            seconds[product.kind].append(product.seconds)
    return {kind: statistics.fmean(times) for kind, times in seconds.items()}


def _pairs_to_measure(nodes: Sequence[NodePrecision]) -> list[MeasuredError]:
    """Returns the nodes and precisions that save time: for each node, the fastest precision first."""
    by_node = []
    for node in nodes:
        effects = [effect for effect in node.effects if effect.saved > _MIN_SAVING * node.seconds]
        effects.sort(key=lambda effect: -effect.saved)
        by_node.append([MeasuredError(node.node, effect.precision) for effect in effects])
    return [pair for rank in zip_longest(*by_node) for pair in rank if pair is not None]


def _choice_texts(chosen: dict[str, Precision]) -> tuple[str, ...]:
    """Returns a choice as text, such as `bf16 for 60 products`."""
    counts = Counter(chosen.values())
    texts = [f"{precision} for {count} product{'s' * (count > 1)}" for precision, count in counts.items()]
    return tuple(texts) or ("f32 for all products",)
