"""The words that enumeration options of MLIR's passes accept; the bindings only report an option's default.

They are those of MLIR 20 to 22 (`Passes.td` of the dialects), without those that this build rejects.
"""

from __future__ import annotations

from buddy.compiler.mlir.bindings import ir, passmanager

_LAYOUTS = ("infer-layout-map", "identity-layout-map", "fully-dynamic-layout-map")
WORDS: dict[str, tuple[str, ...]] = {
    "analysis-heuristic": ("bottom-up", "top-down", "bottom-up-from-terminators", "fuzzer"),
    "emission-kind": ("None", "Full", "LineTablesOnly", "DebugDirectivesOnly"),
    "function-boundary-type-conversion": _LAYOUTS,
    "region-simplify": ("disabled", "normal", "aggressive"),
    "unknown-type-conversion": _LAYOUTS,
    "vector-contract-lowering": ("dot", "matmul", "outerproduct", "parallelarith"),
    "vector-transpose-lowering": ("eltwise", "flat", "shuffle1d", "shuffle16x16"),
}


def words_of(name: str, anchor: str, option: str) -> tuple[str, ...]:
    """Returns the words that the option of a pass accepts, () if it accepts other values. Needs an open context."""
    return tuple(word for word in WORDS.get(option, ()) if _accepts(f"{name}{{{option}={word}}}", anchor))


def _accepts(step: str, anchor: str) -> bool:
    nested = step if anchor == "builtin.module" else f"{anchor}({step})"
    try:
        passmanager.PassManager.parse(f"builtin.module({nested})")
    except (ValueError, ir.MLIRError):
        return False
    return True
