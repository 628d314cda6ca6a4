"""Compiles a recipe to an artifact without keeping stages or printing IR."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import msgspec

from buddy.compiler.codegen import objects
from buddy.compiler.codegen.calling_convention import EntryConvention
from buddy.compiler.driver import snapshots
from buddy.compiler.driver.backends import Code, backend_named, check_target, lower_graph, report_plugin_errors
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.driver.pipeline import EntryObserver, OnStep, Verification, run_mlir_passes
from buddy.compiler.driver.program_cache import store_program, uses_only_built_in_code
from buddy.compiler.graph.graph import Graph
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.ops.lowering import LoweredModule, new_context
from buddy.compiler.ops.utils import Registry
from buddy.compiler.protocol.artifact import Artifact, EagerCall
from buddy.compiler.protocol.recipe import CODE_STEP, EAGER, LOWERING_STEP, Recipe

# The minimum number of nodes for which helper processes are started; smaller programs have too few functions.
MIN_NODES = 64

OnLowered = Callable[[LoweredModule], None]


def compile_graph(
    graph: Graph,
    recipe: Recipe,
    overrides: Registry | None = None,
    on_lowered: OnLowered | None = None,
    on_step: OnStep | None = None,
) -> Artifact:
    """Returns the same artifact as `Compiler(graph, overrides).compile(recipe)`, in a third of the time.

    `on_lowered` is called with the lowered module before the passes run. `on_step` is called before each step, with its
    number, `LOWERING_STEP` or `CODE_STEP`; with `on_step`, the IR is verified after each step. Raises
    `CompilationError`, without the IR at the failure.
    """
    check_target(recipe)
    backend = backend_named(recipe.backend)
    if len(graph.body) >= MIN_NODES and not recipe.target:
        objects.start_workers()
    with pause_garbage_collector():
        rewritten = snapshots.graph_after(graph, recipe, on_step)
        is_trusted = overrides is None and on_step is None and uses_only_built_in_code(graph, recipe)
        lowered = _lower_to_llvm(rewritten, recipe, overrides, on_lowered, is_trusted, on_step)
        code = Code(rewritten, recipe, lowered.module, lowered.locations, lowered.entry, lowered.calls)
        with report_plugin_errors(backend):
            backend.check(code)
        with lowered.module.context, lowered.locations.unmapped_location(lowered.module.context):
            lowered.locations.fill(lowered.module)
        if on_step is not None:
            on_step(CODE_STEP)
        with report_plugin_errors(backend):
            artifact: Artifact = backend.compile(code)
        return artifact


def compile_and_store(graph: Graph, recipe: Recipe, overrides: Registry | None = None) -> Artifact:
    """Compiles a graph for `torch.compile`, and caches the artifact on disk.

    The artifact includes the facts about nodes that the summary line reports. It is not cached if a script's own
    lowerings (`overrides`) were used, or if a helper process failed. Raises `CompilationError`.
    """
    lowered_modules: list[LoweredModule] = []
    artifact = compile_graph(graph, recipe, overrides, lowered_modules.append)
    assignments = lowered_modules[-1].assignments
    artifact = msgspec.structs.replace(
        artifact,
        n_nodes=len(assignments),
        eager_nodes=tuple(assignment.node for assignment in assignments if assignment.lowering == EAGER),
        precisions=tuple((assignment.node, assignment.precision) for assignment in assignments if assignment.precision),
        notes=tuple(text for _, text in lowered_modules[-1].unapplied),
    )
    if overrides is None and not any(lowered.transient for lowered in lowered_modules):
        store_program(graph, recipe, artifact)
    return artifact


class GraphAfterPasses(NamedTuple):
    """A graph after graph passes, its module after MLIR passes with the lowerings of nodes, and the ops' locations."""

    graph: Graph
    lowered: LoweredModule
    locations: LocationSets


def run_passes(graph: Graph, recipe: Recipe, overrides: Registry | None = None) -> GraphAfterPasses:
    """Runs the passes of `recipe`, which may end before the LLVM dialect. Raises `CompilationError`."""
    rewritten = snapshots.graph_after(graph, recipe)
    with pause_garbage_collector():
        locations = LocationSets()
        lowered = lower_graph(rewritten, recipe, new_context(), locations, overrides)
        run_passes_in_place(lowered.module, recipe, locations)
    return GraphAfterPasses(rewritten, lowered, locations)


@contextmanager
def pause_garbage_collector() -> Iterator[None]:
    """Pauses Python's garbage collector.

    The collector runs whenever a number of objects have been created, and visits all of torch's objects. MLIR's
    bindings create many objects, but no cycles.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _LoweredToLlvm(NamedTuple):
    """A module after all MLIR passes, with its calling convention (`None` without one) and its calls of eager."""

    module: Any
    locations: LocationSets
    entry: EntryConvention | None
    calls: tuple[EagerCall, ...]


def _lower_to_llvm(
    graph: Graph,
    recipe: Recipe,
    overrides: Registry | None,
    on_lowered: OnLowered | None,
    is_trusted: bool,
    on_step: OnStep | None = None,
) -> _LoweredToLlvm:
    """Returns the module after all MLIR passes.

    If `is_trusted` (only code of this package compiles the graph), IR is verified only before each of MLIR's passes
    that follows one of ours, and at the end. If verification or a pass fails, everything is repeated with verification
    after each pass, which identifies the responsible pass.
    """
    locations = LocationSets()
    if on_step is not None:
        on_step(LOWERING_STEP)
    lowered = lower_graph(graph, recipe, new_context(), locations, overrides)
    if on_lowered is not None:
        on_lowered(lowered)
    operation = lowered.module.operation
    calls = eager_calls(operation)
    try:
        verification: Verification = "before-mlir" if is_trusted else "every"
        entry = run_passes_in_place(lowered.module, recipe, locations, verification, on_step)
        if is_trusted:
            operation.verify()
    except (CompilationError, ir.MLIRError):
        if not is_trusted:
            raise
        return _lower_to_llvm(graph, recipe, overrides, None, is_trusted=False)
    return _LoweredToLlvm(operation, locations, entry, calls)


def run_passes_in_place(
    module: ir.Module, recipe: Recipe, locations: LocationSets, verification: Verification = "every",
    on_step: OnStep | None = None,
) -> EntryConvention | None:  # fmt: skip
    """Runs the MLIR passes of `recipe` on a top-level module, in place.

    Returns the calling convention of the entry function, or `None` if its arguments never became buffers. Raises
    `CompilationError` if a pass fails; the module may then be half rewritten.
    """
    observer = EntryObserver(module.operation, on_step)
    run_mlir_passes(module.operation, recipe, locations, observer, verification)
    return observer.entry
