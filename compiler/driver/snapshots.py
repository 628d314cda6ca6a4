"""Makes snapshots: stages of a graph or a module, each with its text and the module that the next pass clones.

The stages are incomplete, `Stage(0, name, phase, "", 0, …)`: a compilation numbers them, and the process that sends
them to the engine adds the name of the text and its number of lines.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from traceback import format_exception
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from buddy.compiler.codegen.calling_convention import EntryConvention, read_entry_convention
from buddy.compiler.driver.pipeline import NumberedStep, Observer, OnStep, enabled_steps, run_pipeline
from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.transform import TransformError, run_transform
from buddy.compiler.graph.types import GraphError
from buddy.compiler.mlir.printing import op_counts, print_mlir, print_with_locations
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.passes.base import Remark
from buddy.compiler.passes.pass_runner import PassRunError
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.recipe import PassStep, Recipe, digest
from buddy.compiler.protocol.text.lines import Origins, StageText

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir


@dataclass(frozen=True)
class Snapshot:
    """A stage with its text, the numbers of ops by name (`counts`), and the remarks of the pass.

    `operation` is the module (`None` for stages that are not MLIR), `entry` the last known calling convention.
    `marked_hash` is a hash of the module's text with its location marks: if it is unchanged, so is `text`.
    """

    stage: Stage
    text: StageText
    counts: Counter[str]
    operation: Any = None
    entry: EntryConvention | None = None
    remarks: tuple[Remark, ...] = ()
    marked_hash: str = ""

    def for_step(self, step: PassStep, index: int) -> Snapshot:
        """Returns this snapshot as the result of step number `index` of another recipe."""
        stage = msgspec.structs.replace(self.stage, step=index, phase=step.phase or self.stage.phase)
        return dataclasses.replace(self, stage=stage)


def of_text(
    name: str, phase: str, text: StageText, seconds: float, language: Literal["llvm", "asm", "ptx"],
    functions: tuple[tuple[str, float], ...] = (),
) -> Snapshot:  # fmt: skip
    """Returns the snapshot of a built-in stage without a module: LLVM IR, assembly or PTX.

    `functions` are the functions that were compiled for it, each with its milliseconds.
    """
    stage = Stage(
        0, name, phase, "", 0, milliseconds=seconds * 1e3, language=language, origins=text.origins, functions=functions
    )
    return Snapshot(stage, text, Counter())


def of_llvm_pass(name: str, text: StageText, counts: Counter[str], before: Counter[str] | None) -> Snapshot:
    """Returns the snapshot after a pass of LLVM; `counts` and `before` are the numbers of instructions by opcode."""
    added, removed = _added_and_removed(before, counts) if before is not None else (0, 0)
    deltas = count_deltas(before, counts) if before is not None else ()
    stage = Stage(
        0, name, "ir", "", 0, ops=counts.total(), added=added, removed=removed, language="llvm", deltas=deltas,
        origins=text.origins,
    )  # fmt: skip
    return Snapshot(stage, text, counts)


def of_graph(
    name: str, graph: Graph, index: int, seconds: float, before: Snapshot | None, remarks: tuple[Remark, ...] = ()
) -> Snapshot:
    """Returns the snapshot of a Buddy graph after step number `index`; `before` is the previous snapshot, if any."""
    sets: list[tuple[str, ...]] = [(), *((op.stable,) for op in graph.body)]
    origins = Origins(direct=len(graph.body))
    text = StageText(str(graph), (0, *range(1, len(graph.body) + 1), 0), tuple(sets), origins=origins)
    counts = Counter(type(op).__name__ for op in graph.body)
    added, removed = _added_and_removed(before.counts, counts) if before else (0, 0)
    changed = before is None or before.text.content != text.content
    milliseconds, ops = seconds * 1e3, len(graph.body)
    stage = Stage(
        0, name, "graph", "", 0, index, milliseconds, ops, added, removed, changed, language="buddy", origins=origins
    )
    return Snapshot(stage, text, counts, remarks=remarks)


def of_printed_module(
    name: str, phase: str, marked: str, locations: LocationSets, seconds: float, before: Counter[str]
) -> Snapshot:
    """Returns the snapshot of a module that another compiler printed with location marks (`marked`).

    `before` has the numbers of ops of the previous stage, by name. Ops without a location have no node.
    """
    text = print_mlir(marked, locations)
    counts = op_counts(text.content)
    added, removed = _added_and_removed(before, counts)
    stage = Stage(
        0, name, phase, "", 0, milliseconds=seconds * 1e3, ops=counts.total(), added=added, removed=removed,
        deltas=count_deltas(before, counts), origins=text.origins,
    )  # fmt: skip
    return Snapshot(stage, text, counts)


def of_top_level(
    operation: ir.Operation, locations: LocationSets, phase: str = "toplevel", name: str = "lower"
) -> Snapshot:
    """Returns the snapshot of the first module: the lowered nodes of the graph, or imported IR at any phase."""
    marked, lost = print_with_locations(operation, locations)
    text = print_mlir(marked, locations)
    counts = op_counts(text.content)
    stage = Stage(0, name, phase, "", 0, ops=counts.total(), origins=text.origins, lost=lost)
    return Snapshot(stage, text, counts, operation, marked_hash=digest(marked))


def after_step(
    before: Snapshot, operation: ir.Operation, locations: LocationSets, step: PassStep, index: int, seconds: float,
    remarks: tuple[Remark, ...],
) -> Snapshot:  # fmt: skip
    """Returns the snapshot after a pass; if the pass changed nothing, its text is that of `before`."""
    marked, lost = print_with_locations(operation, locations)
    marked_hash = digest(marked)
    text = before.text if marked_hash == before.marked_hash else print_mlir(marked, locations)
    changed = text.content != before.text.content
    counts = op_counts(text.content) if changed else before.counts
    added, removed = _added_and_removed(before.counts, counts)
    phase, milliseconds, deltas = step.phase or before.stage.phase, seconds * 1e3, count_deltas(before.counts, counts)
    stage = Stage(
        0, step.name, phase, "", 0, index, milliseconds, counts.total(), added, removed, changed, deltas=deltas,
        origins=text.origins, lost=lost,
    )  # fmt: skip
    entry = read_entry_convention(operation) or before.entry
    return Snapshot(stage, text, counts, operation, entry, remarks, marked_hash)


def at_failure(operation: ir.Operation, locations: LocationSets, step: PassStep, index: int) -> tuple[Stage, StageText]:
    """Returns the stage of the module that a failed pass left, which may be invalid."""
    text = print_mlir(print_with_locations(operation, locations).text, locations)
    return Stage(0, step.name, step.phase, "", 0, index, ops=op_counts(text.content).total(), state="failed"), text


def _added_and_removed(before: Counter[str], after: Counter[str]) -> tuple[int, int]:
    """Returns the numbers of added and removed ops, counted for each name."""
    return (after - before).total(), (before - after).total()


def count_deltas(before: Counter[str], after: Counter[str]) -> tuple[tuple[str, int], ...]:
    """Returns the names of the ops whose numbers differ, each with the difference, the largest first."""
    changed = {name: after[name] - before[name] for name in {*before, *after} if after[name] != before[name]}
    return tuple(sorted(changed.items(), key=lambda pair: (-abs(pair[1]), pair[0])))


# ---- graph passes ----------------------------------------------------------------------------------------------------

# Maximum number of cached graphs of one `GraphStages`; they are cached as plain data.
MAX_GRAPHS = 64

# Called with a snapshot, and whether it was cached.
OnSnapshot = Callable[[Snapshot, bool], None]


def graph_after(graph: Graph, recipe: Recipe, on_step: OnStep | None = None) -> Graph:
    """Returns a copy of `graph` after the graph passes of `recipe`; `on_step` is called before each pass.

    Raises `CompilationError` if a pass fails.
    """
    copy = _LazyGraph(serialization.to_bytes(graph))
    return run_pipeline(copy, enabled_steps(recipe, "graph"), _transform, Observer(on_step)).graph


class GraphStages:
    """Runs the graph passes of different recipes on one graph, with a cache of common prefixes."""

    def __init__(self, graph: Graph) -> None:
        self._data = serialization.to_bytes(graph)
        # By a key of a prefix of passes, the graph after them and the snapshot of the last one.
        self._cache: OrderedDict[str, tuple[bytes, Snapshot]] = OrderedDict()

    def captured(self) -> Graph:
        """Returns a copy of the graph before all passes."""
        return serialization.from_bytes(self._data)

    def after(self, recipe: Recipe, add: OnSnapshot, on_step: OnStep | None = None) -> Graph:
        """Returns the graph after the graph passes of `recipe`.

        `add` is called with each stage and whether it was cached, `on_step` before each pass that runs. Raises
        `CompilationError` if a pass fails.
        """
        observer = _StageObserver(self._data, self._cache, add, on_step)
        run_pipeline(_LazyGraph(self._data), enabled_steps(recipe, "graph"), _transform, observer)
        return serialization.from_bytes(observer.data)


class _LazyGraph:
    """A graph as plain data (`data`), and the graph that passes change, which is built from the data on first use."""

    def __init__(self, data: bytes) -> None:
        self.data = data

    @cached_property
    def graph(self) -> Graph:
        return serialization.from_bytes(self.data)


class _StageObserver(Observer[_LazyGraph]):
    """Caches the graph after each prefix of graph passes, and calls `add` with the snapshot after each pass.

    `data` is the graph after the last pass.
    """

    def __init__(
        self, data: bytes, cache: OrderedDict[str, tuple[bytes, Snapshot]], add: OnSnapshot, on_step: OnStep | None
    ) -> None:
        super().__init__(on_step)
        self.data = data
        self._cache, self._add = cache, add
        # The key of the passes so far, and when the running pass started.
        self._key, self._start = "", 0.0
        self._snapshot = of_graph("graph", serialization.from_bytes(data), -1, 0.0, None)
        add(self._snapshot, False)

    def cached_state(self, numbered: NumberedStep) -> _LazyGraph | None:
        self._key = digest(self._key, numbered.step.name, numbered.step.options)
        cached = self._cache.get(self._key)
        if cached is None:
            return None
        self._store(numbered, *cached, is_cached=True)
        return _LazyGraph(self.data)

    def before(self, numbered: NumberedStep, state: _LazyGraph) -> _LazyGraph:
        super().before(numbered, state)
        copy = _LazyGraph(self.data)
        _ = copy.graph  # built before the clock starts
        self._start = time.perf_counter()
        return copy

    def after(self, numbered: NumberedStep, state: _LazyGraph, remarks: Sequence[Remark]) -> None:
        seconds = time.perf_counter() - self._start
        snapshot = of_graph(numbered.step.name, state.graph, numbered.number, seconds, self._snapshot, tuple(remarks))
        self._store(numbered, serialization.to_bytes(state.graph), snapshot, is_cached=False)

    def _store(self, numbered: NumberedStep, data: bytes, snapshot: Snapshot, is_cached: bool) -> None:
        self.data, self._snapshot = data, snapshot
        self._cache[self._key] = data, snapshot
        self._cache.move_to_end(self._key)
        while len(self._cache) > MAX_GRAPHS:
            self._cache.popitem(last=False)
        self._add(snapshot.for_step(numbered.step, numbered.number), is_cached)


def _transform(copy: _LazyGraph, numbered: NumberedStep) -> list[Remark]:
    """Runs a graph pass in place. Raises `PassRunError` with the pass's message, or the traceback of a fault in it."""
    try:
        notes = run_transform(copy.graph, numbered.step.name, dict(numbered.step.options))
    except (TransformError, GraphError) as error:
        raise PassRunError(str(error)) from error
    except Exception as error:
        traceback = "".join(format_exception(error))
        raise PassRunError(f"a fault in the pass itself, {type(error).__name__}: {error}", traceback) from error
    return [Remark(numbered.step.name, (note.node,), note.text) for note in notes]
