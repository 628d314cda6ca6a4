"""`CompilationError`, and the diagnostics of failed compilations: what happened, where, and what to do."""

from __future__ import annotations

import re
import traceback
from collections import Counter
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from itertools import pairwise

from buddy.compiler.codegen.gpu.host_code import kernel_modules
from buddy.compiler.codegen.objects import ObjectCrash
from buddy.compiler.codegen.objects.llvm_passes import OptimiserError
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops.lowering import NodeError
from buddy.compiler.passes.base import PassContext
from buddy.compiler.passes.pass_runner import PassRunError, run_pass
from buddy.compiler.protocol import Diagnostic, Stage
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.presets import presets
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.protocol.text.line_keys import line_keys
from buddy.compiler.protocol.text.lines import StageText

_LLVM_DIALECT, _MODULE = "llvm", "builtin.module"
_LOWERING_PHASES = ("loops", _LLVM_DIALECT)
# Conversions leave casts between types that other conversions have yet to convert. Translating one would abort the
# process.
_CAST = "builtin.unrealized_conversion_cast"
_DEVICE_KERNELS = Diagnostic(
    "the recipe compiles kernels for a GPU, which this process cannot run",
    "after the last pass",
    "run it with `buddy-tui run`, or choose a preset for the CPU",
)
# What to do about an op for which no pass was found, by whether it is a cast between types.
_HINT_WITHOUT_CONVERTER = {
    False: "add a pass that converts {} to the LLVM dialect",
    True: "give the conversions to the LLVM dialect the same options, such as index-bitwidth: their types must match",
}
_FAILED_LEGALIZATION = re.compile(r"failed to legalize operation '([\w.]+)'")


class CompilationError(BuddyError):
    """A compilation failed. `stages` contains the IR at the failure, marked as failed, if it was kept."""

    def __init__(self, diagnostic: Diagnostic, stages: list[tuple[Stage, StageText]] | None = None) -> None:
        super().__init__(diagnostic)
        self.stages = stages or []


def of_node(error: NodeError) -> Diagnostic:
    """Returns the diagnostic for a node that can neither be compiled nor run in eager."""
    node = error.node
    where = f"node {node.stable or node.name} ({node.target})" + (f", {node.location}" if node.location else "")
    return Diagnostic(str(error), where, "remove the op from the program, or add a lowering for it", node=node.stable)


def no_lowerings(dialect: str) -> Diagnostic:
    """Returns the diagnostic for a target dialect without a registry of lowerings."""
    todo = "choose linalg or tosa, or the frontend torch-mlir, which supports it"
    return Diagnostic(f"no registry lowers ops to {dialect}", "the recipe's target dialect", todo)


def of_step(
    error: PassRunError, step: PassStep, index: int, converters: Sequence[str] = (), rewriter: str = ""
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


def converters_of(error: PassRunError, module: ir.Operation, recipe: Recipe, locations: LocationSets) -> list[str]:
    """Returns the passes that would convert the op on which a conversion failed; `module` is the conversion's input."""
    match = _FAILED_LEGALIZATION.search(error.message)
    return _converters(module, match.group(1), recipe, locations) if match else []


def last_rewriter(location_set: int, stages: Sequence[tuple[Stage, StageText]]) -> str:
    """Returns the name of the last of `stages` that changed the lines of `location_set`, a number; "" if none did.

    Renumbered SSA values do not count as a change.
    """
    for (_, before), (stage, after) in reversed(list(pairwise(stages))):
        if _lines_of(location_set, before) != _lines_of(location_set, after):
            return stage.name
    return ""


def _lines_of(location_set: int, text: StageText) -> Counter[str]:
    """Returns the lines of a location set, without the numbers of SSA values, and how often each occurs."""
    lines_and_sets = zip(text.content.splitlines(), text.line_sets, strict=True)
    lines = (line for line, number in lines_and_sets if number == location_set)
    return Counter(line.key for line in line_keys(lines, "mlir"))


def of_translation(text: str) -> Diagnostic:
    """Returns the diagnostic for a module that MLIR cannot translate to LLVM IR; `text` is MLIR's message."""
    first_line = next((line for line in text.splitlines() if line.strip()), "no reason given")
    return Diagnostic(
        first_line,
        "translation to LLVM IR",
        "look at the last stage: every op must be of the LLVM dialect",
        detail=text,
    )


def of_crash(error: ObjectCrash) -> Diagnostic:
    """Returns the diagnostic for a function on which LLVM crashed."""
    return Diagnostic(
        f"LLVM crashed ({error.how})",
        f"machine code of @{error.function}",
        "choose another optimization level, or let the nodes of that function run in eager",
    )


def of_optimiser(error: OptimiserError) -> Diagnostic:
    """Returns the diagnostic for a failure of LLVM's optimiser that runs pass by pass."""
    todo = "enable the passes of LLVM again, or reset llvm_stages to compile with the bindings' LLVM"
    return Diagnostic(
        f"LLVM's optimiser failed: {str(error).splitlines()[0]}", "LLVM's passes", todo, detail=str(error)
    )


def unknown_llvm_pass(name: str, known: Collection[str]) -> Diagnostic:
    """Returns the diagnostic for a disabled pass that LLVM's pipeline does not have."""
    similar = get_close_matches(name, known, 3, 0.5)
    todo = f"did you mean {', '.join(similar)}? " if similar else ""
    return Diagnostic(
        f"LLVM's pipeline has no pass {name!r} at this optimization level",
        "the recipe's llvm_disabled",
        f"{todo}the stages with llvm_stages name the passes that change something",
    )


def unknown_backend(name: str, known: Sequence[str]) -> Diagnostic:
    """Returns the diagnostic for a backend that the recipe names but nothing has registered."""
    todo = f"choose one of {', '.join(known)}, or load the plug-in that registers it (--plugin)"
    return Diagnostic(f"unknown backend {name!r}", "the recipe's backend", todo)


def of_plugin_backend(name: str, error: Exception) -> Diagnostic:
    """Returns the diagnostic for an exception of a plug-in's backend other than `CompilationError`."""
    detail = "".join(traceback.format_exception(error))
    innermost_frame = traceback.extract_tb(error.__traceback__)[-1]
    what = f"the backend {name} raised {type(error).__name__}: {error}"
    where = f"{innermost_frame.filename}:{innermost_frame.lineno}"
    return Diagnostic(what, where, "correct the plug-in, or choose another", detail=detail)


def no_entry(name: str) -> Diagnostic:
    """Returns the diagnostic for an entry function whose arguments never became buffers."""
    return Diagnostic(
        f"@{name} never had buffers as arguments and out-parameters as results",
        "the pipeline",
        "switch on one-shot-bufferize and results-to-out-params, before the conversion to LLVM",
    )


def wrong_convention(name: str, arity: int) -> Diagnostic:
    """Returns the diagnostic for an entry function that does not take its `arity` buffers as bare pointers."""
    return Diagnostic(
        f"@{name} does not take its {arity} buffers as bare pointers, so it cannot be called",
        "convert-func-to-llvm",
        "set use-bare-ptr-memref-call-conv=true",
    )


def unchained_packing(name: str) -> Diagnostic:
    """Returns the diagnostic for an argument that two passes prepare, without a function that does both."""
    return Diagnostic(
        f"an argument of @{name} is both transformed by hoist-parameters and packed, and no function does both",
        "hoist-parameters, contractions-to-kernels",
        "enable chain-packings after the passes that pack weights, or disable hoist-parameters",
    )


def wrong_result_size(node: str, number: int, written: int, available: int) -> Diagnostic:
    """Returns the diagnostic for result `number`, of `written` bytes, whose buffer has `available` bytes."""
    return Diagnostic(
        f"result {number} is {written} bytes, but the caller's buffer has {available}",
        f"the results of the program, {node}",
        "find where its type starts to differ from the graph's: a pass, an edit, or a frontend's own decomposition",
        node=node,
    )


def leftover_ops(module: ir.Operation, recipe: Recipe, locations: LocationSets) -> Diagnostic | None:
    """Returns a diagnostic that names ops of other dialects left in `module` and passes that would convert them.

    Returns `None` if all ops are of the LLVM dialect.
    """
    if kernel_modules(module):
        return _DEVICE_KERNELS
    counts, first_nodes = _count_foreign_ops(module, locations)
    if not counts:
        return None
    casts = counts.pop(_CAST, 0)
    name, count = counts.most_common(1)[0] if counts else (_CAST, casts)
    other_count = max(0, len(counts) - 1)
    others = f" and {other_count} other kind{'s' * (other_count > 1)} of op" if other_count else ""
    todo = _conversion_hint(module, name, recipe, locations)
    node = first_nodes.get(name, "")
    where = f"after the last pass, {count} of them" + (f", the first from {node}" if node else "")
    verb = "are" if others else "is"
    return Diagnostic(f"{name}{others} {verb} not lowered to the LLVM dialect", where, todo, node=node)


def _conversion_hint(module: ir.Operation, name: str, recipe: Recipe, locations: LocationSets) -> str:
    """Returns what to do about ops called `name` that are left after the last pass."""
    if disabled := _converters(module, name, recipe, locations):
        return f"switch on {' or '.join(disabled)}"
    if name != _CAST and (too_early := _converters(module, name, recipe, locations, enabled=True)):
        return f"move {' or '.join(too_early)} after the pass that creates {name}, or add it there again"
    return _HINT_WITHOUT_CONVERTER[name == _CAST].format(name)


def _count_foreign_ops(module: ir.Operation, locations: LocationSets) -> tuple[Counter[str], dict[str, str]]:
    """Returns the numbers of ops outside the LLVM dialect, and the node of the first one, both by the op's name."""
    counts: Counter[str] = Counter()
    first_nodes: dict[str, str] = {}

    def visit(op: ir.Operation) -> ir.WalkResult:
        if op.name.partition(".")[0] != _LLVM_DIALECT and op.name != _MODULE:
            counts[op.name] += 1
            names = locations.sets[locations.number_of(op.location)]
            if names:
                first_nodes.setdefault(op.name, names[0])
        return ir.WalkResult.ADVANCE

    module.walk(visit)
    return counts, first_nodes


def _converters(
    module: ir.Operation, name: str, recipe: Recipe, locations: LocationSets, enabled: bool = False
) -> list[str]:
    """Returns the passes after which `module` has fewer ops called `name`; finds them by running them on clones.

    Tries the passes that the recipe disables, and those of its preset that it lacks. With `enabled`, tries the recipe's
    enabled conversions of the last phases instead.
    """
    before = _count_ops(module, name, locations)
    enabled_names = {step.name for step in recipe.steps if step.enabled}
    preset = presets().get(recipe.preset)
    candidates = [*recipe.steps, *(preset.recipe.steps if preset else ())]
    steps_to_try = {
        step.name: step
        for step in candidates
        if step.level == "mlir"
        and (step.name in enabled_names) == enabled
        and (not enabled or _is_late_conversion(step))
    }
    return [step.name for step in steps_to_try.values() if _count_after(module, name, step, locations) < before]


def _is_late_conversion(step: PassStep) -> bool:
    """Returns whether a pass is a conversion of the last phases, which may run before its ops have been created."""
    return step.phase in _LOWERING_PHASES and not facts(step.name).simplifies


def _count_after(module: ir.Operation, name: str, step: PassStep, locations: LocationSets) -> int:
    """Returns the number of ops called `name` in a clone of `module` after a pass, or in `module` if the pass fails."""
    with module.context, ir.Location.unknown():
        clone = module.clone()
        try:
            run_pass(clone, step, PassContext(locations))
        except PassRunError:
            return _count_ops(module, name, locations)
        return _count_ops(clone, name, locations)


def _count_ops(module: ir.Operation, name: str, locations: LocationSets) -> int:
    """Returns the number of ops called `name`, which are not of the LLVM dialect."""
    counts, _ = _count_foreign_ops(module, locations)
    return counts[name]
