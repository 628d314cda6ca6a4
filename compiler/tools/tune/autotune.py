"""Searches for a faster recipe at the first call of a compiled graph, and caches the result on disk by graph."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import threading
import warnings
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec

from buddy.compiler.driver import program_cache
from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol import Attempted, Frame, Tune, Tuned
from buddy.compiler.protocol.recipe import Recipe, digest
from buddy.compiler.protocol.searches import SpaceError, space_of
from buddy.compiler.support.disk_cache import TUNED
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune import worker
from buddy.compiler.tools.tune.precisions import PrecisionSearch
from buddy.compiler.tools.tune.processes import LoadBundle, RecipeTrier, TuningRequest
from buddy.compiler.tools.tune.tuner import Tuner

log = logging.getLogger("buddy.tuning")
# The bounds of the time limit for one recipe, in seconds; between them, the limit is the time of the whole search.
_MIN_RECIPE_SECONDS, _MAX_RECIPE_SECONDS = 10.0, 60.0


class SavedTuning(msgspec.Struct, frozen=True):
    """The result of a search that took `seconds`: a recipe, `gain` times as fast as the initial one."""

    recipe: Recipe
    seconds: float
    gain: float


class TunedRecipe:
    """The recipe of one graph: `recipe` is the result of the latest search, or the initial recipe before any.

    A search takes about `seconds`; with `max_error`, it chooses the precision of each product. It is skipped if the
    result of an earlier search of at least `seconds` is cached on disk.
    """

    def __init__(self, graph: Graph, recipe: Recipe, seconds: float, max_error: float | None = None) -> None:
        self._graph, self._base, self._seconds, self._max_error = graph, recipe, seconds, max_error
        self._lock = threading.Lock()
        saved = saved_tuning(graph, recipe, max_error)
        self._done = saved is not None and saved.seconds >= seconds
        self.recipe = recipe if saved is None else saved.recipe

    def search(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> Recipe | None:
        """Searches with the inputs `tensors` and `numbers` of the first call; returns the new recipe.

        Returns `None` if the recipe stays the same, at later calls, and at calls of other threads during the search.
        Warns if the search fails.
        """
        if self._done or not self._claim_search():
            return None
        before = self.recipe
        self.recipe = self._search(tensors, numbers)
        return None if self.recipe == before else self.recipe

    def _claim_search(self) -> bool:
        """Returns true to one caller only, which has to search."""
        with self._lock:
            if self._done:
                return False
            self._done = True
        return True

    def _search(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> Recipe:
        try:
            result = autotune(self._graph, self.recipe, tensors, numbers, self._seconds, self._max_error)
        except (JobFailed, SpaceError, RuntimeError, OSError) as error:
            warnings.warn(f"the search for a faster recipe failed: {error}", stacklevel=4)
            return self.recipe
        outcome = (
            f"{result.gain:.3g} times as fast by {', '.join(result.choices)}" if result.gain > 1 else "none is faster"
        )
        log.info("%s: %d recipes tried, %s", self._graph.name, result.tried, outcome)
        saved = SavedTuning(result.recipe, self._seconds, result.gain)
        TUNED.write(_key(self._graph, self._base, self._max_error), msgspec.json.encode(saved))
        return result.recipe


def _key(graph: Graph, recipe: Recipe, max_error: float | None) -> str:
    """Returns the key of a search in the cache on disk."""
    key = program_cache.program_key(graph, recipe)
    return key if max_error is None else digest(key, max_error)


def saved_tuning(graph: Graph, recipe: Recipe, max_error: float | None = None) -> SavedTuning | None:
    """Returns the cached result of a search around `recipe` for `graph`, on a CPU like this one, or `None`.

    `max_error` is that of the search.
    """
    data = TUNED.read(_key(graph, recipe, max_error))
    try:
        return None if data is None else msgspec.json.decode(data, type=SavedTuning)
    except msgspec.MsgspecError:
        return None


def autotune(
    graph: Graph, recipe: Recipe, tensors: Sequence[Any], numbers: Sequence[Any] = (), seconds: float = 60.0,
    max_error: float | None = None,
) -> Tuned:  # fmt: skip
    """Searches for the fastest recipe around `recipe` for `graph` on the inputs `tensors` and `numbers`.

    With `max_error`, the search chooses the precision of each product, within this error of the results.

    A separate process tries recipes. The search takes about `seconds` after that process has started; at least two
    recipes are tried. Raises `JobFailed` if no recipe gives eager's results, `SpaceError` if the recipe has nothing to
    vary, `RuntimeError` if the process cannot read the graph or exits, and `OSError`.
    """
    with tempfile.TemporaryDirectory(prefix="buddy-tuning-") as folder:
        worker.write_bundle(Path(folder), graph, tensors, numbers)
        trier = RecipeTrier(msgspec.msgpack.encode(LoadBundle(folder)))
        try:
            if trier.load_problem:
                raise RuntimeError(trier.load_problem)
            recipe_seconds = min(_MAX_RECIPE_SECONDS, max(_MIN_RECIPE_SECONDS, seconds))
            frame = Tune(0, recipe, seconds=seconds, recipe_seconds=recipe_seconds, max_error=max_error)
            if max_error is not None:
                search = PrecisionSearch(frame, _log_attempt)
                return _run_on_loop(search.run([_BlockingWorker(trier)]), trier)
            return _run_on_loop(
                _run_search(Tuner(frame, space_of(recipe), _log_attempt, ends_in_time=True), _BlockingWorker(trier)),
                trier,
            )
        finally:
            trier.close()


async def _run_search(tuner: Tuner, worker: _BlockingWorker) -> Tuned:
    return await tuner.finish(await tuner.run_workers([worker]))


class _BlockingWorker:
    """A `TuneWorker` for one process; its calls block the event loop, which has no other task."""

    def __init__(self, trier: RecipeTrier) -> None:
        self._trier = trier

    async def ask(self, request: TuningRequest) -> Any:
        try:
            return self._trier.ask(request)
        except (RuntimeError, OSError) as error:
            raise ConnectionError(str(error)) from error


def _run_on_loop(work: Coroutine[Any, Any, Tuned], trier: RecipeTrier) -> Tuned:
    """Runs `work` on a separate event loop, because the caller may run in one, such as a notebook."""
    with ThreadPoolExecutor(1, "buddy-tuning") as pool:
        future = pool.submit(asyncio.run, work)
        try:
            return future.result()
        except BaseException:
            trier.close()  # otherwise the pool's thread would wait for the process, and the caller for this thread
            raise


def _log_attempt(result: Frame) -> None:
    if not isinstance(result, Attempted):
        log.debug("%s", getattr(result, "what", result))
        return
    log.debug("recipe %d: %s", result.number, result.problem or f"{result.ratio:.4g} of eager")
