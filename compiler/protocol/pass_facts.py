"""What is known of passes by name beyond their options: the one table that recipes, tools and clients ask.

Plain data, so that what knows neither torch nor MLIR can ask. A pass that is not in `PASSES` has none of these facts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Value = bool | int | float | str
# What a pass takes apart: ops on buffers, which become loops; loops, which become branches; functions, which become
# the LLVM dialect's.
Lowers = Literal["", "structured-ops", "loops", "functions"]


@dataclass(frozen=True)
class Numbers:
    """A pass changes results within rounding: `how`, and the option that has it leave that, else it is switched off."""

    how: str
    without: tuple[str, Value] | None = None


@dataclass(frozen=True)
class PassFacts:
    """Facts of one pass. Its phase stands on the step of a recipe, since passes such as `cse` run in several."""

    # It makes buffers of tensors.
    bufferizes: bool = False
    # It has work to do on IR that begins as buffers and loops: memory is still to be planned, say.
    works_on_buffers: bool = False
    # It takes apart ops on numbers as well as on tensors, so it has work at every phase before the LLVM dialect.
    works_on_numbers: bool = False
    lowers: Lowers = ""
    # Afterwards functions have the memory that they work in.
    plans_memory: bool = False
    # It packs weights before the call, unless its option `PACK_WEIGHTS` is false.
    packs_weights: bool = False
    # Its result depends on the recipe's threads. What comes before it is the same for any number of them.
    reads_threads: bool = False
    # A graph pass whose result is made for this compiler's kernels, and not for another backend.
    for_own_kernels: bool = False
    # It only simplifies: no pipeline needs it for another pass to succeed.
    simplifies: bool = False
    # Its option is a module as text, which takes the place of the one that it is given.
    holds_ir: bool = False
    numbers: Numbers | None = None
    # What a search varies unless told: options and their values ("": the pass is on or off); 0 and "auto" are the
    # pass's own choice.
    tuned: tuple[tuple[str, tuple[Value, ...]], ...] = ()


# The option by which a pass that packs weights is told to leave that.
PACK_WEIGHTS = "pack-weights"
REPLACE_IR = "replace-ir"

_ON_OR_OFF, _OFF_OR_ON = ("", (True, False)), ("", (False, True))
_NONE = PassFacts()

# In the order in which a search varies them.
PASSES: Mapping[str, PassFacts] = MappingProxyType({
    # This compiler's own passes over MLIR.
    "contractions-to-kernels": PassFacts(
        packs_weights=True,
        numbers=Numbers("sums of products are blocked and use fused multiply-add"),
        tuned=(("rows", (0, 4, 6, 8, 12, 14)), ("vectors", (0, 1, 2, 3, 4)), ("depth", (0, 128, 256, 512))),
    ),
    "convolutions-to-kernels": PassFacts(
        packs_weights=True,
        numbers=Numbers("3x3 convolutions use the Winograd algorithm", ("winograd", "never")),
        tuned=(("winograd", ("auto", "never", "2")),),
    ),
    "contractions-to-blas": PassFacts(numbers=Numbers("matrix products are BLAS calls"), tuned=(_OFF_OR_ON,)),
    "flash-attention-prefill": PassFacts(
        for_own_kernels=True, numbers=Numbers("attention is computed in blocks of keys"), tuned=(_ON_OR_OFF,)
    ),
    "gqa-attention-fusion": PassFacts(
        for_own_kernels=True, numbers=Numbers("attention reads shared heads in place")
    ),
    "choose-layouts": PassFacts(tuned=(_ON_OR_OFF,)),
    "fuse-epilogues": PassFacts(
        numbers=Numbers("bias and activation are applied to sums in registers"), tuned=(_ON_OR_OFF,)
    ),
    "fuse-rows": PassFacts(numbers=Numbers("softmax and norms are fused into one loop over rows"), tuned=(_ON_OR_OFF,)),
    "fuse-elementwise": PassFacts(numbers=Numbers("intermediates of element-wise ops are not rounded to memory")),
    "vectorize-generics": PassFacts(numbers=Numbers("sums are accumulated in vector lanes")),
    "expand-math-to-polynomials": PassFacts(
        works_on_numbers=True, numbers=Numbers("exp, erf, tanh and similar functions are polynomials")
    ),
    "results-to-out-params": PassFacts(works_on_buffers=True),
    "read-in-place": PassFacts(works_on_buffers=True),
    "write-in-place": PassFacts(works_on_buffers=True),
    "parallel-to-tasks": PassFacts(works_on_buffers=True, reads_threads=True),
    "plan-memory": PassFacts(works_on_buffers=True, plans_memory=True),
    "pass-sizes": PassFacts(works_on_buffers=True, plans_memory=True),
    "copies-to-loops": PassFacts(lowers="structured-ops"),
    REPLACE_IR: PassFacts(holds_ir=True),
    # MLIR's.
    "one-shot-bufferize": PassFacts(bufferizes=True),
    "canonicalize": PassFacts(works_on_buffers=True, simplifies=True),
    "cse": PassFacts(works_on_buffers=True, simplifies=True),
    "scf-forall-to-parallel": PassFacts(works_on_buffers=True),
    "convert-linalg-to-loops": PassFacts(lowers="structured-ops"),
    "convert-scf-to-cf": PassFacts(lowers="loops"),
    "convert-func-to-llvm": PassFacts(lowers="functions"),
})  # fmt: skip


def facts(name: str) -> PassFacts:
    """What is known of the pass `name`; of most, nothing."""
    return PASSES.get(name, _NONE)
