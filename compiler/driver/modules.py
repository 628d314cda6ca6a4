"""The MLIR module of a Buddy graph for scripts: creation, compilation, execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from buddy.compiler.codegen import calling_convention, functions
from buddy.compiler.driver import diagnosis
from buddy.compiler.driver.compile_graph import run_in_place
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.partition import Partition
from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.graph.types import DeviceType, NodeType, TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.func import eager_calls
from buddy.compiler.ops.lowering import NodeError, lower, new_context
from buddy.compiler.ops.packed_parameters import pack_parameters
from buddy.compiler.protocol.artifact import ArtifactSymbol, TensorSpec
from buddy.compiler.protocol.presets import default_recipe, unpacked
from buddy.compiler.protocol.recipe import Recipe

Run = Callable[..., list[Any]]
Dialect = Literal["linalg", "tosa"]
# What `graph.graph.GraphLowering` wants of this module.
__all__ = ["TopLevelModule", "lower_to_llvm", "new_context", "runnable", "set_device", "top_level"]


class TopLevelModule(NamedTuple):
    """A top-level module, and the values to pass for each `buddy.source` of its entry's arguments."""

    module: Any
    arguments: tuple[TensorMeta, ...]


def top_level(graph: Graph, pack: bool, parts: Partition | None = None) -> TopLevelModule:
    """The top-level module of `graph`; with `pack` its parameters are passed as one 1-D tensor per element type.

    `parts` says which of its nodes are calls of functions in other modules. Raises `GraphError` for a graph that cannot
    be executed and `CompilationError` for a node that can neither be compiled nor run in eager.
    """
    graph.check()
    settings = graph.settings
    recipe = Recipe(dialect=settings.dialect, partition="whole")
    try:
        found = lower(graph, recipe, graph._ctx, graph._locations, settings.first(), parts, settings.on_node)
    except NodeError as error:
        raise CompilationError(diagnosis.of_node(error)) from error
    if graph.device is not DeviceType.CPU:
        set_device(found.module, graph._func_name, graph.device)
    arguments = tuple(op.tensor_meta for op in graph.placeholders)
    return TopLevelModule(found.module, _packed(graph, found.module) if pack else arguments)


def _packed(graph: Graph, module: Any) -> tuple[TensorMeta, ...]:
    placeholders = list(enumerate(graph.placeholders))
    parameters = [(i, op.tensor_meta.dtype) for i, op in placeholders if op.kind is NodeType.FakeNode]
    inputs = [i for i, op in placeholders if op.kind is not NodeType.FakeNode]
    packs = pack_parameters(module, graph._func_name, parameters, inputs)
    return (*packs, *(graph.placeholders[i].tensor_meta for i in inputs))


def set_device(module: Any, name: str, device: DeviceType) -> None:
    """Marks function `name` of a module with the device that it runs on."""
    for op in module.body:
        if ir.StringAttr(op.operation.attributes["sym_name"]).value == name:
            with module.context:
                op.operation.attributes["buddy.device"] = ir.StringAttr.get(device.value)


def lower_to_llvm(graph: Graph) -> None:
    """Take the module that `graph` holds to the LLVM dialect with the default pipeline, in place.

    Raises `CompilationError` when a pass fails.
    """
    run_in_place(graph._imported_module, default_recipe(dialect=graph.settings.dialect), graph._locations)


def runnable(found: TopLevelModule, graph: Graph) -> Run:
    """A top-level module that computes `graph`, compiled in place and linked.

    The callable takes torch tensors as the module's function takes them, one after the other, and numbers that symbolic
    sizes are read from, in order. It returns a list.
    Raises `CompilationError` as `run_in_place` does.
    """
    from buddy.compiler.runtime import LoadedProgram

    module, name = found.module, graph._func_name
    recipe = unpacked(default_recipe(dialect=graph.settings.dialect))  # each call may bring other tensors
    calls = eager_calls(module.operation)
    entry = run_in_place(module, recipe, graph._locations)
    if entry is None:
        raise CompilationError(diagnosis.no_entry(name))
    objects = functions.compile_functions(module.operation, graph._locations, recipe.opt_level)
    arguments = [_spec(meta) for meta in found.arguments]
    results = [_spec(op.tensor_meta) for op in graph.results if isinstance(op, Op)]
    images = [image.data for image in objects]
    program = LoadedProgram(
        calling_convention.artifact(
            name, entry, module.operation, images, arguments, results, calls, recipe.threads, _symbols(found, graph)
        )
    )

    def run(*values: Any) -> list[Any]:
        numbers = [value for value in values if isinstance(value, int)]
        return program([value for value in values if not isinstance(value, int)], numbers)

    return run


def _symbols(found: TopLevelModule, graph: Graph) -> list[ArtifactSymbol]:
    """Where a call finds the symbols of `graph`: packed parameters change the numbers of the inputs."""
    places = {id(meta): number for number, meta in enumerate(found.arguments)}
    sources = [places.get(id(op.tensor_meta), -1) for op in graph.placeholders]
    return [
        ArtifactSymbol(symbol.name, sources[symbol.source] if symbol.source >= 0 else -1, symbol.index)
        for symbol in symbols_of(graph)
    ]


def _spec(meta: TensorMeta) -> TensorSpec:
    return TensorSpec(tuple(map(plain_size, meta.shape)), meta.dtype.value)
