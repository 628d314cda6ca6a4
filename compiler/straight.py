"""A compilation that nobody watches: the same recipe and the same code, with no stage kept and no text printed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler import codegen, diagnosis, signature
from buddy.compiler.artifact import Artifact
from buddy.compiler.compilation import CompilationError, artifact_of, check_entry, lowered_graph, transformed
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph_stages import GraphStages
from buddy.compiler.lowering import Lowered, new_context
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.ops.registry import Registry
from buddy.compiler.passes.base import PassContext
from buddy.compiler.pipeline import StepError, run_step
from buddy.compiler.provenance import LocationSets
from buddy.compiler.recipe import Recipe


def compile_graph(
    graph: Graph, recipe: Recipe, first: Registry | None = None, on_lowered: Callable[[Lowered], None] | None = None
) -> Artifact:
    """What `Compiler(graph, first).compile(recipe)` hands over, in a third of the time.

    `on_lowered` is told how each node was lowered, before any pass has run. Raises `CompilationError` as that does,
    without the IR at the failure.
    """
    locations = LocationSets()
    rewritten = transformed(GraphStages(graph), recipe, lambda _snapshot, _reused: None)
    lowered = lowered_graph(rewritten, recipe, new_context(), locations, first)
    if on_lowered is not None:
        on_lowered(lowered)
    module, calls = lowered.module, eager_calls(lowered.module.operation)
    entry = to_llvm_dialect(module, recipe, locations)
    left = diagnosis.left_over(module.operation, recipe, locations)
    if left is not None:
        raise CompilationError(left)
    check_entry(module.operation, entry, rewritten)
    with module.context, locations.nowhere(module.context):
        locations.fill(module.operation)
    objects = codegen.compile_functions(module.operation, locations, recipe.opt_level)
    return artifact_of(rewritten, recipe, module.operation, entry, calls, objects)


def to_llvm_dialect(module: Any, recipe: Recipe, locations: LocationSets) -> signature.Entry | None:
    """Take a top-level module through the MLIR passes of `recipe`, in place.

    Returns how its entry is called, `None` when it never had buffers for arguments. Raises `CompilationError` when a
    pass fails; the module may then be half rewritten.
    """
    entry = signature.of_module(module.operation)
    for index, step in enumerate(recipe.steps):
        if step.level != "mlir" or not step.enabled:
            continue
        try:
            run_step(module.operation, step, PassContext(locations, threads=recipe.threads))
        except StepError as error:
            raise CompilationError(diagnosis.of_step(error, step, index)) from error
        entry = signature.of_module(module.operation) or entry
    return entry
