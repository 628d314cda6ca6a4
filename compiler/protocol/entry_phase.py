"""Adapts a pass pipeline to a program that starts as IR. Imports neither torch nor MLIR.

Disables the passes of earlier phases and prepends the passes that the program's dialects need.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

import msgspec

from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.protocol.steps import FUNC, steps_of
from buddy.compiler.protocol.torch_mlir_pipelines import FROM_BACKEND, FROM_ONNX, FROM_STABLEHLO, TO_BACKEND

# Passes are disabled rather than removed, so that a user can enable them again.
_PHASES = ("torch", "graph", "toplevel", "fused", "buffers", "kernels", "loops", "llvm")
# Passes that convert tensors to buffers.
_BUFFERIZING = frozenset({"one-shot-bufferize"})
# Passes of these phases that still apply to IR on loops and buffers: they plan memory, lower results and copies, and
# turn parallel loops into threads.
_ON_BUFFERS = frozenset({
    "results-to-out-params", "canonicalize", "cse", "scf-forall-to-parallel", "read-in-place", "write-in-place",
    "parallel-to-tasks", "plan-memory", "pass-sizes",
})  # fmt: skip
# Passes that the wrapper of a function in the LLVM dialect needs.
_AROUND_LLVM = frozenset({"copies-to-loops", "convert-linalg-to-loops"})
# Passes that decompose ops on scalars as well as on tensors.
_ON_ANYTHING = frozenset({"expand-math-to-polynomials"})
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
        found += [*TO_BACKEND, *FROM_BACKEND[recipe.flavour]]
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
    at = _PHASES.index(step.phase)
    if enters == "llvm":
        return at >= _PHASES.index("llvm") or step.name in _AROUND_LLVM
    if step.name in _ON_ANYTHING:
        return True
    if step.name in _BUFFERIZING or at <= _PHASES.index("fused"):
        return False
    return enters == "buffers" or at >= _PHASES.index("loops") or step.name in _ON_BUFFERS
