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
from buddy.compiler.protocol import Attempted, Tune, Tuned
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.protocol.tuning import SpaceError, space_of
from buddy.compiler.support.disk_cache import TUNED
from buddy.compiler.support.processes.jobs import JobFailed
from buddy.compiler.tools.tune import worker
from buddy.compiler.tools.tune.cluster import RecipeTrier
from buddy.compiler.tools.tune.messages import CompareRecipes, LoadBundle, TryRecipe
from buddy.compiler.tools.tune.tuner import Tuner

log = logging.getLogger("buddy.tuning")
# The minimum and maximum time limit for one recipe in seconds; between them, the limit is the time of the whole search.
_LEAST_EACH, _EACH = 10.0, 60.0


class SavedTuning(msgspec.Struct, frozen=True):
    """The best recipe of a search of `seconds`, `gain` times as fast as the first one."""

    recipe: Recipe
    seconds: float
    gain: float


class TunedRecipe:
    """The recipe of one graph: `recipe` is the best known one, else the initial one.

    The search is skipped if an earlier search with at least as many seconds is cached.
    """

    def __init__(self, graph: Graph, recipe: Recipe, seconds: float) -> None:
        self._graph, self._base, self._seconds = graph, recipe, seconds
        self._lock = threading.Lock()
        kept = saved_tuning(graph, recipe)
        self._done = kept is not None and kept.seconds >= seconds
        self.recipe = recipe if kept is None else kept.recipe

    def search(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> Recipe | None:
        """Searches at the first call, on its `tensors` and `numbers`; returns the new recipe, or `None`.

        Meanwhile, calls by other threads use the current recipe. A failed search gives a warning.
        """
        if self._done or not self._is_first():
            return None
        before = self.recipe
        self.recipe = self._search(tensors, numbers)
        return None if self.recipe == before else self.recipe

    def _is_first(self) -> bool:
        with self._lock:
            first, self._done = not self._done, True
        return first

    def _search(self, tensors: Sequence[Any], numbers: Sequence[Any]) -> Recipe:
        try:
            found = autotune(self._graph, self.recipe, tensors, numbers, self._seconds)
        except (JobFailed, SpaceError, RuntimeError, OSError) as error:
            warnings.warn(f"the search for a faster recipe failed: {error}", stacklevel=4)
            return self.recipe
        faster = f"{found.gain:.3g} times as fast by {', '.join(found.choices)}" if found.gain > 1 else "none is faster"
        log.info("%s: %d recipes tried, %s", self._graph.name, found.tried, faster)
        kept = SavedTuning(found.recipe, self._seconds, found.gain)
        TUNED.write(program_cache.key(self._graph, self._base), msgspec.json.encode(kept))
        return found.recipe


def saved_tuning(graph: Graph, recipe: Recipe) -> SavedTuning | None:
    """The cached result of a search around `recipe`, for a machine like this one and the current code."""
    data = TUNED.read(program_cache.key(graph, recipe))
    try:
        return None if data is None else msgspec.json.decode(data, type=SavedTuning)
    except msgspec.MsgspecError:
        return None


def autotune(
    graph: Graph, recipe: Recipe, tensors: Sequence[Any], numbers: Sequence[Any] = (), seconds: float = 60.0
) -> Tuned:
    """Searches for the fastest recipe around `recipe` for `graph` on the inputs `tensors` and `numbers`.

    The search takes about `seconds` after the process that tries recipes is ready; at least two recipes are tried. A
    crash only ends that process. Raises `JobFailed` if no recipe gives eager's results, `SpaceError` if the recipe has
    nothing to vary, `RuntimeError` if the process cannot read the graph, and `OSError`.
    """
    with tempfile.TemporaryDirectory(prefix="buddy-tuning-") as folder:
        worker.write_bundle(Path(folder), graph, tensors, numbers)
        trier = RecipeTrier(msgspec.msgpack.encode(LoadBundle(folder)))
        try:
            if trier.refusal:
                raise RuntimeError(trier.refusal)
            frame = Tune(0, recipe, seconds=seconds, each=min(_EACH, max(_LEAST_EACH, seconds)))
            return _run_on_loop(
                _run_search(Tuner(frame, space_of(recipe), _log_attempt, ends_in_time=True), _BlockingWorker(trier)),
                trier,
            )
        finally:
            trier.close()


async def _run_search(hunt: Tuner, worker: _BlockingWorker) -> Tuned:
    return await hunt.finish(await hunt.run_workers([worker]))


class _BlockingWorker:
    """A `TuneWorker` for one process; its calls block the event loop, which has no other task."""

    def __init__(self, trier: RecipeTrier) -> None:
        self._trier = trier

    async def ask(self, question: TryRecipe | CompareRecipes) -> Any:
        try:
            return self._trier.ask(question)
        except (RuntimeError, OSError) as error:
            raise ConnectionError(str(error)) from error


def _run_on_loop(work: Coroutine[Any, Any, Tuned], trier: RecipeTrier) -> Tuned:
    """Runs `work` on a separate event loop, because the caller may run in one, such as a notebook."""
    with ThreadPoolExecutor(1, "buddy-tuning") as pool:
        future = pool.submit(asyncio.run, work)
        try:
            return future.result()
        except BaseException:
            trier.close()  # otherwise the thread would wait for the process, and this one for the thread
            raise


def _log_attempt(found: Attempted) -> None:
    log.debug("recipe %d: %s", found.number, found.problem or f"{found.ratio:.4g} of eager")
