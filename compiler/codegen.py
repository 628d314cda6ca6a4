"""LLVM IR and objects: one object a function, cached by the function's own text."""

from __future__ import annotations

import ctypes
import re
import tempfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from buddy.compiler.bindings import PACKAGE, execution_engine, ir, llvm, version
from buddy.compiler.disk_cache import OBJECTS
from buddy.compiler.kernels.packing import ONCE
from buddy.compiler.provenance import FILE, LocationSets
from buddy.compiler.recipe import digest
from buddy.compiler.target import host_features

_LINES = re.compile(r'(\bline = |\bscopeLine = |"' + FILE + r'":)\d+')


@dataclass(frozen=True)
class FunctionObject:
    """An object file that defines one function. Line `i` of its line table stands for location set `sets[i - 1]`."""

    name: str
    data: bytes
    sets: tuple[int, ...]
    reused: bool = False


def to_llvm_ir(operation: Any) -> str:
    """The LLVM IR text of a module in the LLVM dialect."""
    return str(llvm.translate_module_to_llvmir(operation))


def compile_functions(operation: Any, locations: LocationSets, opt_level: int) -> list[FunctionObject]:
    """An object for each function of a module in the LLVM dialect that has a body."""
    block = operation.regions[0].blocks[0]
    symbols = {_name(op): op.operation for op in block if "sym_name" in op.operation.attributes}
    bodies = [op for op in symbols.values() if op.name == "llvm.func" and _has_body(op)]
    return [_compile(function, symbols, locations, opt_level) for function in bodies]


def _name(op: Any) -> str:
    return ir.StringAttr(op.operation.attributes["sym_name"]).value


def _has_body(op: Any) -> bool:
    return len(op.regions[0].blocks) > 0


def _compile(function: Any, symbols: dict[str, Any], locations: LocationSets, opt_level: int) -> FunctionObject:
    """The object of one function, from the cache where its text is known there."""
    with function.context, ir.Location.unknown():
        module, externals, sets = _alone(function, symbols, locations)
        text = module.operation.get_asm(enable_debug_info=True)
        key = digest(text, opt_level, host_features(), PACKAGE, version())
        data = OBJECTS.read(key)
        reused = data is not None
        if data is None:
            data = _emit(module, externals, opt_level)
            OBJECTS.write(key, data)
    return FunctionObject(_name(function), data, sets, reused)


def _alone(function: Any, symbols: dict[str, Any], locations: LocationSets) -> tuple[Any, list[str], tuple[int, ...]]:
    """A module of this function and declarations of what it refers to, with the names of those that are functions.

    Locations are renumbered from 1 in order of appearance, so that equal functions of different programs are equal.
    """
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        copy = function.clone()
        needed = _references(copy, symbols)
        externals = []
        for name in needed:
            if name == _name(function):
                continue
            if symbols[name].name == "llvm.func":
                externals.append(name)
                _declare(symbols[name])
            else:
                symbols[name].clone()
    flags = ["noinline", "optsize"] if ONCE in copy.attributes else ["noinline"]
    copy.attributes["passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get(flag) for flag in flags])
    copy.attributes["sym_visibility"] = ir.StringAttr.get("public")
    # Functions call each other across objects, so none may be local to its own.
    copy.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<external>")
    return module, externals, _renumber(copy, locations)


def _references(root: Any, symbols: dict[str, Any]) -> list[str]:
    """Symbols that ops in `root` refer to: callees, addresses, and what globals among them refer to."""
    found: dict[str, None] = {}

    def visit(op: Any) -> Any:
        for key in ("callee", "global_name"):
            if key in op.attributes:
                name = ir.FlatSymbolRefAttr(op.attributes[key]).value
                if name in symbols:
                    found.setdefault(name)
        return ir.WalkResult.ADVANCE

    root.walk(visit)
    return list(found)


def _declare(function: Any) -> None:
    """A declaration of `function` at the insertion point."""
    kept = {
        key: function.attributes[key] for key in ("sym_name", "function_type", "CConv") if key in function.attributes
    }
    linkage = {"linkage": ir.Attribute.parse("#llvm.linkage<external>")}
    ir.Operation.create("llvm.func", attributes={**kept, **linkage}, regions=1)


def _renumber(function: Any, locations: LocationSets) -> tuple[int, ...]:
    numbers: dict[int, int] = {}

    def visit(op: Any) -> Any:
        if op != function:
            number = locations.number_of(op.location)
            local = numbers.setdefault(number, len(numbers) + 1) if number else 0
            op.location = ir.Location.file(FILE, local, 0)
        for region in op.regions:
            for block in region.blocks:
                for argument in block.arguments:
                    argument.set_location(nowhere)
        return ir.WalkResult.ADVANCE

    nowhere = locations.nowhere(function.context)
    function.walk(visit)
    # The debug scope's own line is that of the whole function's set; at 0, a prologue comes from no node.
    scope = _LINES.sub(r"\g<1>0", str(function.location))
    function.location = ir.Module.parse(f"module {{}} {scope}").operation.location
    return tuple(numbers)


@lru_cache(maxsize=1)
def _nowhere() -> Any:
    """An address for symbols that are only resolved when the object is linked for real."""
    return ctypes.CFUNCTYPE(None)(lambda: None)


def _emit(module: Any, externals: list[str], opt_level: int) -> bytes:
    engine = execution_engine.ExecutionEngine(module, opt_level=opt_level, shared_libs=[])
    for name in externals:
        engine.raw_register_runtime(name, ctypes.cast(_nowhere(), ctypes.c_void_p))
    (name,) = (_name(op) for op in module.body if op.operation.name == "llvm.func" and _has_body(op.operation))
    engine.raw_lookup(name)
    with tempfile.TemporaryDirectory(prefix="buddy-") as folder:
        path = Path(folder, "function.o")
        engine.dump_to_object_file(str(path))
        return path.read_bytes()
