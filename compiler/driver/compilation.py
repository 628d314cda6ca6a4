"""Compiles a recipe to stages and an artifact; caches the result of each prefix of a recipe."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from buddy.compiler.codegen import functions
from buddy.compiler.codegen.objects.llvm_passes import RemarksError
from buddy.compiler.driver import diagnosis, snapshots
from buddy.compiler.driver.backends import (
    NATIVE_BACKEND,
    Backend,
    Code,
    backend_named,
    check_target,
    ignored_fields,
    lower_graph,
    report_plugin_errors,
    select_backend,
)
from buddy.compiler.driver.compile_graph import compile_graph
from buddy.compiler.driver.diagnosis import CompilationError as CompilationError
from buddy.compiler.driver.notebook import html_of
from buddy.compiler.driver.pipeline import NumberedStep, Observer, OnStep, run_mlir_passes
from buddy.compiler.driver.snapshots import GraphStages, Snapshot
from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.mlir import mlir_tool
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.ops.lowering import LoweredModule, new_context
from buddy.compiler.ops.utils import Registry
from buddy.compiler.passes.base import Remark
from buddy.compiler.passes.pass_runner import PassRunError
from buddy.compiler.protocol import FOLDED, LLVM, NOT_APPLIED, Assignment, Stage
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import CODE_STEP, LOWERING_STEP, PrefixKeys, Recipe, digest, prefix_keys
from buddy.compiler.protocol.text.lines import StageText

if TYPE_CHECKING:
    from buddy.compiler.mlir.bindings import ir

# Maximum numbers of entries of a compiler's caches; the least recently used are evicted, and recomputed when needed.
MAX_SNAPSHOTS = 400
MAX_ARTIFACTS = 64
_MAX_LOWERED = 16

# Called with each finished stage and its text.
OnStage = Callable[[Stage, StageText], None]


@dataclass(frozen=True)
class Compilation:
    """A finished compilation. `reused` is the number of stages from the cache; `texts` are those of `stages`.

    `assignments` has the lowering of each captured node. `remarks` are tuples (pass or `NOT_APPLIED`, node, text).
    """

    stages: tuple[Stage, ...]
    artifact: Artifact
    assignments: tuple[Assignment, ...]
    remarks: tuple[tuple[str, str, str], ...]
    seconds: float
    reused: int
    texts: tuple[StageText, ...] = field(default=(), repr=False)

    def _repr_html_(self) -> str:
        """Returns the HTML representation for notebooks."""
        return html_of(self)


@dataclass(frozen=True)
class TopLevel:
    """Top-level IR for another backend: the graph after graph passes, and the module, which must not be changed.

    The other fields are those of a `Compilation` up to this IR.
    """

    graph: Graph
    module: Any
    locations: LocationSets
    stages: tuple[Stage, ...]
    assignments: tuple[Assignment, ...]
    remarks: tuple[tuple[str, str, str], ...]
    seconds: float
    reused: int


@dataclass
class _Progress:
    """The state of one compilation."""

    on_stage: OnStage
    on_step: OnStep = lambda _step: None
    stages: list[Stage] = field(default_factory=list)
    texts: list[StageText] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    reused: int = 0

    def add(self, snapshot: Snapshot, reused: bool) -> None:
        """Adds the stage of a snapshot, numbered after the others, and reports it; `reused` says if it was cached."""
        stage = msgspec.structs.replace(snapshot.stage, index=len(self.stages))
        self.stages.append(stage)
        self.texts.append(snapshot.text)
        self.remarks.extend(snapshot.remarks)
        self.reused += reused
        self.on_stage(stage, snapshot.text)


class Compiler:
    """Compiles one captured graph under different recipes; `overrides` is a registry with priority over all others."""

    def __init__(self, graph: Graph, overrides: Registry | None = None) -> None:
        self._overrides = overrides
        self._graphs = GraphStages(graph)
        self._hash = serialization.graph_hash(graph)
        self._nodes = tuple(op.stable for op in graph.operations)
        self._context = new_context()
        self._locations = LocationSets()
        # The graph after graph passes, and its top-level module, by `PrefixKeys.top`.
        self._lowered: OrderedDict[str, tuple[Graph, LoweredModule]] = OrderedDict()
        self._snapshots: OrderedDict[str, Snapshot] = OrderedDict()
        # The artifact of each recipe, and the keys of the snapshots that its backend has made.
        self._artifacts: OrderedDict[str, tuple[Artifact, list[str]]] = OrderedDict()

    def assignments(self, recipe: Recipe, on_step: OnStep = lambda _step: None) -> tuple[Assignment, ...]:
        """Returns the lowering of each node under `recipe`.

        Raises `CompilationError` for a node that can neither be compiled nor run in eager.
        """
        _, lowered = self._lower(recipe, _Progress(lambda _stage, _text: None, on_step))
        return self._with_folded(lowered.assignments)

    def _with_folded(self, assignments: tuple[Assignment, ...]) -> tuple[Assignment, ...]:
        """Returns the assignments of all captured nodes; a node that a graph pass has removed gets `FOLDED`."""
        by_node = {assignment.node: assignment for assignment in assignments}
        return tuple(
            by_node.get(name) or Assignment(name, FOLDED, reason="folded by a graph pass") for name in self._nodes
        )

    def compile(
        self, recipe: Recipe, on_stage: OnStage = lambda _stage, _text: None, on_step: OnStep = lambda _step: None
    ) -> Compilation:
        """Compiles `recipe`; calls `on_stage` with each stage as soon as it is finished.

        Raises `CompilationError` if a node cannot be lowered, a pass fails, or no machine code can be generated.
        """
        start = time.perf_counter()
        check_target(recipe)
        progress = _Progress(on_stage, on_step)
        graph, lowered = self._lower(recipe, progress)
        last, key = self._run_passes(recipe, lowered, progress)
        artifact = self._make_artifact(recipe, graph, lowered, last, key, progress)
        assignments = self._with_folded(lowered.assignments)
        backend = select_backend(recipe, last.operation)
        remarks, seconds = _remarks(lowered, progress, backend, recipe), time.perf_counter() - start
        stages, texts = tuple(progress.stages), tuple(progress.texts)
        return Compilation(stages, artifact, assignments, remarks, seconds, progress.reused, texts)

    def compile_without_stages(
        self,
        recipe: Recipe,
        on_assignments: Callable[[tuple[Assignment, ...]], None] = lambda _assignments: None,
        on_step: OnStep = lambda _step: None,
    ) -> Compilation:
        """Compiles `recipe` faster than `compile`: without its stages, the remarks of passes, or use of the caches.

        `on_assignments` is called with the lowerings of nodes before the MLIR passes run. Raises `CompilationError`,
        without the IR at the failure.
        """
        start, lowered_modules = time.perf_counter(), list[LoweredModule]()

        def on_lowered(lowered: LoweredModule) -> None:
            lowered_modules.append(lowered)
            on_assignments(self._with_folded(lowered.assignments))

        artifact = compile_graph(self._graphs.captured(), recipe, self._overrides, on_lowered, on_step)
        lowered = lowered_modules[-1]
        remarks = _unapplied_remarks(lowered, backend_named(recipe.backend), recipe)
        seconds = time.perf_counter() - start
        return Compilation((), artifact, self._with_folded(lowered.assignments), remarks, seconds, 0)

    def top_level(
        self, recipe: Recipe, on_stage: OnStage = lambda _stage, _text: None, on_step: OnStep = lambda _step: None
    ) -> TopLevel:
        """Compiles `recipe` up to top-level IR, for a backend with its own passes.

        Raises `CompilationError` like `compile`.
        """
        start, progress = time.perf_counter(), _Progress(on_stage, on_step)
        graph, lowered = self._lower(recipe, progress)
        snapshot = self._top_snapshot(self._keys(recipe).top, lowered, progress)
        assignments = self._with_folded(lowered.assignments)
        remarks = _remarks(lowered, progress, backend_named(recipe.backend), recipe)
        seconds, stages = time.perf_counter() - start, tuple(progress.stages)
        return TopLevel(
            graph, snapshot.operation, self._locations, stages, assignments, remarks, seconds, progress.reused
        )

    def code_remarks(self, recipe: Recipe) -> tuple[tuple[str, str, str], ...]:
        """Returns LLVM's remarks on each node's code under `recipe`, as (`LLVM`, node, text).

        Leaves out remarks on code without a node. Raises `CompilationError`, and `RemarksError` if LLVM gives no
        remarks, for example for another target.
        """
        progress = _Progress(lambda _stage, _text: None)
        _, lowered = self._lower(recipe, progress)
        last, _ = self._run_passes(recipe, lowered, progress)
        backend = select_backend(recipe, last.operation)
        if recipe.target or backend is not NATIVE_BACKEND:
            reason = "the target differs from this CPU" if recipe.target else f"the backend is {backend.name}"
            raise RemarksError(f"{reason}; LLVM remarks are only available for native code")
        remarks = functions.code_remarks(last.operation, self._locations, recipe.opt_level)
        remarks_on_nodes = []
        for remark in remarks:
            times = f", {remark.times} times" if remark.times > 1 else ""
            text = f"{remark.text} (@{remark.function}{times})"
            remarks_on_nodes += [(LLVM, node, text) for node in self._locations.sets[remark.location_set]]
        return tuple(remarks_on_nodes)

    def _keys(self, recipe: Recipe) -> PrefixKeys:
        """Returns the cache keys of snapshots. They change with the user's `mlir-opt`, which may be rebuilt."""
        tool = mlir_tool.tool_identity()
        return prefix_keys(recipe, digest(self._hash, tool) if tool else self._hash)

    # ---- graph and top-level IR --------------------------------------------------------------------------------------

    def _lower(self, recipe: Recipe, progress: _Progress) -> tuple[Graph, LoweredModule]:
        """Returns the graph after graph passes and its top-level module, which is cached. Raises `CompilationError`."""
        key = self._keys(recipe).top
        graph = self._graphs.after(recipe, progress.add, progress.on_step)
        if key not in self._lowered:
            progress.on_step(LOWERING_STEP)
            self._lowered[key] = graph, lower_graph(graph, recipe, self._context, self._locations, self._overrides)
            _trim(self._lowered, _MAX_LOWERED)
        self._lowered.move_to_end(key)
        return self._lowered[key]

    # ---- passes ------------------------------------------------------------------------------------------------------

    def _run_passes(self, recipe: Recipe, lowered: LoweredModule, progress: _Progress) -> tuple[Snapshot, str]:
        """Returns the snapshot after all MLIR passes, and its key. Raises `CompilationError` if a pass fails."""
        keys = self._keys(recipe)
        top = self._top_snapshot(keys.top, lowered, progress)
        observer = _StageObserver(self, recipe, keys, top, progress)
        run_mlir_passes(top.operation, recipe, self._locations, observer)
        return observer.snapshot, keys.after_step[-1] if keys.after_step else keys.top

    def _top_snapshot(self, key: str, lowered: LoweredModule, progress: _Progress) -> Snapshot:
        """Returns the snapshot of the top-level module, from the cache if possible."""
        cached = self._snapshots.get(key)
        name = "import" if lowered.is_imported else "lower"
        snapshot = cached or snapshots.of_top_level(lowered.module.operation, self._locations, lowered.phase, name)
        self._store_snapshot(key, snapshot)
        progress.add(snapshot, reused=cached is not None)
        return snapshot

    def _store_snapshot(self, key: str, snapshot: Snapshot) -> None:
        self._snapshots[key] = snapshot
        self._snapshots.move_to_end(key)
        _trim(self._snapshots, MAX_SNAPSHOTS)

    # ---- LLVM IR and objects -----------------------------------------------------------------------------------------

    def _make_artifact(
        self, recipe: Recipe, graph: Graph, lowered: LoweredModule, last: Snapshot, last_key: str, progress: _Progress
    ) -> Artifact:
        """Returns the artifact that the backend makes of the snapshot `last`; adds the backend's stages to `progress`.

        The artifact and the stages are cached. Raises `CompilationError`.
        """
        backend = select_backend(recipe, last.operation)
        llvm_options = (recipe.llvm_stages, recipe.llvm_disabled)
        key = digest(last_key, recipe.opt_level, recipe.target, backend.name, recipe.backend_flags, llvm_options)
        is_cached = False
        if key in self._artifacts:
            _, snapshot_keys = self._artifacts[key]
            is_cached = all(snapshot_key in self._snapshots for snapshot_key in snapshot_keys)
        if not is_cached:
            progress.on_step(CODE_STEP)
            calls = eager_calls(lowered.module.operation)
            code = Code(graph, recipe, last.operation, self._locations, last.entry, calls)
            with report_plugin_errors(backend):
                backend.check(code)
                artifact, phases = _run_backend(backend, code)
            snapshot_keys = [f"{key}{number}" for number in range(len(phases))]
            for snapshot_key, snapshot in zip(snapshot_keys, phases, strict=True):
                self._store_snapshot(snapshot_key, snapshot)
            self._artifacts[key] = artifact, snapshot_keys
            _trim(self._artifacts, MAX_ARTIFACTS)
        artifact, snapshot_keys = self._artifacts[key]
        for snapshot_key in snapshot_keys:  # storing a snapshot again marks it as used
            self._store_snapshot(snapshot_key, self._snapshots[snapshot_key])
            progress.add(self._snapshots[snapshot_key], reused=is_cached)
        return artifact


def _run_backend(backend: Backend[Artifact], code: Code) -> tuple[Artifact, list[Snapshot]]:
    """Returns the artifact, and its snapshots. Raises `ValueError` if their phases are not `backend.phases`."""
    phase_snapshots: list[Snapshot] = []
    artifact = backend.compile(code, phase_snapshots.append)
    phases = tuple(dict.fromkeys(snapshot.stage.phase for snapshot in phase_snapshots))
    if phases != tuple(backend.phases):
        raise ValueError(f"its stages are {', '.join(phases) or 'none'}, not {', '.join(backend.phases)}")
    return artifact, phase_snapshots


class _StageObserver(Observer[Any]):
    """Reuses cached snapshots. A pass without one runs on a clone of the module, which becomes a snapshot.

    Adds each snapshot to `progress`; `snapshot` is the last one.
    """

    def __init__(self, compiler: Compiler, recipe: Recipe, keys: PrefixKeys, top: Snapshot, progress: _Progress):
        super().__init__(progress.on_step)
        self.snapshot = top
        self._compiler, self._recipe, self._keys, self._progress = compiler, recipe, keys, progress
        self._context, self._locations = compiler._context, compiler._locations
        # The stages so far with their texts, for the diagnosis of a failure.
        self._history = [(top.stage, top.text)]
        # When the running pass started.
        self._start = 0.0

    def cached_state(self, numbered: NumberedStep) -> ir.Operation | None:
        cached = self._compiler._snapshots.get(self._keys.after_step[numbered.number])
        if cached is None:
            return None
        self._store(numbered, cached.for_step(numbered.step, numbered.number), reused=True)
        return self.snapshot.operation

    def before(self, numbered: NumberedStep, state: ir.Operation) -> ir.Operation:
        super().before(numbered, state)
        with self._context, self._locations.unmapped_location(self._context):
            clone = state.clone(ip=False).operation
        self._start = time.perf_counter()
        return clone

    def after(self, numbered: NumberedStep, state: ir.Operation, remarks: Sequence[Remark]) -> None:
        seconds = time.perf_counter() - self._start
        with self._context, self._locations.unmapped_location(self._context):
            snapshot = snapshots.after_step(
                self.snapshot, state, self._locations, numbered.step, numbered.number, seconds, tuple(remarks)
            )
        self._store(numbered, snapshot, reused=False)

    def failure(self, numbered: NumberedStep, state: ir.Operation, error: PassRunError) -> CompilationError:
        """Returns an error with the IR at the failure, passes that would convert the op, and its last rewriter."""
        with self._context, self._locations.unmapped_location(self._context):
            failed = [snapshots.at_failure(state, self._locations, numbered.step, numbered.number)]
            converters = diagnosis.converters_of(error, self.snapshot.operation, self._recipe, self._locations)
        rewriter = diagnosis.last_rewriter(error.node_set, self._history) if error.node_set else ""
        return CompilationError(diagnosis.of_step(error, numbered.step, numbered.number, converters, rewriter), failed)

    def _store(self, numbered: NumberedStep, snapshot: Snapshot, reused: bool) -> None:
        self.snapshot = snapshot
        self._compiler._store_snapshot(self._keys.after_step[numbered.number], snapshot)
        self._progress.add(snapshot, reused)
        self._history.append((snapshot.stage, snapshot.text))


def _remarks(
    lowered: LoweredModule, progress: _Progress, backend: Backend[Any], recipe: Recipe
) -> tuple[tuple[str, str, str], ...]:
    """Returns the remarks on settings without effect, then the remarks of passes, repeated for each of their nodes."""
    pass_remarks = (
        (remark.pass_name, node, remark.text) for remark in progress.remarks for node in remark.nodes or ("",)
    )
    return (*_unapplied_remarks(lowered, backend, recipe), *pass_remarks)


def _unapplied_remarks(
    lowered: LoweredModule, backend: Backend[Any], recipe: Recipe
) -> tuple[tuple[str, str, str], ...]:
    """Returns a remark on each setting of the recipe that has no effect."""
    ignored = (("", text) for text in ignored_fields(backend, recipe))
    return tuple((NOT_APPLIED, node, text) for node, text in (*ignored, *lowered.unapplied))


def _trim(cache: OrderedDict[str, Any], limit: int) -> None:
    """Evicts the oldest entries until the cache has at most `limit`."""
    while len(cache) > limit:
        cache.popitem(last=False)
