"""Compiles a module of the LLVM dialect to one object per function; objects are cached by the function's bytecode.

`compile_by_pass` compiles without the cache, and returns the functions after each pass of LLVM's optimiser, with the
nodes of each line.
"""

from __future__ import annotations

import hashlib
import io
import re
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import partial
from typing import Any

import msgspec

from buddy.compiler.codegen.machines import codegen_version, compile_module, machine_of
from buddy.compiler.codegen.objects import CompiledObject, compile_objects, new_context
from buddy.compiler.codegen.objects.llvm_passes import (
    REMARK_OPTIONS,
    LlvmPass,
    ObjectRemark,
    OptimisedFunction,
    optimise_functions,
    remarks_of,
)
from buddy.compiler.mlir.bindings import PACKAGE, ir, llvm, version
from buddy.compiler.mlir.printing import print_llvm, stage_text, to_llvm_ir
from buddy.compiler.mlir.provenance import FILE, LocationSets
from buddy.compiler.mlir.walk import LOOP_ANNOTATION, RUNS_ONCE, symbol_of
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.protocol.text.lines import StageText
from buddy.compiler.support.disk_cache import OBJECTS
from buddy.compiler.support.target import host_features

# The attributes by which ops refer to functions and globals.
_SYMBOL_ATTRIBUTES = {"llvm.call": ("callee",), "llvm.mlir.addressof": ("global_name",)}
# The line numbers in a debug scope.
_SCOPE_LINES = re.compile(r'(\bline = |\bscopeLine = |"' + FILE + r'":)\d+')


@dataclass(frozen=True)
class FunctionObject:
    """An object file that defines one function. Line `i` of its line table is location set `sets[i - 1]`.

    `function_set` is the location set of the whole function. `reused` means that the object comes from the cache.
    `seconds` is the compile time, 0 for a reused object.
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
    """Returns LLVM's remarks on the functions of a module in the LLVM dialect; caches remarks with the objects.

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
    """Returns the location set of line `line` of the line table; without such a line, the set of the whole function."""
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
    """Moves the annotations of loops to where LLVM finds them; accesses scalars of bfloat16 as i16.

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
    for op in accesses:
        _access_as_i16(op)


def _access_as_i16(op: ir.Operation) -> None:
    """Converts a load or store of a bfloat16 to one of an i16, with a bitcast of the scalar."""
    i16 = ir.IntegerType.get_signless(16)
    if op.name == "llvm.store":
        with op.location, ir.InsertionPoint(op):
            op.operands[0] = llvm.bitcast(i16, op.operands[0])
        return
    (loaded,) = op.results
    loaded.set_type(i16)
    with op.location, ir.InsertionPoint.after(op):
        scalar = llvm.bitcast(ir.BF16Type.get(), loaded)
    loaded.replace_all_uses_except(scalar, scalar.owner.operation)


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
    new_numbers: dict[int, int] = {}  # by the old numbers
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
            new_numbers[number] = len(new_numbers) + 1
            new_locations[number] = ir.Location.file(FILE, new_numbers[number], 0)
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
    return list(symbols), tuple(new_numbers)


# ---- the stages of LLVM's optimiser ----------------------------------------------------------------------------------


_OPCODE = re.compile(r"^  (?:%\S+ = )?(?:tail |musttail |notail )?([a-z]\w*)", re.MULTILINE)
# The name of the stage before all passes.
INPUT = "optimiser-input"


@dataclass(frozen=True)
class LlvmStage:
    """All functions after a pass that changed one of them. `counts` are the numbers of instructions by opcode."""

    name: str
    text: StageText
    counts: Counter[str]


@dataclass(frozen=True)
class StagedObjects:
    """The objects of a module, the stages of LLVM's optimiser, and the names of all passes that can be skipped."""

    objects: list[FunctionObject]
    stages: list[LlvmStage]
    pass_names: frozenset[str]


def compile_by_pass(
    operation: ir.Operation,
    locations: LocationSets,
    opt_level: int,
    target: str,
    disabled: Sequence[str],
    *,
    with_stages: bool,
) -> StagedObjects:
    """Compiles each function of a module of the LLVM dialect without the passes of LLVM that are named in `disabled`.

    With `with_stages`, also returns the stages. Raises `OptimiserError` if LLVM fails.
    """
    functions = separate_functions(operation, locations)
    context = new_context()
    with context, ir.Location.unknown():
        texts = [to_llvm_ir(ir.Module.parse(function.code).operation) for function in functions]
    optimised = optimise_functions(texts, opt_level, machine_of(target), disabled, with_stages)
    objects = [
        FunctionObject(
            function.name, result.data, function.sets, function_set=function.function_set, seconds=result.seconds
        )
        for function, result in zip(functions, optimised, strict=True)
    ]
    pass_names = frozenset(name for result in optimised for name in result.names)
    stages = _stages(functions, optimised, locations) if with_stages and functions else []
    return StagedObjects(objects, stages, pass_names)


def _stages(
    functions: Sequence[FunctionModule], optimised: Sequence[OptimisedFunction], locations: LocationSets
) -> list[LlvmStage]:
    """Returns the stages, each of which differs from the previous one.

    All functions go through one pipeline, but loop passes run once for each loop of a function. So the functions have
    different lists of passes, which are aligned by name. A stage has the texts of all functions at one position of the
    aligned list.
    """
    order: list[str] = []
    for result in optimised:
        order = _merge_pass_lists(order, [pass_run.name for pass_run in result.passes])
    texts_by_position = [_texts_by_position(order, result.passes) for result in optimised]
    current_texts = [_FunctionText((), ()) for _ in functions]
    stages: list[LlvmStage] = []
    for position, name in enumerate(order):
        has_changed = False
        for number, function in enumerate(functions):
            module_text = texts_by_position[number].get(position)
            if module_text:
                new_text = _definition_text(function, module_text, locations)
                has_changed |= new_text.lines != current_texts[number].lines
                current_texts[number] = new_text
        if has_changed:
            # If a loop pass runs on several loops, only the text after the last loop is a stage.
            if stages and stages[-1].name == name:
                stages.pop()
            stages.append(_stage(name or INPUT, current_texts, locations))
    return stages


def _merge_pass_lists(first: list[str], second: list[str]) -> list[str]:
    """Returns a list with the names of both lists, each in its order; equal names that are aligned occur once."""
    merged: list[str] = []
    for tag, start, end, second_start, second_end in SequenceMatcher(None, first, second, autojunk=False).get_opcodes():
        merged += first[start:end]
        if tag != "equal":
            merged += second[second_start:second_end]
    return merged


def _texts_by_position(order: list[str], passes: Sequence[LlvmPass]) -> dict[int, str]:
    """Returns the texts after the passes that changed something, by the position of the pass in `order`."""
    names = [pass_run.name for pass_run in passes]
    texts: dict[int, str] = {}
    for block in SequenceMatcher(None, order, names, autojunk=False).get_matching_blocks():
        for offset in range(block.size):
            texts[block.a + offset] = passes[block.b + offset].text
    return {position: text for position, text in texts.items() if text}


@dataclass(frozen=True)
class _FunctionText:
    """The lines of a function's definition, each with the number of its location set."""

    lines: tuple[str, ...]
    sets: tuple[int, ...]


def _definition_text(function: FunctionModule, text: str, locations: LocationSets) -> _FunctionText:
    """Returns the definition of a function in a module of LLVM IR, with the location set of each line."""
    printed = print_llvm(text, locations, function.sets, function.function_set)
    lines = printed.content.splitlines()
    start = next((n for n, line in enumerate(lines) if line.startswith("define ")), 0)
    end = next((n for n, line in enumerate(lines) if n >= start and line == "}"), len(lines) - 1)
    return _FunctionText(tuple(lines[start : end + 1]), tuple(printed.line_sets[start : end + 1]))


def _stage(name: str, functions: Sequence[_FunctionText], locations: LocationSets) -> LlvmStage:
    """Returns the stage `name` with the texts of all functions, one after another."""
    lines: list[str] = []
    set_numbers: list[int] = []
    for function in functions:
        lines += [*function.lines, ""]
        set_numbers += [*function.sets, 0]
    # Instructions are indented; labels and braces are not.
    weights = Counter(number for line, number in zip(lines, set_numbers, strict=True) if line.startswith("  "))
    text = stage_text(lines[:-1], set_numbers[:-1], locations, weights)
    return LlvmStage(name, text, Counter(_OPCODE.findall(text.content)))
