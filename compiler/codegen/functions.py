"""Compiles a module of the LLVM dialect to one object per function; objects are cached by the function's bytecode."""

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

from buddy.compiler.codegen.machines import codegen_version, compile_module, machine_of
from buddy.compiler.codegen.objects import CompiledObject, compile_objects, new_context
from buddy.compiler.codegen.objects.remarks import REMARK_OPTIONS, ObjectRemark, remarks_of
from buddy.compiler.mlir.bindings import PACKAGE, ir, llvm, version
from buddy.compiler.mlir.printing import to_llvm_ir
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.mlir.walk import LOOP_ANNOTATION, RUNS_ONCE, symbol_of
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.support.disk_cache import OBJECTS
from buddy.compiler.support.target import host_features

# The attributes by which ops refer to functions and globals.
_SYMBOL_ATTRIBUTES = {"llvm.call": ("callee",), "llvm.mlir.addressof": ("global_name",)}
# The line numbers in a debug scope.
_SCOPE_LINES = re.compile(r'(\bline = |\bscopeLine = |"' + FILE + r'":)\d+')


@dataclass(frozen=True)
class FunctionObject:
    """An object file that defines one function. Line `i` of its line table is location set `sets[i - 1]`.

    `function_set` is the location set of the whole function. `reused` means that the object comes from the cache;
    `seconds` is the compile time, 0 if it does.
    """

    name: str
    data: bytes
    sets: tuple[int, ...]
    reused: bool = False
    function_set: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class FunctionModule:
    """A function as a separate module: its bytecode, the location sets of its lines, and that of the whole function."""

    name: str
    code: bytes
    sets: tuple[int, ...]
    function_set: int


def compile_functions(
    operation: ir.Operation, locations: LocationSets, opt_level: int, target: str = ""
) -> list[FunctionObject]:
    """Returns an object for each function with a body in a module of the LLVM dialect, from the cache if possible.

    `target` is the recipe's target, "" for this machine. Raises `MachineError` for an unknown target.
    """
    functions = separate_functions(operation, locations)
    keys = [_cache_key(function, opt_level, target) for function in functions]
    objects = {key: data for key in keys if (data := OBJECTS.read(key)) is not None}
    missing = {key: function.code for key, function in zip(keys, functions, strict=True) if key not in objects}
    compile_modules = partial(_objects_for_target, target=target) if target else compile_objects
    compiled = dict(zip(missing, compile_modules(list(missing.values()), opt_level), strict=True))
    for key, (data, _) in compiled.items():
        OBJECTS.write(key, data)
        objects[key] = data
    return [
        FunctionObject(
            function.name,
            objects[key],
            function.sets,
            reused=key not in compiled,
            function_set=function.function_set,
            seconds=compiled[key].seconds if key in compiled else 0.0,
        )
        for function, key in zip(functions, keys, strict=True)
    ]


@dataclass(frozen=True)
class CodeRemark:
    """A remark that LLVM prints `times` times, on code in `function` whose location set has number `location_set`."""

    function: str
    location_set: int
    text: str
    times: int


def code_remarks(operation: ir.Operation, locations: LocationSets, opt_level: int) -> list[CodeRemark]:
    """Returns LLVM's remarks on the functions of a module in the LLVM dialect; caches them with the objects.

    Raises `RemarksError` if LLVM cannot print them.
    """
    functions = separate_functions(operation, locations)
    keys = [digest(_cache_key(function, opt_level), REMARK_OPTIONS) for function in functions]
    cached = {key: data for key in keys if (data := OBJECTS.read(key))}
    remarks = {key: msgspec.msgpack.decode(data, type=list[ObjectRemark]) for key, data in cached.items()}
    missing = {key: function.code for key, function in zip(keys, functions, strict=True) if key not in remarks}
    if missing:
        new_remarks = dict(zip(missing, remarks_of(list(missing.values()), opt_level), strict=True))
        for key, function_remarks in new_remarks.items():
            OBJECTS.write(key, msgspec.msgpack.encode(function_remarks))
        remarks |= new_remarks
    return [
        CodeRemark(function.name, _set_of_line(function, remark.line), remark.text, remark.times)
        for function, key in zip(functions, keys, strict=True)
        for remark in remarks[key]
    ]


def _set_of_line(function: FunctionModule, line: int) -> int:
    """Returns the location set of a line of the line table; that of the whole function for a line without an entry."""
    return function.sets[line - 1] if 0 < line <= len(function.sets) else function.function_set


def separate_functions(operation: ir.Operation, locations: LocationSets) -> list[FunctionModule]:
    """Returns each function with a body as a separate module."""
    block = operation.regions[0].blocks[0]
    symbols = {symbol_of(op): op.operation for op in block if "sym_name" in op.operation.attributes}
    bodies = {name: op for name, op in symbols.items() if op.name == "llvm.func" and _has_body(op)}
    with operation.context, ir.Location.unknown():
        return [
            FunctionModule(
                name, *_separate_module(function, symbols, locations), locations.number_of(function.location)
            )
            for name, function in bodies.items()
        ]


def _cache_key(function: FunctionModule, opt_level: int, target: str = "") -> str:
    """Returns the key of a function's object: a hash of its bytecode, and of all that determines the generated code."""
    machine = f"{machine_of(target)!r} {codegen_version()}" if target else host_features()
    return digest(hashlib.sha256(function.code).hexdigest(), opt_level, machine, PACKAGE, version())


def _objects_for_target(modules: Sequence[bytes], opt_level: int, target: str) -> list[CompiledObject]:
    """Returns the object of each module (bytecode of the LLVM dialect) for another target than this machine."""
    machine, context = machine_of(target), new_context()
    objects = []
    for module in modules:
        start = time.perf_counter()
        with context, ir.Location.unknown():
            text = to_llvm_ir(ir.Module.parse(module).operation)
        data = compile_module(text, opt_level, machine)
        objects.append(CompiledObject(data, time.perf_counter() - start))
    return objects


def _has_body(op: ir.Operation) -> bool:
    return len(op.regions[0].blocks) > 0


def _separate_module(
    function: ir.Operation, symbols: dict[str, ir.Operation], locations: LocationSets
) -> tuple[bytes, tuple[int, ...]]:
    """Returns the bytecode of a module with `function` and declarations of the symbols that it uses.

    Locations are renumbered from 1 in order of appearance, so that equal functions of different programs have equal
    bytecode. The second value has the number in `locations` of each new number.
    """
    module = ir.Module.create()
    with ir.InsertionPoint(module.body):
        copy = function.clone()
        _adapt_to_llvm(copy)
        used_symbols, sets = _renumber(copy, locations)
        for name in used_symbols:
            if name == symbol_of(function) or name not in symbols:
                continue
            if symbols[name].name == "llvm.func":
                _declare(symbols[name])
            else:
                symbols[name].clone()
    flags = ["noinline", "optsize"] if RUNS_ONCE in copy.attributes else ["noinline"]
    copy.attributes["passthrough"] = ir.ArrayAttr.get([ir.StringAttr.get(flag) for flag in flags])
    copy.attributes["sym_visibility"] = ir.StringAttr.get("public")
    # Functions call each other across objects, so none may be local.
    copy.attributes["linkage"] = ir.Attribute.parse("#llvm.linkage<external>")
    bytecode = io.BytesIO()
    module.operation.write_bytecode(bytecode)
    return bytecode.getvalue(), sets


def _adapt_to_llvm(function: ir.Operation) -> None:
    """Moves the annotations of loops to where LLVM finds them, and accesses scalars of bfloat16 as i16, with bitcasts.

    The conversion of `scf.for` leaves its annotation on the branch as an attribute that the translation ignores.

    On processors with AVX512-BF16, LLVM 24 aborts (`Cannot select`) at a store of a bfloat16 that is an element of a
    vector. The loop vectorizer creates such stores from stores with a stride.
    """
    bfloat16 = ir.BF16Type.get()
    accesses: list[Any] = []

    def visit(op: ir.Operation) -> ir.WalkResult:
        if (op.name == "llvm.load" and op.results[0].type == bfloat16) or (
            op.name == "llvm.store" and op.operands[0].type == bfloat16
        ):
            accesses.append(op)
        elif op.name == "llvm.br" and LOOP_ANNOTATION in op.attributes:
            op.attributes["loop_annotation"] = op.attributes[LOOP_ANNOTATION]
            del op.attributes[LOOP_ANNOTATION]
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


def _declare(function: ir.Operation) -> None:
    """Emits a declaration of `function` at the insertion point."""
    kept_names = ("sym_name", "function_type", "CConv")
    attributes = {name: function.attributes[name] for name in kept_names if name in function.attributes}
    linkage = {"linkage": ir.Attribute.parse("#llvm.linkage<external>")}
    ir.Operation.create("llvm.func", attributes={**attributes, **linkage}, regions=1)


def _renumber(function: ir.Operation, locations: LocationSets) -> tuple[list[str], tuple[int, ...]]:
    """Renumbers the location sets of `function` from 1, in order of appearance.

    Returns the symbols that its ops use, and the old number of each set in the new order.
    """
    numbers: dict[int, int] = {}
    symbols: dict[str, None] = {}
    unmapped = locations.unmapped_location(function.context)
    new_locations = {0: unmapped}
    number_of, advance = locations.number_of, ir.WalkResult.ADVANCE

    def visit(op: ir.Operation) -> ir.WalkResult:
        for key in _SYMBOL_ATTRIBUTES.get(op.name, ()):
            if key in op.attributes:
                symbols.setdefault(ir.FlatSymbolRefAttr(op.attributes[key]).value)
        number = number_of(op.location)
        if number not in new_locations:
            numbers[number] = len(numbers) + 1
            new_locations[number] = ir.Location.file(FILE, numbers[number], 0)
        op.location = new_locations[number]
        return advance

    for block in function.regions[0].blocks:
        for argument in block.arguments:
            argument.set_location(unmapped)
        for op in block.operations:
            op.operation.walk(visit)
    # The line numbers of the function's debug scope are set numbers too. With line 0, instructions of the prologue have
    # no nodes of their own, and equal functions have equal bytecode.
    scope = _SCOPE_LINES.sub(r"\g<1>0", str(function.location))
    # The bindings have no function that parses a location.
    function.location = ir.Module.parse(f"module {{}} {scope}").operation.location
    return list(symbols), tuple(numbers)
