"""Facts about passes other than their options, by the name of the pass: one table for recipes, tools and clients.

A pass that is not in `PASSES` has none of these facts. Imports neither torch nor MLIR.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

# A value of an option of a pass.
OptionValue = bool | int | float | str
# The kind of op that a pass lowers: structured ops to loops, loops to branches, functions to the LLVM dialect.
Lowers = Literal["", "structured-ops", "loops", "functions"]


@dataclass(frozen=True)
class NumericEffect:
    """How a pass changes results within rounding errors.

    `exact_option` is the option, and its value, that keeps the pass from changing results; if it is `None`, only
    disabling the pass does.
    """

    how: str
    exact_option: tuple[str, OptionValue] | None = None


@dataclass(frozen=True)
class PassFacts:
    """Facts about one pass. They do not include its phase, since passes such as `cse` run in several phases."""

    # Converts tensors to buffers.
    bufferizes: bool = False
    # Also applies to imported IR that starts with buffers and loops; an example is the pass that plans memory.
    works_on_buffers: bool = False
    # Lowers ops on scalars as well as on tensors, so it applies at every phase before the LLVM dialect.
    works_on_scalars: bool = False
    lowers: Lowers = ""
    # Assigns the memory of every function.
    plans_memory: bool = False
    # Packs weights before the call, unless its option `PACK_WEIGHTS` is false.
    packs_weights: bool = False
    # Packs no weights if they have more than the MiB of its option `PACK_LIMIT`.
    limits_packing: bool = False
    # Its result depends on the recipe's number of threads; the stages before it do not.
    reads_threads: bool = False
    # A graph pass that prepares the graph for this compiler's kernels, and is disabled for backends without them.
    for_own_kernels: bool = False
    # Only simplifies the IR: no later pass requires it.
    simplifies: bool = False
    # Its option is a module as text, which replaces the input module.
    holds_ir: bool = False
    numerics: NumericEffect | None = None
    # The options that a search for the fastest recipe varies by default, with their values. The option "" stands for
    # whether the pass is enabled. With the value 0 or "auto" the pass chooses the value itself.
    tuned: tuple[tuple[str, tuple[OptionValue, ...]], ...] = ()


# The option of passes with `packs_weights`: false disables the packing.
PACK_WEIGHTS = "pack-weights"
# The option of passes with `limits_packing`: packs only if the weights have at most so many MiB; 0 means no limit.
PACK_LIMIT, DEFAULT_PACK_LIMIT = "pack-limit", 1024
REPLACE_IR = "replace-ir"

# Whether a pass is enabled: the value in the default preset, then the other one.
_ON_OR_OFF, _OFF_OR_ON = ("", (True, False)), ("", (False, True))
_NO_FACTS = PassFacts()

# In the order in which a search for the fastest recipe varies them.
PASSES: Mapping[str, PassFacts] = MappingProxyType({
    # This compiler's own passes over MLIR.
    "contractions-to-kernels": PassFacts(
        packs_weights=True,
        limits_packing=True,
        numerics=NumericEffect("sums of products are blocked and use fused multiply-add"),
        tuned=(("rows", (0, 4, 6, 8, 12, 14)), ("vectors", (0, 1, 2, 3, 4)), ("depth", (0, 128, 256, 512))),
    ),
    "convolutions-to-kernels": PassFacts(
        packs_weights=True,
        limits_packing=True,
        numerics=NumericEffect("3x3 convolutions use the Winograd algorithm", ("winograd", "never")),
        tuned=(("winograd", ("auto", "never", "2")),),
    ),
    "contractions-to-blas": PassFacts(numerics=NumericEffect("matrix products are BLAS calls"), tuned=(_OFF_OR_ON,)),
    "flash-attention-prefill": PassFacts(
        for_own_kernels=True, numerics=NumericEffect("attention is computed in blocks of keys"), tuned=(_ON_OR_OFF,)
    ),
    "gqa-attention-fusion": PassFacts(
        for_own_kernels=True, numerics=NumericEffect("attention reads shared heads in place")
    ),
    "hoist-parameters": PassFacts(packs_weights=True),
    "choose-layouts": PassFacts(tuned=(_ON_OR_OFF,)),
    "fuse-epilogues": PassFacts(
        numerics=NumericEffect("bias and activation are applied to sums in registers"), tuned=(_ON_OR_OFF,)
    ),
    "fuse-rows": PassFacts(
        numerics=NumericEffect("softmax and norms are fused into one loop over rows"), tuned=(_ON_OR_OFF,)
    ),
    "narrow-products": PassFacts(
        numerics=NumericEffect("products of dequantised bytes are exact sums of integers, times both scales")
    ),
    "fuse-elementwise": PassFacts(
        numerics=NumericEffect("intermediates of element-wise ops are not rounded to memory")
    ),
    "vectorize-generics": PassFacts(numerics=NumericEffect("sums are accumulated in vector lanes")),
    "expand-math-to-polynomials": PassFacts(
        works_on_scalars=True, numerics=NumericEffect("exp, erf, tanh and similar functions are polynomials")
    ),
    "results-to-out-params": PassFacts(works_on_buffers=True),
    "read-in-place": PassFacts(works_on_buffers=True),
    "write-in-place": PassFacts(works_on_buffers=True),
    "parallel-to-tasks": PassFacts(works_on_buffers=True, reads_threads=True),
    "plan-memory": PassFacts(works_on_buffers=True, plans_memory=True),
    "pass-sizes": PassFacts(works_on_buffers=True, plans_memory=True),
    "copies-to-loops": PassFacts(lowers="structured-ops"),
    REPLACE_IR: PassFacts(holds_ir=True),
    # MLIR's passes.
    "one-shot-bufferize": PassFacts(bufferizes=True),
    "canonicalize": PassFacts(works_on_buffers=True, simplifies=True),
    "cse": PassFacts(works_on_buffers=True, simplifies=True),
    "scf-forall-to-parallel": PassFacts(works_on_buffers=True),
    "convert-linalg-to-loops": PassFacts(lowers="structured-ops"),
    "convert-scf-to-cf": PassFacts(lowers="loops"),
    "convert-func-to-llvm": PassFacts(lowers="functions"),
})  # fmt: skip


def facts(name: str) -> PassFacts:
    """Returns the facts about the pass `name`; the defaults if it is not in `PASSES`."""
    return PASSES.get(name, _NO_FACTS)
