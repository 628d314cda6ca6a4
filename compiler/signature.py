"""How the entry function is called, read off its arguments in the IR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from buddy.compiler.artifact import Argument, TensorSpec
from buddy.compiler.bindings import ir


@dataclass(frozen=True)
class EntryArgument:
    """An argument that comes from graph input number `source`; `pack` names the function that packs it, or is ""."""

    source: int
    pack: str
    shape: tuple[int, ...]
    element: str


@dataclass(frozen=True)
class Entry:
    arguments: tuple[EntryArgument, ...]


def of_module(module: Any) -> Entry | None:
    """The entry's calling convention once results are out-parameters; `None` before, and after `func` is gone."""
    for op in module.regions[0].blocks[0]:
        operation = op.operation
        if operation.name == "func.func" and _is_entry(operation):
            kind = ir.FunctionType(ir.TypeAttr(operation.attributes["function_type"]).value)
            if kind.results or not all(isinstance(t, ir.MemRefType) for t in kind.inputs):
                return None
            pairs = zip(kind.inputs, ir.ArrayAttr(operation.attributes["arg_attrs"]), strict=True)
            found = (_argument(t, ir.DictAttr(a)) for t, a in pairs)
            return Entry(tuple(argument for argument in found if argument is not None))
    return None


def _is_entry(operation: Any) -> bool:
    if "arg_attrs" not in operation.attributes or not operation.regions[0].blocks:
        return False
    if "sym_visibility" in operation.attributes:
        return False
    return not ir.StringAttr(operation.attributes["sym_name"]).value.startswith("pack_")


def _argument(kind: Any, attributes: Any) -> EntryArgument | None:
    if "buddy.source" not in attributes:
        return None
    pack = ir.StringAttr(attributes["buddy.pack"]).value if "buddy.pack" in attributes else ""
    source = ir.IntegerAttr(attributes["buddy.source"]).value
    return EntryArgument(source, pack, tuple(ir.MemRefType(kind).shape), str(ir.MemRefType(kind).element_type))


def arguments(entry: Entry, placeholders: Sequence[TensorSpec]) -> tuple[Argument, ...]:
    """The artifact's arguments: a raw input has the graph's own spec, which knows signedness, a packed one the IR's."""
    return tuple(
        Argument(a.source, TensorSpec(a.shape, a.element) if a.pack else placeholders[a.source], a.pack)
        for a in entry.arguments
    )


def pointers_of(module: Any, name: str) -> int:
    """How many pointers function `name` of a module in the LLVM dialect takes; -1 if it is absent or takes others."""
    for op in module.regions[0].blocks[0]:
        operation = op.operation
        if operation.name == "llvm.func" and ir.StringAttr(operation.attributes["sym_name"]).value == name:
            arguments = operation.regions[0].blocks[0].arguments
            return len(arguments) if all(str(a.type) == "!llvm.ptr" for a in arguments) else -1
    return -1
