"""Describes how nodes are lowered: the names of ops, and the meaning of lowerings and precisions."""

from __future__ import annotations

from buddy.app.reports.numerics import PrecisionGain
from buddy.compiler.protocol import Assignment
from buddy.compiler.protocol.recipe import EAGER, TORCH_MLIR, Precision, Recipe

# The precisions of products, each with its description.
PRECISION_TEXTS: dict[Precision, str] = {
    "f32": "as the program says",
    "bf16x3": "both operands as sums of two bfloat16: three products, sums in f32",
    "bf16": "both operands rounded to bfloat16, sums in f32",
    "int8-dynamic": "both operands rounded to 8-bit integers, by row and by column; exact sums",
    "int8-weights": "weights rounded to 8-bit integers, one scale per channel; sums in f32",
    "int4-weights": "weights rounded to 4-bit integers, one scale per channel and 128 along K; sums in f32",
    "int4-weights-64": "4-bit weights, one scale per channel and 64 along K: more exact, larger",
    "int4-weights-32": "4-bit weights, one scale per channel and 32 along K: most exact, largest",
}

# The lowerings of nodes, each with its description.
LOWERING_TEXTS = {
    "tosa": "TOSA ops, then the TOSA conversions",
    "linalg": "linalg on tensors",
    "math": "ops of the math dialect on whole tensors",
    "unrolled": "linalg on tensors, with a copy of the loop's body for each step",
    TORCH_MLIR: "torch-mlir's own lowering, inlined",
    "func": "a function call",
    EAGER: "runs in eager PyTorch",
}


def lowering_summary(name: str, assignment: Assignment) -> str:
    """Returns the description of a lowering, or the reason why it cannot lower this node."""
    rejection = assignment.rejection(name)
    return f"not possible: {rejection}" if rejection else LOWERING_TEXTS.get(name, "")


def opcode_text(opcode: str) -> str:
    """Returns the text in the lowering column for a node that is not lowered, by its FX opcode; empty for others."""
    return {"placeholder": "input", "output": "output", "get_attr": "attr"}.get(opcode, "")


def short_target(target: str) -> str:
    """Shortens a target: `aten.mm.default` to `aten.mm`, `<built-in function getitem>` to `getitem`."""
    return target.removesuffix(".default").removeprefix("<built-in function ").removesuffix(">")


def precision_summary(node: str, recipe: Recipe, assignment: Assignment, precision: str, gain: PrecisionGain) -> str:
    """Returns the precision in which `node` multiplies, its measured `gain`, and why it is not the recipe's.

    `precision` is empty for a node that multiplies no float32; so is the result, unless the node multiplies integers.
    """
    if assignment.integers:
        return f"{assignment.integers}: the program is quantised, and its integers are multiplied; sums are exact"
    if not precision:
        return ""
    summary = precision
    if any(choice.node == node for choice in recipe.precisions):
        summary += " (set in the recipe)"
    if gain.error_text:
        summary += f", error {gain.error_text} of {'its own result' if gain.is_node_error else 'the outputs, alone'}"
    if gain.saved_text:
        summary += f", saves {gain.saved_text} ms"
    if assignment.precision_reason:
        summary += f"; not {recipe.precision_of(node)}: {assignment.precision_reason}"
    return summary
