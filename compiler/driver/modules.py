"""Lowers a script's Buddy graph to an MLIR module, which the script may change, and compiles this module to run it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from buddy.compiler.codegen import calling_convention
from buddy.compiler.driver import diagnosis
from buddy.compiler.driver.backends import compile_objects, spec_of, spec_of_meta
from buddy.compiler.driver.compile_graph import run_passes_in_place
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.node import Op
from buddy.compiler.graph.partition import Partition
from buddy.compiler.graph.types import DeviceType, NodeType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.ops.lowering import NodeError, lower, new_context
from buddy.compiler.ops.parameter_packing import pack_parameters
from buddy.compiler.protocol.artifact import ArtifactSymbol
from buddy.compiler.protocol.presets import default_recipe, without_packing
from buddy.compiler.protocol.recipe import Recipe

if TYPE_CHECKING:
    import torch


# A function from torch tensors and numbers to the list of results.
Run = Callable[..., list[Any]]
Dialect = Literal["linalg", "tosa"]
# The names that the protocol `graph.graph.GraphLowering` requires of this module.
__all__ = ["TopLevelModule", "lower_to_llvm", "new_context", "runnable", "set_device", "top_level"]


class TopLevelModule(NamedTuple):
    """A top-level module, and shape and type of the value for each `buddy.source` of its entry's arguments."""

    module: Any
    arguments: tuple[TensorMeta, ...]


def top_level(graph: Graph, pack: bool, partition: Partition | None = None) -> TopLevelModule:
    """Lowers `graph` to a top-level module. With `pack`, its parameters become one 1-D tensor for each element type.

    The functions of `partition` without nodes are in other modules, and only declared. Raises `GraphError` for a graph
    that cannot be executed and `CompilationError` for a node that can neither be compiled nor run in eager.
    """
    graph.check()
    settings = graph.settings
    recipe = Recipe(dialect=settings.dialect, partition="whole")
    try:
        lowered = lower(
            graph, recipe, graph._ctx, graph._locations, settings.user_registry(), partition, settings.on_node
        )
    except NodeError as error:
        raise CompilationError(diagnosis.of_node(error)) from error
    if graph.device is not DeviceType.CPU:
        set_device(lowered.module, graph._func_name, graph.device)
    arguments = tuple(op.tensor_meta for op in graph.placeholders)
    return TopLevelModule(lowered.module, _pack(graph, lowered.module) if pack else arguments)


def _pack(graph: Graph, module: ir.Module) -> tuple[TensorMeta, ...]:
    """Packs the parameters of the module's entry function, in place; returns its new arguments."""
    # Placeholders of the kind `FakeNode` are parameters, all others are inputs.
    placeholders = list(enumerate(graph.placeholders))
    parameters = [(number, op.tensor_meta.dtype) for number, op in placeholders if op.kind is NodeType.FakeNode]
    inputs = [number for number, op in placeholders if op.kind is not NodeType.FakeNode]
    packs = pack_parameters(module, graph._func_name, parameters, inputs)
    return (*packs, *(graph.placeholders[number].tensor_meta for number in inputs))


def set_device(module: ir.Module, name: str, device: DeviceType) -> None:
    """Marks function `name` of a module with the device that it runs on."""
    for op in module.body:
        if ir.StringAttr(op.operation.attributes["sym_name"]).value == name:
            with module.context:
                op.operation.attributes["buddy.device"] = ir.StringAttr.get(device.value)


def lower_to_llvm(graph: Graph) -> None:
    """Lowers the module of `graph` to the LLVM dialect with the default pipeline, in place.

    Raises `CompilationError` if a pass fails.
    """
    run_passes_in_place(graph._imported_module, default_recipe(dialect=graph.settings.dialect), graph._locations)


def runnable(lowered: TopLevelModule, graph: Graph) -> Run:
    """Compiles a top-level module that computes `graph`, in place, and returns a function that runs its code.

    The function takes the arguments of the module's entry in order: torch tensors, and the numbers from which symbolic
    sizes are read. It returns a list of results. Raises `CompilationError`.
    """
    from buddy.compiler.runtime import LoadedProgram

    module, name = lowered.module, graph._func_name
    recipe = without_packing(default_recipe(dialect=graph.settings.dialect))  # each call may have other weights
    calls = eager_calls(module.operation)
    entry = run_passes_in_place(module, recipe, graph._locations)
    if entry is None:
        raise CompilationError(diagnosis.no_entry(name))
    objects = compile_objects(module.operation, graph._locations, recipe.opt_level)
    arguments = [spec_of_meta(meta) for meta in lowered.arguments]
    results = [spec_of(op) for op in graph.results if isinstance(op, Op)]
    object_files = [function_object.data for function_object in objects]
    program = LoadedProgram(
        calling_convention.make_artifact(
            name,
            entry,
            module.operation,
            object_files,
            arguments,
            results,
            calls,
            recipe.threads,
            _symbols(lowered, graph),
        )
    )

    def run(*values: torch.Tensor) -> list[torch.Tensor]:
        numbers = [value for value in values if isinstance(value, int)]
        return program([value for value in values if not isinstance(value, int)], numbers)

    return run


def _symbols(lowered: TopLevelModule, graph: Graph) -> list[ArtifactSymbol]:
    """Returns the symbols of `graph`; the source of a symbol is the number of an argument of the module, or -1.

    In the graph, the source is the number of a placeholder; the module may have packed some placeholders.
    """
    numbers = {id(meta): number for number, meta in enumerate(lowered.arguments)}
    argument_numbers = [numbers.get(id(op.tensor_meta), -1) for op in graph.placeholders]
    return [
        ArtifactSymbol(symbol.name, argument_numbers[symbol.source] if symbol.source >= 0 else -1, symbol.index)
        for symbol in symbols_of(graph)
    ]
