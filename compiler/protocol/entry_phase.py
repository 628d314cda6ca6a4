"""Adapts a pass pipeline to a program that starts as IR. Imports neither torch nor MLIR.

Disables the passes of earlier phases and prepends the passes that the program's dialects need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from buddy.compiler.protocol.pass_facts import facts
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.protocol.steps import FUNC, steps_of
from buddy.compiler.protocol.torch_mlir_pipelines import FROM_BACKEND, FROM_ONNX, FROM_STABLEHLO, TO_BACKEND

# Passes are disabled rather than removed, so that a user can enable them again.
_PHASES = ("torch", "graph", "toplevel", "fused", "buffers", "kernels", "loops", "llvm")
_FRONT_PHASE = "fused"


def entering(recipe: Recipe, enters: str, dialects: Collection[str] = ()) -> Recipe:
    """Returns `recipe`, a preset's, adapted to a program whose IR is at phase `enters` and has ops of `dialects`.

    Returns the recipe unchanged for a captured program (`enters` is "").
    """
    if not enters:
        return recipe
    front = [step for step in _front(recipe, dialects) if step not in recipe.steps]
    steps = [step if _has_work(step, enters) else msgspec.structs.replace(step, enabled=False) for step in recipe.steps]
    return msgspec.structs.replace(recipe, steps=(*front, *steps))


def _front(recipe: Recipe, dialects: Collection[str]) -> list[PassStep]:
    """Returns the passes that convert imported dialects to tensors in MLIR's own dialects, in order."""
    # Functions that the entry function does not call are not part of the program.
    found: list[PassStep] = steps_of(_FRONT_PHASE, "symbol-dce")
    if "onnx" in dialects:
        found += FROM_ONNX
    if "torch" in dialects:
        found += [*TO_BACKEND, *FROM_BACKEND[recipe.dialect]]
    if {"vhlo", "stablehlo", "chlo"} & set(dialects):
        found += _from_hlo(dialects)
    if "complex" in dialects:
        found += steps_of(_FRONT_PHASE, ("convert-complex-to-standard", FUNC))
    if "shape" in dialects:
        found += steps_of(_FRONT_PHASE, "shape-to-shape-lowering", "convert-shape-to-std")
    return [msgspec.structs.replace(step, phase=_FRONT_PHASE) for step in found]


def _from_hlo(dialects: Collection[str]) -> Iterable[PassStep]:
    if "vhlo" in dialects:
        yield from steps_of(_FRONT_PHASE, "vhlo-legalize-to-stablehlo")
    if "chlo" in dialects:
        yield from steps_of(_FRONT_PHASE, ("chlo-legalize-to-stablehlo", FUNC))
    yield from FROM_STABLEHLO


def _has_work(step: PassStep, enters: str) -> bool:
    """Whether an enabled step applies to IR at that phase."""
    if not step.enabled or step.level == "graph":
        return False
    if enters == "toplevel" or step.phase not in _PHASES:
        return True
    at, known = _PHASES.index(step.phase), facts(step.name)
    if enters == "llvm":
        # What is put around a function of the LLVM dialect copies results, by ops that become loops.
        return at >= _PHASES.index("llvm") or known.lowers == "structured-ops"
    if known.works_on_numbers:
        return True
    if known.bufferizes or at <= _PHASES.index("fused"):
        return False
    return enters == "buffers" or at >= _PHASES.index("loops") or known.works_on_buffers
