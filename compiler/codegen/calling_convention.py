"""The calling convention of the entry function, derived from its arguments in the IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import OUT_PARAMETER, bytes_of
from buddy.compiler.ops.sizes import SIZES, read_sizes, symbols_of
from buddy.compiler.protocol.artifact import (
    FORK,
    Argument,
    Artifact,
    ArtifactSymbol,
    EagerCall,
    SavedMemory,
    TensorSpec,
    TimedRegion,
)

# Attribute of an argument for a graph input: the number of the input.
SOURCE_ATTRIBUTE = "buddy.source"
# Attribute of an out-parameter that may be memory of a saved tensor: the graph input's number, and an offset in bytes.
_MEMORY_ATTRIBUTE = "buddy.memory"
# Attribute of the entry's last argument, the arena: its size in bytes.
ARENA_BYTES_ATTRIBUTE = "buddy.arena"
# Attribute of an argument that is computed from a weight before the calls: the name of the function that computes it.
PREPARE_ATTRIBUTE = "buddy.prepare"
# Attribute of an argument with packed weights: the name of the function that packs them.
PACK_ATTRIBUTE = "buddy.pack"
# Attribute of a weight that kernels read sequentially and in place.
STREAMED_ATTRIBUTE = "buddy.streamed"
# Attribute of a module: the regions that its cycle counters measure.
REGIONS_ATTRIBUTE = "buddy.regions"


@dataclass(frozen=True)
class EntryArgument:
    """The argument for graph input number `source`; `pack` is the name of the function that prepares it, or "".

    `shape` and `element` are those of the argument in the IR, with symbolic sizes as text. `streamed` means that
    kernels read the argument, a weight, sequentially and in place. `is_chained` is false if the argument needs two
    functions, one that transforms the weight and one that packs the result, and no function calls both.
    """

    source: int
    pack: str
    shape: tuple[int | str, ...]
    element: str
    streamed: bool = False
    is_chained: bool = True


@dataclass(frozen=True)
class EntryConvention:
    """The calling convention of the entry: its arguments for the graph's inputs, the names of its symbols, its arena.

    `arena` is the size of the arena in bytes; if it is 0, the entry takes no arena. `results` has the size in bytes of
    each out-parameter, `None` if it is dynamic. `memory` has the part of a saved tensor in which each out-parameter may
    lie, or `None`.
    """

    arguments: tuple[EntryArgument, ...]
    arena: int = 0
    symbols: tuple[str, ...] = ()
    results: tuple[int | None, ...] = ()
    memory: tuple[SavedMemory | None, ...] = ()


def entry_of(module: ir.Operation) -> ir.Operation | None:
    """Returns the entry function of a module in the `func` dialect, or `None`."""
    functions = (op.operation for op in module.regions[0].blocks[0] if op.operation.name == "func.func")
    return next((operation for operation in functions if _is_entry(operation)), None)


def read_entry_convention(module: ir.Operation) -> EntryConvention | None:
    """Returns the calling convention of the entry.

    Returns `None` if `module` has no entry in the `func` dialect, or if the entry has results, or other arguments than
    memrefs and symbols.
    """
    operation = entry_of(module)
    if operation is None:
        return None
    function_type = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
    types = function_type.inputs
    # Passes convert results to out-parameters and tensors to memrefs; before them, the convention is not final.
    if function_type.results or not all(isinstance(t, (ir.MemRefType, ir.IndexType)) for t in types):
        return None
    attributes_of_arguments = list(map(ir.DictAttr, ir.ArrayAttr(operation.attributes["arg_attrs"])))
    typed_attributes = list(zip(types, attributes_of_arguments, strict=True))
    inputs = [_argument(type_, attributes) for type_, attributes in typed_attributes]
    arena = sum(
        ir.IntegerAttr(attributes[ARENA_BYTES_ATTRIBUTE]).value
        for attributes in attributes_of_arguments
        if ARENA_BYTES_ATTRIBUTE in attributes
    )
    outputs = [(type_, attributes) for type_, attributes in typed_attributes if OUT_PARAMETER in attributes]
    return EntryConvention(
        arguments=tuple(argument for argument in inputs if argument is not None),
        arena=arena,
        symbols=tuple(symbols_of(operation, types)),
        results=tuple(bytes_of(type_) if type_.has_static_shape else None for type_, _ in outputs),
        memory=tuple(_saved_memory(attributes) for _, attributes in outputs),
    )


def memory_attribute(source: int, offset: int) -> dict[str, ir.Attribute]:
    """Returns the attribute of an out-parameter that may be the memory of saved tensor `source` from byte `offset`."""
    return {_MEMORY_ATTRIBUTE: ir.DenseI64ArrayAttr.get([source, offset])}


def _saved_memory(attributes: ir.DictAttr) -> SavedMemory | None:
    """Returns the part of a saved tensor in which an out-parameter with `attributes` may lie, or `None`."""
    if _MEMORY_ATTRIBUTE not in attributes:
        return None
    return SavedMemory(*ir.DenseI64ArrayAttr(attributes[_MEMORY_ATTRIBUTE]))


class ConventionReader:
    """Reads the entry's calling convention between passes; `last` is the last one that could be read."""

    def __init__(self) -> None:
        self.last: EntryConvention | None = None
        self._last_signature: tuple[Any, ...] = ()

    def read(self, module: ir.Operation) -> None:
        """Reads the calling convention again if the entry's type or attributes have changed."""
        operation = entry_of(module)
        if operation is None:
            return
        signature = operation.attributes["function_type"], operation.attributes["arg_attrs"]
        if signature != self._last_signature:
            self.last, self._last_signature = read_entry_convention(module) or self.last, signature


def _is_entry(operation: ir.Operation) -> bool:
    """Returns whether a function is public, has a body, and is called by the calling convention of the entry."""
    if "arg_attrs" not in operation.attributes or not operation.regions[0].blocks:
        return False
    # Functions with a C interface, such as packing functions, are called with memref descriptors.
    return "sym_visibility" not in operation.attributes and "llvm.emit_c_interface" not in operation.attributes


def _argument(type_: ir.Type, attributes: ir.Attribute) -> EntryArgument | None:
    """Returns the entry's argument with `type_` and `attributes`, or `None` if no graph input is passed in it."""
    if SOURCE_ATTRIBUTE not in attributes:
        return None
    preparing_functions = [
        ir.StringAttr(attributes[key]).value for key in (PACK_ATTRIBUTE, PREPARE_ATTRIBUTE) if key in attributes
    ]
    source = ir.IntegerAttr(attributes[SOURCE_ATTRIBUTE]).value
    memref = ir.MemRefType(type_)
    shape = tuple(map(plain_size, read_sizes(attributes[SIZES]))) if SIZES in attributes else memref.shape
    return EntryArgument(
        source,
        pack=preparing_functions[0] if preparing_functions else "",
        shape=tuple(shape),
        element=str(memref.element_type),
        streamed=STREAMED_ATTRIBUTE in attributes,
        is_chained=len(preparing_functions) < 2,
    )


def artifact_arguments(entry: EntryConvention, placeholders: Sequence[TensorSpec]) -> tuple[Argument, ...]:
    """Returns the artifact's arguments.

    A packed argument has the shape and element type of the IR. Any other has those of its placeholder, which tell the
    signedness of integers.
    """
    arguments = []
    for argument in entry.arguments:
        spec = TensorSpec(argument.shape, argument.element) if argument.pack else placeholders[argument.source]
        arguments.append(Argument(argument.source, spec, argument.pack, argument.streamed))
    return tuple(arguments)


def count_word_arguments(module: ir.Operation, name: str) -> int:
    """Returns the number of arguments of function `name` in a module of the LLVM dialect.

    Returns -1 if the function does not exist, or if it has arguments other than pointers and 64-bit integers.
    """
    for op in module.regions[0].blocks[0]:
        operation = op.operation
        if operation.name == "llvm.func" and ir.StringAttr(operation.attributes["sym_name"]).value == name:
            arguments = operation.regions[0].blocks[0].arguments
            are_words = all(str(argument.type) in ("!llvm.ptr", "i64") for argument in arguments)
            return len(arguments) if are_words else -1
    return -1


def uses_threads(module: ir.Operation) -> bool:
    """Returns whether a module in the LLVM dialect divides loops among threads."""
    op_attributes = (op.operation.attributes for op in module.regions[0].blocks[0])
    symbols = (ir.StringAttr(attributes["sym_name"]).value for attributes in op_attributes if "sym_name" in attributes)
    return any(symbol == FORK for symbol in symbols)


def regions_attribute(regions: Sequence[TimedRegion]) -> ir.Attribute:
    """Returns `regions` as the attribute `REGIONS_ATTRIBUTE` of the module whose cycle counters measure them."""
    return ir.ArrayAttr.get([_region_attribute(region) for region in regions])


def _region_attribute(region: TimedRegion) -> ir.Attribute:
    names = {"nodes": ir.ArrayAttr.get([ir.StringAttr.get(name) for name in region.nodes])}
    texts = {"function": ir.StringAttr.get(region.function), "what": ir.StringAttr.get(region.label)}
    parent = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), region.parent)
    return ir.DictAttr.get({**names, **texts, "parent": parent})


def regions_of(module: ir.Operation) -> tuple[TimedRegion, ...]:
    """Returns the regions that the cycle counters of a module measure; empty if it has no counters."""
    if REGIONS_ATTRIBUTE not in module.attributes:
        return ()
    return tuple(_region(ir.DictAttr(attributes)) for attributes in ir.ArrayAttr(module.attributes[REGIONS_ATTRIBUTE]))


def _region(attributes: ir.Attribute) -> TimedRegion:
    nodes = tuple(ir.StringAttr(name).value for name in ir.ArrayAttr(attributes["nodes"]))
    function, label = (ir.StringAttr(attributes[key]).value for key in ("function", "what"))
    return TimedRegion(nodes, function, label, ir.IntegerAttr(attributes["parent"]).value)


def make_artifact(
    name: str, entry: EntryConvention, module: ir.Operation, objects: Sequence[bytes],
    placeholders: Sequence[TensorSpec], results: Sequence[TensorSpec],
    calls: Sequence[EagerCall], threads: int, symbols: Sequence[ArtifactSymbol] = (),
    observed: Sequence[str] = (), target: str = "",
) -> Artifact:  # fmt: skip
    """Returns the artifact of `module`, in the LLVM dialect and compiled to `objects`.

    `placeholders` and `results` are those of the graph, `calls` the module's calls of eager, and `symbols` the graph's.
    `threads` and `target` are the recipe's. `observed` has the stable names of the nodes whose values are recorded.
    """
    # Results without elements have no out-parameter.
    out_parameters = (number for number, spec in enumerate(results) if 0 not in spec.shape)
    memory = [(number, part) for number, part in zip(out_parameters, entry.memory, strict=False) if part is not None]
    return Artifact(
        name,
        tuple(objects),
        artifact_arguments(entry, placeholders),
        tuple(results),
        tuple(calls),
        entry.arena,
        threads if uses_threads(module) else 1,
        tuple(symbol for symbol_name in entry.symbols for symbol in symbols if symbol.name == symbol_name),
        tuple(observed),
        regions_of(module),
        target=target,
        memory=tuple(memory),
    )
