"""The graph's stages: the captured Buddy graph, and the graph after each graph pass of a recipe."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

from buddy.compiler.driver import snapshots
from buddy.compiler.driver.snapshots import Snapshot
from buddy.compiler.graph import serialize
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.transform import run_transform
from buddy.compiler.graph.transform.notes import Note
from buddy.compiler.passes.base import Remark
from buddy.compiler.protocol.recipe import PassStep, Recipe, digest

# Maximum number of cached graphs, as plain data.
MAX_GRAPHS = 64

OnSnapshot = Callable[[Snapshot, bool], None]


class GraphStages:
    """Runs the graph passes of different recipes on one graph, with a cache of common prefixes."""

    def __init__(self, graph: Graph) -> None:
        self._data = serialize.to_bytes(graph)
        self._known: OrderedDict[str, tuple[bytes, Snapshot]] = OrderedDict()

    def after(self, recipe: Recipe, add: OnSnapshot, on_step: Callable[[int], None]) -> Graph:
        """The graph after the graph passes of `recipe`.

        `add` is called with each stage and whether it was cached, `on_step` with each pass before it starts.

        Raises `GraphPassError` if a graph pass raises.
        """
        graph, data, key = serialize.from_bytes(self._data), self._data, ""
        snapshot = snapshots.of_graph("graph", graph, -1, 0.0, None)
        add(snapshot, False)
        for index, step in enumerate(recipe.steps):
            if step.level != "graph" or not step.enabled:
                continue
            key = digest(key, step.name, step.options)
            known = self._known.get(key)
            if not known:
                on_step(index)
            data, snapshot = known if known else self._run(data, snapshot, step, index)
            self._remember(key, data, snapshot)
            add(snapshot.placed(step, index), known is not None)
        return serialize.from_bytes(data)

    @staticmethod
    def _run(data: bytes, before: Snapshot, step: PassStep, index: int) -> tuple[bytes, Snapshot]:
        graph, start = serialize.from_bytes(data), time.perf_counter()
        notes = _transform(graph, step, index)
        seconds = time.perf_counter() - start
        remarks = tuple(Remark(step.name, (note.node,), note.text) for note in notes)
        return serialize.to_bytes(graph), snapshots.of_graph(step.name, graph, index, seconds, before, remarks)

    def _remember(self, key: str, data: bytes, snapshot: Snapshot) -> None:
        self._known[key] = data, snapshot
        self._known.move_to_end(key)
        while len(self._known) > MAX_GRAPHS:
            self._known.popitem(last=False)


def graph_after(graph: Graph, recipe: Recipe, on_step: Callable[[int], None] | None = None) -> Graph:
    """A copy of `graph` after the graph passes of `recipe`, without stages.

    `on_step` is called with each pass before it starts.

    Raises `GraphPassError` if a graph pass raises.
    """
    copy = serialize.from_bytes(serialize.to_bytes(graph))
    for index, step in enumerate(recipe.steps):
        if step.level == "graph" and step.enabled:
            if on_step is not None:
                on_step(index)
            _transform(copy, step, index)
    return copy


def _transform(graph: Graph, step: PassStep, index: int) -> list[Note]:
    try:
        return run_transform(graph, step.name, dict(step.options))
    except Exception as error:
        raise GraphPassError(step, index, error) from error


class GraphPassError(Exception):
    """Graph pass number `index` of a recipe failed; `cause` is its exception."""

    def __init__(self, step: PassStep, index: int, cause: Exception) -> None:
        super().__init__(str(cause))
        self.step, self.index, self.cause = step, index, cause
