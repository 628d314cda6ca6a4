"""The reasons that the table of nodes shows: why nodes fall back to eager, and why a choice is not applied."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from traceback import extract_tb

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import EagerOp, Op
from buddy.compiler.graph.operations import CallExternalOp
from buddy.compiler.graph.plugins import is_built_in
from buddy.compiler.graph.sizes import UnknownSizeError, is_dynamic, symbols_in
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.precision import MULTIPLYING_OPS, PrecisionRequest
from buddy.compiler.ops.utils import LoweringError
from buddy.compiler.protocol import OPERATOR_GUIDE, Assignment
from buddy.compiler.protocol.recipe import EAGER, F32, Recipe

# The reasons for fallbacks to eager, with what the user can do.
NO_CLASS = (
    "{target} has no op class: add the key {target!r} to `_ops_map` in a script, or a class with that target to "
    f"compiler/graph/operations/; {OPERATOR_GUIDE} has the three steps"
)
EXTERNAL = "a graph pass replaced the node by a call of torch's {target}"
NO_LOWERING = (
    "no registry lowers {op}: add a lowering under that name to an `ops_registry`, in a script or in compiler/ops/; "
    f"{OPERATOR_GUIDE} has the three steps"
)
NOT_COMPLEX = "complex numbers are lowered as pairs of floats, which this op does not support"


def eager_reason(node: Op) -> str:
    """Returns the reason why a node that no registry lowers falls back to eager."""
    template = NO_LOWERING
    if isinstance(node, CallExternalOp):
        template = EXTERNAL
    elif isinstance(node, EagerOp):
        template = NO_CLASS
    return node.only_eager or template.format(target=node.target, op=type(node).__name__)


# ---- errors of lowerings ---------------------------------------------------------------------------------------------

# The errors that a lowering raises if it supports only static shapes and the node has dynamic ones.
_STATIC_SHAPE_ERRORS = (UnknownSizeError, TypeError, ValueError, ir.MLIRError)


def has_dynamic_sizes(node: Op) -> bool:
    """True if an operand, a result or an argument of `node` has a symbolic size."""
    metas = (meta for op in (node, *node.parents) for meta in op.metas if meta is not None)
    return any(is_dynamic(meta.shape) for meta in metas) or any(True for _ in symbols_in((node.args, node.kwargs)))


def as_lowering_error(error: Exception, lowering: Callable[..., object], node: Op) -> LoweringError | None:
    """Converts an error of a lowering to a `LoweringError`; returns `None` if the error is a bug of this project.

    An error in a lowering of a script or plug-in always becomes one, so that the next registry is tried.
    """
    if isinstance(error, LoweringError):
        return error
    if not is_built_in(lowering):
        frame = extract_tb(error.__traceback__)[-1]
        return LoweringError(f"the lowering raised {type(error).__name__}: {error} ({frame.filename}:{frame.lineno})")
    if isinstance(error, _STATIC_SHAPE_ERRORS) and has_dynamic_sizes(node):
        return LoweringError(_static_shape_reason(error))
    return None


def _static_shape_reason(error: Exception) -> str:
    if isinstance(error, UnknownSizeError):
        return str(error)
    return f"the lowering needs static shapes ({str(error).splitlines()[0]})"


# ---- choices of the recipe that are not applied ----------------------------------------------------------------------


def precision_reason(request: PrecisionRequest, node: Op, lowering: str, is_chosen: bool) -> str:
    """Returns the reason why a requested precision is not applied to `node`; "" if it is, or if none is requested.

    Of ops that multiply no matrices, only nodes for which the recipe chooses a precision have a reason (`is_chosen`).
    """
    if request.is_applied or request.precision == F32:
        return ""
    if type(node).__name__ not in MULTIPLYING_OPS:
        return "it multiplies no matrices" if is_chosen else ""
    if lowering == EAGER:
        return "it runs in eager"
    return (
        request.rejection or f"{lowering} lowers {node.target or type(node).__name__} in the program's precision only"
    )


def unapplied_choices(
    choices: Mapping[str, str], assignments: Sequence[Assignment], graph: Graph
) -> Iterator[tuple[str, str]]:
    """Yields the nodes whose choice was not applied, each with a message that says what was used instead."""
    assignment_of = {assignment.node: assignment for assignment in assignments}
    for node, choice in choices.items():
        assignment = assignment_of.get(node)
        if assignment is not None and assignment.lowering != choice:
            reason = f": {assignment.reason}" if assignment.reason else ", since it needs no lowering"
            yield node, f"the recipe lowers {node} by {choice}, but {assignment.lowering} lowers it{reason}"
        elif assignment is None and all(op.stable != node for op in graph.operations):
            yield node, f"the recipe lowers {node} by {choice}, {_unknown_node_reason(node, graph)}"


def unapplied_precisions(recipe: Recipe, assignments: Sequence[Assignment], graph: Graph) -> Iterator[tuple[str, str]]:
    """Yields the nodes whose precision was not applied, each with a message that says what was used instead.

    Of nodes whose precision is that of all products, only those that multiply float32 are reported, once per reason.
    """
    explicit = {choice.node: choice.precision for choice in recipe.precisions if choice.precision != F32}
    ops = {op.stable: op for op in graph.operations}
    by_reason: dict[str, list[str]] = {}
    for assignment in assignments:
        if not assignment.precision_reason:
            continue
        if assignment.node in explicit:
            text = f"the recipe computes {assignment.node} in {explicit[assignment.node]}"
            yield assignment.node, f"{text}, but it stays in the program's precision: {assignment.precision_reason}"
        elif multiplies_float32(ops[assignment.node]):
            by_reason.setdefault(assignment.precision_reason, []).append(assignment.node)
    for reason, nodes in by_reason.items():
        subject = nodes[0] if len(nodes) == 1 else f"{nodes[0]} and {len(nodes) - 1} more"
        verb = "stays" if len(nodes) == 1 else "stay"
        yield nodes[0], f"the recipe computes products in {recipe.precision}, but {subject} {verb} in f32: {reason}"
    assigned = {assignment.node for assignment in assignments}
    for node in [node for node in explicit if node not in assigned]:
        yield node, f"the recipe computes {node} in {explicit[node]}, {_unknown_node_reason(node, graph)}"


def multiplies_float32(op: Op) -> bool:
    """Returns whether a node multiplies matrices of float32, to which the recipe's precisions apply."""
    meta = op.metas[0] if op.metas else None
    return type(op).__name__ in MULTIPLYING_OPS and meta is not None and meta.dtype is TensorDType.Float32


def _unknown_node_reason(node: str, graph: Graph) -> str:
    if any(op.stable == node for op in graph.body):
        return "which is a placeholder or the output"
    close = get_close_matches(node, [op.stable for op in graph.operations], n=1)
    return "but no compiled node has that name" + (f"; did you mean {close[0]}?" if close else "")
