"""Compiles a recipe without keeping stages or printing IR."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from buddy.compiler.codegen import calling_convention, functions, objects
from buddy.compiler.driver import diagnosis, graph_stages, program_cache
from buddy.compiler.driver.compilation import (
    CompilationError,
    artifact_of,
    check_entry,
    check_target,
    graph_pass_failure,
    lowered_graph,
)
from buddy.compiler.graph.graph import Graph
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.ops.lowering import Lowered, new_context
from buddy.compiler.ops.registry import Registry
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.pass_runner import StepError, own_passes, run_step
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import CODE, Recipe

# Programs with fewer nodes have too few functions to make helper processes worthwhile.
MIN_NODES = 64

OnLowered = Callable[[Lowered], None]
# Called with each step of the recipe before it starts, and with `CODE` before code generation.
OnStep = Callable[[int], None]


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
    if len(graph.body) >= MIN_NODES and not recipe.target:
        objects.start()
    with collector_paused():
        try:
            rewritten = graph_stages.graph_after(graph, recipe, on_step)
        except graph_stages.GraphPassError as error:
            raise graph_pass_failure(error) from error
        trusted = first is None and on_step is None and program_cache.is_ours(graph, recipe)
        done = _in_llvm_dialect(rewritten, recipe, first, on_lowered, trusted, on_step)
        left = diagnosis.left_over(done.module, recipe, done.locations)
        if left is not None:
            raise CompilationError(left)
        check_entry(done.module, done.entry, rewritten)
        with done.module.context, done.locations.nowhere(done.module.context):
            done.locations.fill(done.module)
        if on_step is not None:
            on_step(CODE)
        images = functions.compile_functions(done.module, done.locations, recipe.opt_level, recipe.target)
        return artifact_of(rewritten, recipe, done.module, done.entry, done.calls, images)


class Through(NamedTuple):
    """A graph after graph passes, its module after MLIR passes, the lowerings of its nodes, and the locations of
    ops.
    """

    graph: Graph
    lowered: Lowered
    locations: LocationSets


def through(graph: Graph, recipe: Recipe, first: Registry | None = None) -> Through:
    """Runs the passes of `recipe`, which need not end in machine code. Raises `CompilationError`."""
    try:
        rewritten = graph_stages.graph_after(graph, recipe)
    except graph_stages.GraphPassError as error:
        raise graph_pass_failure(error) from error
    with collector_paused():
        locations = LocationSets()
        lowered = lowered_graph(rewritten, recipe, new_context(), locations, first)
        to_llvm_dialect(lowered.module, recipe, locations)
    return Through(rewritten, lowered, locations)


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


class _Done(NamedTuple):
    module: Any
    locations: LocationSets
    entry: calling_convention.Entry | None
    calls: Any


def _in_llvm_dialect(
    graph: Graph,
    recipe: Recipe,
    first: Registry | None,
    on_lowered: OnLowered | None,
    trusted: bool,
    on_step: OnStep | None = None,
) -> _Done:
    """The module after all MLIR passes.

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
        entry = to_llvm_dialect(lowered.module, recipe, locations, not trusted, on_step)
        if trusted:
            operation.verify()
    except (CompilationError, ir.MLIRError):
        if not trusted:
            raise
        return _in_llvm_dialect(graph, recipe, first, None, trusted=False)
    return _Done(operation, locations, entry, calls)


def to_llvm_dialect(
    module: Any, recipe: Recipe, locations: LocationSets, verify: bool = True, on_step: OnStep | None = None
) -> calling_convention.Entry | None:
    """Runs the MLIR passes of `recipe` on a top-level module, in place; `verify` verifies the IR after each.

    Without it, only the output of our passes before an MLIR pass is verified, because MLIR's passes may abort the
    process on invalid IR. Returns the calling convention of the entry, `None` if its arguments never became buffers.
    Raises `CompilationError` if a pass fails; the module may then be partly rewritten.
    """
    entry = calling_convention.Reader()
    entry.read(module.operation)
    own = own_passes()
    steps = [(index, step) for index, step in enumerate(recipe.steps) if step.level == "mlir" and step.enabled]
    for (index, step), (_, following) in zip(steps, [*steps[1:], (0, None)], strict=True):
        if on_step is not None:
            on_step(index)
        handed_over = step.name in own and following is not None and following.name not in own
        try:
            run_step(module.operation, step, PassContext.of(recipe, locations), verify or handed_over)
        except StepError as error:
            raise CompilationError(diagnosis.of_step(error, step, index)) from error
        entry.read(module.operation)
    return entry.last
