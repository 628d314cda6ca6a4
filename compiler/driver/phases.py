"""The ends of every compilation, whether it keeps stages or not: graph to top-level IR, LLVM dialect to an artifact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.codegen import calling_convention, functions
from buddy.compiler.codegen.calling_convention import EntryConvention
from buddy.compiler.codegen.machines import MachineError, machine_of
from buddy.compiler.driver import diagnosis
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.graph.transform.observe import observed
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops import OWN_DIALECTS
from buddy.compiler.ops.imported_module import ImportedIRError, imported_ir_of, lower_imported
from buddy.compiler.ops.lowering import LoweredModule, NodeError, lower
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol.artifact import Artifact, EagerCall, TensorSpec
from buddy.compiler.protocol.recipe import Recipe


def check_target(recipe: Recipe) -> None:
    """Raises `CompilationError` for a target without code generation."""
    try:
        machine_of(recipe.target)
    except MachineError as error:
        raise CompilationError(error.diagnostic) from error


def lowered_graph(
    graph: Graph, recipe: Recipe, context: Any, locations: LocationSets, first: Registry | None
) -> LoweredModule:
    """Top-level IR: the graph's nodes lowered one by one, or the IR that the graph comes with.

    Raises `CompilationError` for a node that can neither be compiled nor run in eager, for an unsupported target
    dialect, and for an invalid imported module.
    """
    try:
        given = imported_ir_of(graph, recipe)
        if given is not None:
            return lower_imported(graph, given, context, locations)
        if recipe.dialect not in OWN_DIALECTS:
            raise CompilationError(diagnosis.no_lowerings(recipe.dialect))
        return lower(graph, recipe, context, locations, first)
    except ImportedIRError as error:
        raise CompilationError(error.diagnostic) from error
    except NodeError as error:
        raise CompilationError(diagnosis.of_node(error)) from error


def check_code(
    module: Any, entry: EntryConvention | None, graph: Graph, recipe: Recipe, locations: LocationSets
) -> EntryConvention:
    """The entry of a module that code can be made of.

    Raises `CompilationError` when ops of other dialects than LLVM's are left, when nothing can call the module as
    `entry` says, or when it writes more or less than the graph's results.
    """
    left = diagnosis.leftover_ops(module, recipe, locations)
    if left is not None:
        raise CompilationError(left)
    if entry is None:
        raise CompilationError(diagnosis.no_entry(graph._func_name))
    results = [op for op in graph.results if isinstance(op, Op)]
    passed = [(number, op, spec_of(op)) for number, op in enumerate(results) if 0 not in spec_of(op).shape]
    arity = len(entry.arguments) + len(entry.symbols) + len(passed) + bool(entry.arena)
    if calling_convention.words_of(module, graph._func_name) != arity:
        raise CompilationError(diagnosis.wrong_convention(graph._func_name, arity))
    for (number, op, spec), written in zip(passed, entry.results, strict=False):
        room = spec.bytes
        if room is not None and written is not None and room != written:
            raise CompilationError(diagnosis.wrong_room(op.stable, number, written, room))
    return entry


def artifact_of(
    graph: Graph, recipe: Recipe, module: Any, entry: EntryConvention, calls: Sequence[EagerCall],
    objects: Sequence[functions.FunctionObject],
) -> Artifact:  # fmt: skip
    """The artifact of a module that has passed `check_code`, and of the objects made of it."""
    placeholders = [spec_of(op) for op in graph.placeholders]
    results = [spec_of(op) for op in graph.results if isinstance(op, Op)]
    images = [found.data for found in objects]
    return calling_convention.artifact(
        graph._func_name, entry, module, images, placeholders, results, calls, recipe.threads, symbols_of(graph),
        observed(graph), recipe.target,
    )  # fmt: skip


def spec_of(op: Op) -> TensorSpec:
    return TensorSpec(tuple(map(plain_size, op.tensor_meta.shape)), op.tensor_meta.dtype.value)
