"""The calling convention of the entry function, derived from its arguments in the IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.walk import RESULT, bytes_of
from buddy.compiler.ops.sizes import SIZES, read_sizes, symbols_of
from buddy.compiler.protocol.artifact import (
    FORK,
    Argument,
    Artifact,
    ArtifactSymbol,
    EagerCall,
    TensorSpec,
    TimedRegion,
)

# On the entry's last argument: its size in bytes, as an arena.
ARENA = "buddy.arena"
# On a parameter that kernels read sequentially in place.
STREAMED = "buddy.streamed"
# On a module: the regions that its cycle counters count.
REGIONS = "buddy.regions"


@dataclass(frozen=True)
class EntryArgument:
    """The argument for graph input number `source`; `pack` is the name of the function that packs it, or "".

    `streamed` is a weight that kernels read sequentially in place.
    """

    source: int
    pack: str
    shape: tuple[int | str, ...]
    element: str
    streamed: bool = False


@dataclass(frozen=True)
class EntryConvention:
    """The arguments for the graph's inputs, the names of the symbols that follow, and the bytes of the arena.

    The arena is an argument if it is not 0. `results` are the bytes of each result that is passed, `None` if dynamic.
    """

    arguments: tuple[EntryArgument, ...]
    arena: int = 0
    symbols: tuple[str, ...] = ()
    results: tuple[int | None, ...] = ()


def entry_of(module: Any) -> Any | None:
    """Returns the entry function of a module in the `func` dialect, or `None`."""
    functions = (op.operation for op in module.regions[0].blocks[0] if op.operation.name == "func.func")
    return next((operation for operation in functions if _is_entry(operation)), None)


def of_module(module: Any) -> EntryConvention | None:
    """Returns the entry's calling convention while `func` exists and results are out-parameters; otherwise `None`."""
    operation = entry_of(module)
    if operation is None:
        return None
    kind = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
    if kind.results or not all(isinstance(t, (ir.MemRefType, ir.IndexType)) for t in kind.inputs):
        return None
    pairs = [
        (t, ir.DictAttr(a)) for t, a in zip(kind.inputs, ir.ArrayAttr(operation.attributes["arg_attrs"]), strict=True)
    ]
    found = (_argument(t, attributes) for t, attributes in pairs)
    arena = sum(ir.IntegerAttr(attributes[ARENA]).value for _, attributes in pairs if ARENA in attributes)
    symbols = symbols_of(operation, kind.inputs)
    results = tuple(bytes_of(t) if t.has_static_shape else None for t, attributes in pairs if RESULT in attributes)
    return EntryConvention(
        tuple(argument for argument in found if argument is not None), arena, tuple(symbols), results
    )


class ConventionReader:
    """Reads the entry's calling convention between passes; parses it again if its type or attributes changed."""

    def __init__(self) -> None:
        self.last: EntryConvention | None = None
        self._seen: tuple[Any, ...] = ()

    def read(self, module: Any) -> None:
        operation = entry_of(module)
        if operation is None:
            return
        seen = operation.attributes["function_type"], operation.attributes["arg_attrs"]
        if seen != self._seen:
            self.last, self._seen = of_module(module) or self.last, seen


def _is_entry(operation: Any) -> bool:
    if "arg_attrs" not in operation.attributes or not operation.regions[0].blocks:
        return False
    # Functions with a C interface are called with descriptors: packing functions, and separate ones.
    return "sym_visibility" not in operation.attributes and "llvm.emit_c_interface" not in operation.attributes


def _argument(kind: Any, attributes: Any) -> EntryArgument | None:
    if "buddy.source" not in attributes:
        return None
    pack = ir.StringAttr(attributes["buddy.pack"]).value if "buddy.pack" in attributes else ""
    source = ir.IntegerAttr(attributes["buddy.source"]).value
    shape = tuple(map(plain_size, read_sizes(attributes[SIZES]))) if SIZES in attributes else ir.MemRefType(kind).shape
    element = str(ir.MemRefType(kind).element_type)
    return EntryArgument(source, pack, tuple(shape), element, STREAMED in attributes)


def arguments(entry: EntryConvention, placeholders: Sequence[TensorSpec]) -> tuple[Argument, ...]:
    """Returns the artifact's arguments: a raw input has the graph's spec, with signedness, a packed one the IR's."""
    return tuple(
        Argument(a.source, TensorSpec(a.shape, a.element) if a.pack else placeholders[a.source], a.pack, a.streamed)
        for a in entry.arguments
    )


def words_of(module: Any, name: str) -> int:
    """Returns the number of pointers and sizes that function `name` of a module in the LLVM dialect takes.

    Returns -1 if it does not exist or takes other values.
    """
    for op in module.regions[0].blocks[0]:
        operation = op.operation
        if operation.name == "llvm.func" and ir.StringAttr(operation.attributes["sym_name"]).value == name:
            arguments = operation.regions[0].blocks[0].arguments
            return len(arguments) if all(str(a.type) in ("!llvm.ptr", "i64") for a in arguments) else -1
    return -1


def forks(module: Any) -> bool:
    """True if a module in the LLVM dialect has parallel loops."""
    symbols = (op.operation.attributes for op in module.regions[0].blocks[0])
    return any(ir.StringAttr(a["sym_name"]).value == FORK for a in symbols if "sym_name" in a)


def regions_attribute(regions: Sequence[TimedRegion]) -> Any:
    """Returns regions as an attribute of the module that counts them."""
    return ir.ArrayAttr.get([_region_attribute(region) for region in regions])


def _region_attribute(region: TimedRegion) -> Any:
    names = {"nodes": ir.ArrayAttr.get([ir.StringAttr.get(name) for name in region.nodes])}
    texts = {"function": ir.StringAttr.get(region.function), "what": ir.StringAttr.get(region.what)}
    parent = ir.IntegerAttr.get(ir.IntegerType.get_signless(64), region.parent)
    return ir.DictAttr.get({**names, **texts, "parent": parent})


def regions_of(module: Any) -> tuple[TimedRegion, ...]:
    """Returns the regions that the counters of a module count; empty if it has none."""
    if REGIONS not in module.attributes:
        return ()
    return tuple(_region(ir.DictAttr(each)) for each in ir.ArrayAttr(module.attributes[REGIONS]))


def _region(attributes: Any) -> TimedRegion:
    nodes = tuple(ir.StringAttr(name).value for name in ir.ArrayAttr(attributes["nodes"]))
    function, what = (ir.StringAttr(attributes[key]).value for key in ("function", "what"))
    return TimedRegion(nodes, function, what, ir.IntegerAttr(attributes["parent"]).value)


def artifact(
    name: str, entry: EntryConvention, module: Any, objects: Sequence[bytes], placeholders: Sequence[TensorSpec],
    results: Sequence[TensorSpec], calls: Sequence[EagerCall], threads: int, symbols: Sequence[ArtifactSymbol] = (),
    observed: Sequence[str] = (), target: str = "",
) -> Artifact:  # fmt: skip
    """Returns the artifact of `module`, in the LLVM dialect and compiled to `objects`.

    `threads` and `target` are the recipe's.
    """
    return Artifact(
        name,
        tuple(objects),
        arguments(entry, placeholders),
        tuple(results),
        tuple(calls),
        entry.arena,
        threads if forks(module) else 1,
        tuple(found for name in entry.symbols for found in symbols if found.name == name),
        tuple(observed),
        regions_of(module),
        target=target,
    )
