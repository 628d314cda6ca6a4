"""Compiles a module with LLVM's optimiser, and shows its functions after each pass, with the nodes of each line."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from buddy.compiler.codegen.functions import FunctionModule, FunctionObject, separate_functions
from buddy.compiler.codegen.machines import machine_of
from buddy.compiler.codegen.objects import new_context
from buddy.compiler.codegen.objects.optimiser import LlvmPass, OptimisedFunction, optimise_functions
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_llvm, stage_text, to_llvm_ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol.text.lines import StageText

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
    results = optimise_functions(texts, opt_level, machine_of(target), disabled, with_stages)
    objects = [
        FunctionObject(
            function.name, result.data, function.sets, function_set=function.function_set, seconds=result.seconds
        )
        for function, result in zip(functions, results, strict=True)
    ]
    pass_names = frozenset(name for result in results for name in result.names)
    stages = _stages(functions, results, locations) if with_stages and functions else []
    return StagedObjects(objects, stages, pass_names)


def _stages(
    functions: Sequence[FunctionModule], results: Sequence[OptimisedFunction], locations: LocationSets
) -> list[LlvmStage]:
    """Returns the stages that differ from the one before.

    All functions go through one pipeline, but loop passes run once for each loop of a function. So the functions have
    different lists of passes, which are aligned by name. A stage has the texts of all functions at one position of the
    aligned list.
    """
    order: list[str] = []
    for result in results:
        order = _merge_pass_lists(order, [pass_run.name for pass_run in result.passes])
    texts_by_position = [_texts_by_position(order, result.passes) for result in results]
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
    """Returns a list that contains both lists in their order, with equal names aligned."""
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
    sets: list[int] = []
    for function in functions:
        lines += [*function.lines, ""]
        sets += [*function.sets, 0]
    # Instructions are indented; labels and braces are not.
    weights = Counter(number for line, number in zip(lines, sets, strict=True) if line.startswith("  "))
    text = stage_text(lines[:-1], sets[:-1], locations, weights)
    return LlvmStage(name, text, Counter(_OPCODE.findall(text.content)))
