"""The graph's stages: the captured Buddy graph, and the graph after each graph pass of a recipe."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cached_property
from traceback import format_exception

from buddy.compiler.driver import snapshots
from buddy.compiler.driver.pipeline import Observer, OnStep, Step, enabled_steps, run_pipeline
from buddy.compiler.driver.snapshots import Snapshot
from buddy.compiler.graph import serialize
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.transform import TransformError, run_transform
from buddy.compiler.graph.types import GraphError
from buddy.compiler.passes.base import Remark
from buddy.compiler.passes.pass_runner import StepError
from buddy.compiler.protocol.recipe import Recipe, digest

# Maximum number of cached graphs, as plain data.
MAX_GRAPHS = 64

OnSnapshot = Callable[[Snapshot, bool], None]


def graph_after(graph: Graph, recipe: Recipe, on_step: OnStep | None = None) -> Graph:
    """A copy of `graph` after the graph passes of `recipe`, with no stage kept; `on_step` is called with each.

    Raises `CompilationError` when one of them fails.
    """
    copy = _Copy(serialize.to_bytes(graph))
    return run_pipeline(copy, enabled_steps(recipe, "graph"), _transform, Observer(on_step)).graph


class GraphStages:
    """Runs the graph passes of different recipes on one graph, with a cache of common prefixes."""

    def __init__(self, graph: Graph) -> None:
        self._data = serialize.to_bytes(graph)
        self._known: OrderedDict[str, tuple[bytes, Snapshot]] = OrderedDict()

    def after(self, recipe: Recipe, add: OnSnapshot, on_step: OnStep | None = None) -> Graph:
        """The graph after the graph passes of `recipe`; `add` is told each stage, and whether it was known, `on_step`
        is called with each pass that is run.

        Raises `CompilationError` when one of them fails.
        """
        observer = _StageObserver(self._data, self._known, add, on_step)
        run_pipeline(_Copy(self._data), enabled_steps(recipe, "graph"), _transform, observer)
        return serialize.from_bytes(observer.data)


class _Copy:
    """A graph as plain data, and made of it once it is needed; passes change the latter."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def graph(self) -> Graph:
        return serialize.from_bytes(self.data)


class _StageObserver(Observer[_Copy]):
    """Remembers the graph after each prefix of graph passes, and gives each as a stage to `add`."""

    def __init__(
        self, data: bytes, known: OrderedDict[str, tuple[bytes, Snapshot]], add: OnSnapshot, on_step: OnStep | None
    ) -> None:
        super().__init__(on_step)
        self.data = data
        self._known, self._add = known, add
        self._key, self._start = "", 0.0
        self._snapshot = snapshots.of_graph("graph", serialize.from_bytes(data), -1, 0.0, None)
        add(self._snapshot, False)

    def known(self, at: Step) -> _Copy | None:
        self._key = digest(self._key, at.step.name, at.step.options)
        found = self._known.get(self._key)
        if found is None:
            return None
        self._take(at, *found, known=True)
        return _Copy(self.data)

    def before(self, at: Step, state: _Copy) -> _Copy:
        super().before(at, state)
        copy = _Copy(self.data)
        _ = copy.graph  # made before the clock starts
        self._start = time.perf_counter()
        return copy

    def after(self, at: Step, state: _Copy, remarks: Sequence[Remark]) -> None:
        seconds = time.perf_counter() - self._start
        found = snapshots.of_graph(at.step.name, state.graph, at.number, seconds, self._snapshot, tuple(remarks))
        self._take(at, serialize.to_bytes(state.graph), found, known=False)

    def _take(self, at: Step, data: bytes, snapshot: Snapshot, known: bool) -> None:
        self.data, self._snapshot = data, snapshot
        self._known[self._key] = data, snapshot
        self._known.move_to_end(self._key)
        while len(self._known) > MAX_GRAPHS:
            self._known.popitem(last=False)
        self._add(snapshot.placed(at.step, at.number), known)


def _transform(copy: _Copy, at: Step) -> list[Remark]:
    """Run a graph pass in place. Raises `StepError` with its message, or with the traceback of a fault in it."""
    try:
        notes = run_transform(copy.graph, at.step.name, dict(at.step.options))
    except (TransformError, GraphError) as error:
        raise StepError(str(error)) from error
    except Exception as error:
        said = "".join(format_exception(error))
        raise StepError(f"a fault in the pass itself, {type(error).__name__}: {error}", said) from error
    return [Remark(at.step.name, (note.node,), note.text) for note in notes]
