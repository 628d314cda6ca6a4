"""`CompilationError`, and the diagnostics of failed compilations: what happened, where, and what to do."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from buddy.compiler.codegen.gpu.host_code import kernel_modules
from buddy.compiler.codegen.objects import ObjectCrash
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import NodeError
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.pass_runner import StepError, run_step
from buddy.compiler.protocol import Diagnostic, Stage
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.protocol.text.lines import StageText
from buddy.compiler.protocol.text.structure import shapes

_FINAL, _MODULE = "llvm", "builtin.module"
_LOWERING = ("loops", _FINAL)
# Conversions leave casts between types that other conversions have yet to convert. Translating one would abort the
# process.
_CAST = "builtin.unrealized_conversion_cast"
_DEVICE_KERNELS = Diagnostic(
    "the recipe compiles kernels for a GPU, which this process cannot run",
    "after the last pass",
    "run it with `buddy-tui run`, or choose a preset for the CPU",
)
_NO_CONVERTER = {
    False: "add a pass that converts {} to the LLVM dialect",
    True: "give the conversions to the LLVM dialect the same options, such as index-bitwidth: their types must match",
}
_ILLEGAL = re.compile(r"failed to legalize operation '([\w.]+)'")


class CompilationError(Exception):
    """A compilation failed. `stages` includes the IR at the failure, marked as failed, if there is any."""

    def __init__(self, diagnostic: Diagnostic, stages: list[tuple[Stage, StageText]] | None = None) -> None:
        super().__init__(str(diagnostic))
        self.diagnostic = diagnostic
        self.stages = stages or []


def of_node(error: NodeError) -> Diagnostic:
    node = error.node
    where = f"node {node.stable or node.name} ({node.target})" + (f", {node.location}" if node.location else "")
    return Diagnostic(str(error), where, "remove the op from the program, or add a lowering for it", node=node.stable)


def no_lowerings(dialect: str) -> Diagnostic:
    todo = "choose linalg or tosa, or the frontend torch-mlir, which supports it"
    return Diagnostic(f"no registry lowers ops to {dialect}", "the recipe's target dialect", todo)


def of_step(
    error: StepError, step: PassStep, index: int, converters: Sequence[str] = (), rewriter: str = ""
) -> Diagnostic:
    """Returns the diagnostic of a failed step.

    `converters` are passes that would convert the op that the step failed to convert; `rewriter` is the pass that last
    changed the op.
    """
    where = f"pass {index + 1} {step.spelling()}" + (f", on an op of {error.node}" if error.node else "")
    if rewriter:
        where += f", which {rewriter} last rewrote"
    todo = "compare the IR before and at the failure, change the pass's options, or switch it off"
    if converters:
        todo = f"switch on {' or '.join(converters)}, or " + todo
    return Diagnostic(error.message, where, todo, detail=error.detail, step=index, node=error.node)


def converters_of(error: StepError, module: Any, recipe: Recipe, locations: LocationSets) -> list[str]:
    """Returns the passes that would convert the op on which a conversion failed, in the input `module`."""
    found = _ILLEGAL.search(error.message)
    return _converters(module, found.group(1), recipe, locations) if found else []


def last_rewriter(place: int, trail: Sequence[tuple[Stage, StageText]]) -> str:
    """Returns the last stage in `trail` that changed the lines of location set `place`; "" if none did.

    Renumbered SSA values do not count as a change.
    """
    for (_, before), (stage, after) in reversed(list(pairwise(trail))):
        if _lines_of(place, before) != _lines_of(place, after):
            return stage.name
    return ""


def _lines_of(place: int, text: StageText) -> Counter[str]:
    numbered = zip(text.content.splitlines(), text.line_sets, strict=True)
    return Counter(shape.key for shape in shapes((line for line, number in numbered if number == place), "mlir"))


def of_translation(text: str) -> Diagnostic:
    first = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return Diagnostic(
        first, "translation to LLVM IR", "look at the last stage: every op must be of the LLVM dialect", detail=text
    )


def of_crash(error: ObjectCrash) -> Diagnostic:
    """The diagnostic for a function that LLVM crashed on."""
    return Diagnostic(
        f"LLVM crashed ({error.how})",
        f"machine code of @{error.function}",
        "choose another optimization level, or let the nodes of that function run in eager",
    )


def unknown_backend(name: str, known: Sequence[str]) -> Diagnostic:
    todo = f"choose one of {', '.join(known)}, or load the plug-in that registers it (--plugin)"
    return Diagnostic(f"unknown backend {name!r}", "the recipe's backend", todo)


def of_plugin_backend(name: str, error: Exception) -> Diagnostic:
    """An exception of a plug-in's backend other than `CompilationError`."""
    detail = "".join(traceback.format_exception(error))
    line = traceback.extract_tb(error.__traceback__)[-1]
    what = f"the backend {name} raised {type(error).__name__}: {error}"
    return Diagnostic(what, f"{line.filename}:{line.lineno}", "correct the plug-in, or choose another", detail=detail)


def no_entry(name: str) -> Diagnostic:
    return Diagnostic(
        f"@{name} never had buffers as arguments and out-parameters as results",
        "the pipeline",
        "switch on one-shot-bufferize and results-to-out-params, before the conversion to LLVM",
    )


def wrong_convention(name: str, arity: int) -> Diagnostic:
    return Diagnostic(
        f"@{name} does not take its {arity} buffers as bare pointers, so it cannot be called",
        "convert-func-to-llvm",
        "set use-bare-ptr-memref-call-conv=true",
    )


def wrong_result_size(node: str, number: int, written: int, room: int) -> Diagnostic:
    return Diagnostic(
        f"result {number} is {written} bytes, but the caller's buffer has {room}",
        f"the results of the program, {node}",
        "find where its type starts to differ from the graph's: a pass, an edit, or a frontend's own decomposition",
        node=node,
    )


def leftover_ops(module: Any, recipe: Recipe, locations: LocationSets) -> Diagnostic | None:
    """Returns a diagnostic if ops of other dialects are left at the end, with the passes that would convert them."""
    if kernel_modules(module):
        return _DEVICE_KERNELS
    counts, first = _foreign(module, locations)
    if not counts:
        return None
    casts = counts.pop(_CAST, 0)
    name, count = counts.most_common(1)[0] if counts else (_CAST, casts)
    more = max(0, len(counts) - 1)
    others = f" and {more} other kind{'s' * (more > 1)} of op" if more else ""
    todo = _how_to_convert(module, name, recipe, locations)
    node = first.get(name, "")
    where = f"after the last pass, {count} of them" + (f", the first from {node}" if node else "")
    verb = "are" if others else "is"
    return Diagnostic(f"{name}{others} {verb} not lowered to the LLVM dialect", where, todo, node=node)


def _how_to_convert(module: Any, name: str, recipe: Recipe, locations: LocationSets) -> str:
    if helpers := _converters(module, name, recipe, locations):
        return f"switch on {' or '.join(helpers)}"
    if name != _CAST and (early := _converters(module, name, recipe, locations, on=True)):
        return f"move {' or '.join(early)} after the pass that produces it, or add it there again"
    return _NO_CONVERTER[name == _CAST].format(name)


def _foreign(module: Any, locations: LocationSets) -> tuple[Counter[str], dict[str, str]]:
    counts: Counter[str] = Counter()
    first: dict[str, str] = {}

    def visit(op: Any) -> Any:
        if op.name.partition(".")[0] != _FINAL and op.name != _MODULE:
            counts[op.name] += 1
            names = locations.sets[locations.number_of(op.location)]
            if names:
                first.setdefault(op.name, names[0])
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return counts, first


def _converters(module: Any, name: str, recipe: Recipe, locations: LocationSets, on: bool = False) -> list[str]:
    """Returns the passes after which fewer ops of that name are left.

    Tries passes that the recipe disables or lacks, or with `on` the enabled conversions of its last phases.
    """
    before = _foreign(module, locations)[0][name]
    running = {step.name for step in recipe.steps if step.enabled}
    preset = presets().get(recipe.preset)
    candidates = [*recipe.steps, *(preset.recipe.steps if preset else ())]
    tried = {
        step.name: step
        for step in candidates
        if step.level == "mlir" and (step.name in running) is on and (not on or _converts(step))
    }
    return [step.name for step in tried.values() if _count_after(module, name, step, locations) < before]


def _converts(step: PassStep) -> bool:
    return step.phase in _LOWERING and not facts(step.name).simplifies


def _count_after(module: Any, name: str, step: PassStep, locations: LocationSets) -> int:
    with module.context, ir.Location.unknown():
        clone = module.clone()
        try:
            run_step(clone, step, PassContext(locations))
        except StepError:
            return _foreign(module, locations)[0][name]
        return _foreign(clone, locations)[0][name]
