"""Compiles a recipe without keeping stages or printing IR."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from buddy.compiler.codegen import objects
from buddy.compiler.codegen.calling_convention import EntryConvention
from buddy.compiler.driver import snapshots
from buddy.compiler.driver.backends import Code, backend_named, check_target, lowered_graph, reported
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.driver.pipeline import EntryObserver, OnStep, Verification, run_mlir_passes
from buddy.compiler.driver.program_cache import is_ours
from buddy.compiler.graph.graph import Graph
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.ops.lowering import LoweredModule, new_context
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol.artifact import Artifact, EagerCall
from buddy.compiler.protocol.recipe import CODE, Recipe

# Programs with fewer nodes have too few functions to make helper processes worthwhile.
MIN_NODES = 64

OnLowered = Callable[[LoweredModule], None]


def compile_graph(
    graph: Graph,
    recipe: Recipe,
    first: Registry | None = None,
    on_lowered: OnLowered | None = None,
    on_step: OnStep | None = None,
) -> Artifact:
    """Returns the same artifact as `Compiler(graph, first).compile(recipe)`, in a third of the time.

    `on_lowered` is called with the lowering of each node before any pass runs, and `on_step` with each step before it
    starts; with `on_step` the IR is verified after each step. Raises `CompilationError` without the IR at the failure.
    """
    check_target(recipe)
    backend = backend_named(recipe.backend)
    if len(graph.body) >= MIN_NODES and not recipe.target:
        objects.start()
    with collector_paused():
        rewritten = snapshots.graph_after(graph, recipe, on_step)
        trusted = first is None and on_step is None and is_ours(graph, recipe)
        done = _lower_to_llvm(rewritten, recipe, first, on_lowered, trusted, on_step)
        code = Code(rewritten, recipe, done.module, done.locations, done.entry, done.calls)
        with reported(backend):
            backend.check(code)
        with done.module.context, done.locations.nowhere(done.module.context):
            done.locations.fill(done.module)
        if on_step is not None:
            on_step(CODE)
        with reported(backend):
            artifact: Artifact = backend.compile(code)
        return artifact


class GraphAfterPasses(NamedTuple):
    """A graph after graph passes, its module after MLIR passes with the lowerings of nodes, and the ops' locations."""

    graph: Graph
    lowered: LoweredModule
    locations: LocationSets


def run_passes(graph: Graph, recipe: Recipe, first: Registry | None = None) -> GraphAfterPasses:
    """Runs the passes of `recipe`, which need not end in machine code. Raises `CompilationError`."""
    rewritten = snapshots.graph_after(graph, recipe)
    with collector_paused():
        locations = LocationSets()
        lowered = lowered_graph(rewritten, recipe, new_context(), locations, first)
        run_in_place(lowered.module, recipe, locations)
    return GraphAfterPasses(rewritten, lowered, locations)


@contextmanager
def collector_paused() -> Iterator[None]:
    """Pauses Python's garbage collector.

    It runs after a number of new objects; MLIR creates many, without cycles, and each collection visits all of torch's
    objects.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _LoweredToLlvm(NamedTuple):
    module: Any
    locations: LocationSets
    entry: EntryConvention | None
    calls: tuple[EagerCall, ...]


def _lower_to_llvm(
    graph: Graph,
    recipe: Recipe,
    first: Registry | None,
    on_lowered: OnLowered | None,
    trusted: bool,
    on_step: OnStep | None = None,
) -> _LoweredToLlvm:
    """Returns the module after all MLIR passes.

    With only `trusted` code, IR is verified before each of MLIR's own passes that follows one of ours, and at the end.
    If verification or a pass fails, everything is repeated with verification after each pass, which identifies the
    responsible pass.
    """
    locations = LocationSets()
    lowered = lowered_graph(graph, recipe, new_context(), locations, first)
    if on_lowered is not None:
        on_lowered(lowered)
    operation = lowered.module.operation
    calls = eager_calls(operation)
    try:
        verification: Verification = "before-mlir" if trusted else "every"
        entry = run_in_place(lowered.module, recipe, locations, verification, on_step)
        if trusted:
            operation.verify()
    except (CompilationError, ir.MLIRError):
        if not trusted:
            raise
        return _lower_to_llvm(graph, recipe, first, None, trusted=False)
    return _LoweredToLlvm(operation, locations, entry, calls)


def run_in_place(
    module: Any, recipe: Recipe, locations: LocationSets, verification: Verification = "every",
    on_step: OnStep | None = None,
) -> EntryConvention | None:  # fmt: skip
    """Runs the MLIR passes of `recipe` on a top-level module, in place.

    Returns the calling convention of its entry, `None` if its arguments never were buffers. Raises `CompilationError`
    if a pass fails; the module may then be half rewritten.
    """
    observer = EntryObserver(module.operation, on_step)
    run_mlir_passes(module.operation, recipe, locations, observer, verification)
    return observer.entry
