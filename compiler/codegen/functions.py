"""LLVM IR and objects: one object per function, cached by the function's text."""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from buddy.compiler.codegen.machines import codegen_version, machine_of, object_of
from buddy.compiler.codegen.objects import CompiledObject, new_context, objects_of
from buddy.compiler.codegen.objects.remarks import OPTIONS, ObjectRemark, remarks_of
from buddy.compiler.mlir.bindings import PACKAGE, ir, llvm, version
from buddy.compiler.mlir.printing import llvm_text
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.mlir.walk import ONCE
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.support.disk_cache import OBJECTS
from buddy.compiler.support.target import host_features

# The attributes by which ops refer to functions and globals.
_SYMBOLS = {"llvm.call": ("callee",), "llvm.mlir.addressof": ("global_name",)}
_LINES = re.compile(r'(\bline = |\bscopeLine = |"' + FILE + r'":)\d+')


@dataclass(frozen=True)
class FunctionObject:
    """An object file that defines one function. Line `i` of its line table is location set `sets[i - 1]`.

    `group` is the set of the whole function. `seconds` is the compile time, 0 if it was cached.
    """

    name: str
    data: bytes
    sets: tuple[int, ...]
    reused: bool = False
    group: int = 0
    seconds: float = 0.0


def to_llvm_ir(operation: Any) -> str:
    """Returns the LLVM IR text of a module in the LLVM dialect."""
    return llvm_text(operation)


@dataclass(frozen=True)
class _Separate:
    """A function as a separate module: bytecode, its location sets, and that of the whole function."""

    name: str
    code: bytes
    sets: tuple[int, ...]
    group: int


def compile_functions(
    operation: Any, locations: LocationSets, opt_level: int, target: str = ""
) -> list[FunctionObject]:
    """Returns an object for each function with a body in a module of the LLVM dialect, from the cache if possible.

    `target` is the recipe's. Raises `MachineError` for an unknown one.
    """
    functions = _separate_functions(operation, locations)
    keys = [_key(found, opt_level, target) for found in functions]
    found = {key: data for key in keys if (data := OBJECTS.read(key)) is not None}
    missing = {key: each.code for key, each in zip(keys, functions, strict=True) if key not in found}
    make = partial(_objects_for_target, target=target) if target else objects_of
    made = dict(zip(missing, make(list(missing.values()), opt_level), strict=True))
    for key, (data, _) in made.items():
        OBJECTS.write(key, data)
        found[key] = data
    return [
        FunctionObject(
            each.name, found[key], each.sets, key not in made, each.group, made[key].seconds if key in made else 0.0
        )
        for each, key in zip(functions, keys, strict=True)
    ]


@dataclass(frozen=True)
class CodeRemark:
    """A remark of LLVM, made `times` times, on code in `function` with location set `number`."""

    function: str
    number: int
    text: str
    times: int


def code_remarks(operation: Any, locations: LocationSets, opt_level: int) -> list[CodeRemark]:
    """Returns LLVM's remarks on the functions of a module in the LLVM dialect; caches them with the objects.

    Raises `RemarksError` if LLVM cannot print them.
    """
    functions = _separate_functions(operation, locations)
    keys = [digest(_key(found, opt_level), OPTIONS) for found in functions]
    found = {key: msgspec.msgpack.decode(data, type=list[ObjectRemark]) for key in keys if (data := OBJECTS.read(key))}
    missing = {key: each.code for key, each in zip(keys, functions, strict=True) if key not in found}
    if missing:
        made = dict(zip(missing, remarks_of(list(missing.values()), opt_level), strict=True))
        for key, remark in made.items():
            OBJECTS.write(key, msgspec.msgpack.encode(remark))
        found |= made
    return [
        CodeRemark(each.name, _set_at(each, remark.line), remark.text, remark.times)
        for each, key in zip(functions, keys, strict=True)
        for remark in found[key]
    ]


def _set_at(function: _Separate, line: int) -> int:
    return function.sets[line - 1] if 0 < line <= len(function.sets) else function.group


def _separate_functions(operation: Any, locations: LocationSets) -> list[_Separate]:
    block = operation.regions[0].blocks[0]
    symbols = {_name(op): op.operation for op in block if "sym_name" in op.operation.attributes}
    bodies = {name: op for name, op in symbols.items() if op.name == "llvm.func" and _has_body(op)}
    with operation.context, ir.Location.unknown():
        return [
            _Separate(name, *_separate_module(function, symbols, locations), locations.number_of(function.location))
            for name, function in bodies.items()
        ]


def _key(function: _Separate, opt_level: int, target: str = "") -> str:
    machine = f"{machine_of(target)!r} {codegen_version()}" if target else host_features()
    return digest(_digested(function.code), opt_level, machine, PACKAGE, version())


def _objects_for_target(modules: Sequence[bytes], opt_level: int, target: str) -> list[CompiledObject]:
    """Returns the object of each module (bytecode of the LLVM dialect) for another target than this machine."""
    machine, context = machine_of(target), new_context()
    found = []
    for module in modules:
        start = time.perf_counter()
        with context, ir.Location.unknown():
            text = to_llvm_ir(ir.Module.parse(module).operation)
        data = object_of(text, opt_level, machine)
        found.append(CompiledObject(data, time.perf_counter() - start))
    return found


def _digested(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()


def _name(op: Any) -> str:
    return ir.StringAttr(op.operation.attributes["sym_name"]).value


def _has_body(op: Any) -> bool:
    return len(op.regions[0].blocks) > 0


def _separate_module(function: Any, symbols: dict[str, Any], locations: LocationSets) -> tuple[bytes, tuple[int, ...]]:
    """Returns the bytecode of a module with this function and declarations of its symbols, and its location sets.

    Locations are renumbered from 1 in order of appearance, so that equal functions of different programs are equal.
    """
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        copy = function.clone()
        _access_bfloat16_as_integers(copy)
        needed, sets = _renumber(copy, locations)
        for name in needed:
            if name == _name(function) or name not in symbols:
                continue
            if symbols[name].name == "llvm.func":
                _declare(symbols[name])
            else:
                symbols[name].clone()
    flags = ["noinline", "optsize"] if ONCE in copy.attributes else ["noinline"]
    copy.attributes["passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get(flag) for flag in flags])
    copy.attributes["sym_visibility"] = ir.StringAttr.get("public")
    # Functions call each other across objects, so none may be local.
    copy.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<external>")
    written = io.BytesIO()
    module.operation.write_bytecode(written)
    return written.getvalue(), sets


def _access_bfloat16_as_integers(function: Any) -> None:
    """Makes scalar loads and stores of bfloat16 in `function` those of i16, which are bitcast.

    LLVM 24 aborts (`Cannot select`) on processors with AVX512-BF16 if a bfloat16 is stored that is an element of a
    vector, as the loop vectorizer makes them of stores with a stride.
    """
    bfloat16 = ir.BF16Type.get()
    accesses: list[Any] = []

    def visit(op: Any) -> Any:
        if (op.name == "llvm.load" and op.results[0].type == bfloat16) or (
            op.name == "llvm.store" and op.operands[0].type == bfloat16
        ):
            accesses.append(op)
        return ir.WalkResult.ADVANCE

    function.walk(visit)
    bits = ir.IntegerType.get_signless(16)
    for op in accesses:
        with op.location:
            if op.name == "llvm.store":
                with ir.InsertionPoint(op):
                    op.operands[0] = llvm.bitcast(bits, op.operands[0])
                continue
            (loaded,) = op.results
            loaded.set_type(bits)
            with ir.InsertionPoint.after(op):
                value = llvm.bitcast(bfloat16, loaded)
            loaded.replace_all_uses_except(value, value.owner.operation)


def _declare(function: Any) -> None:
    """Emits a declaration of `function` at the insertion point."""
    copied = {
        key: function.attributes[key] for key in ("sym_name", "function_type", "CConv") if key in function.attributes
    }
    linkage = {"linkage": ir.Attribute.parse("#llvm.linkage<external>")}
    ir.Operation.create("llvm.func", attributes={**copied, **linkage}, regions=1)


def _renumber(function: Any, locations: LocationSets) -> tuple[list[str], tuple[int, ...]]:
    """Numbers the location sets of `function` from 1.

    Returns the symbols that its ops use, and its sets in that order.
    """
    numbers: dict[int, int] = {}
    symbols: dict[str, None] = {}
    nowhere = locations.nowhere(function.context)
    places = {0: nowhere}
    number_of, advance = locations.number_of, ir.WalkResult.ADVANCE

    def visit(op: Any) -> Any:
        for key in _SYMBOLS.get(op.name, ()):
            if key in op.attributes:
                symbols.setdefault(ir.FlatSymbolRefAttr(op.attributes[key]).value)
        number = number_of(op.location)
        if number not in places:
            numbers[number] = len(numbers) + 1
            places[number] = ir.Location.file(FILE, numbers[number], 0)
        op.location = places[number]
        return advance

    for block in function.regions[0].blocks:
        for argument in block.arguments:
            argument.set_location(nowhere)
        for op in block.operations:
            op.operation.walk(visit)
    # The debug scope's own line is the set of the whole function; line 0 keeps a prologue without nodes.
    scope = _LINES.sub(r"\g<1>0", str(function.location))
    function.location = ir.Module.parse(f"module {{}} {scope}").operation.location
    return list(symbols), tuple(numbers)
