"""Compares results that are positions (argmax, topk, sort) by the elements that they select.

Two correct runs may select different elements if these elements differ by less than rounding errors. If elements are
equal in eager and in double precision, rounding does not matter: ops that are documented to select the first of equal
elements must do so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch

from buddy.compiler.graph.node import GetItemOp, Op, argument
from buddy.compiler.graph.operations.effects import RandomOp
from buddy.compiler.runtime.graph_interpreter import LockstepInterpreter, compute_values, symbol_values

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

# By target, the index of the argument `dim`; ops that return only positions, and ops that return values and positions.
_POSITION_OPS = {"argmax.default": 1, "argmin.default": 1}
_VALUE_AND_POSITION_OPS = {
    "max.dim": 1, "min.dim": 1, "median.dim": 1, "nanmedian.dim": 1, "kthvalue.default": 2, "topk.default": 2,
    "sort.default": 1, "sort.stable": 1,
}  # fmt: skip
# Ops that are documented to select the first one of equal elements.
_TAKES_FIRST = frozenset(("argmax.default", "argmin.default", "max.dim", "min.dim"))
_log = logging.getLogger("buddy.runner")


class ChosenPositions(NamedTuple):
    """A result that consists of positions in `operand` along `dim`, or among all elements if `dim` is `None`.

    `takes_first` is true if the op has to select the first one of equal elements.
    """

    operand: Op
    dim: int | None
    takes_first: bool


def chosen_positions_of(result: Op | object) -> ChosenPositions | None:
    """Returns the operand and dim of the positions that a result of a graph holds; `None` if it holds other values."""
    if not isinstance(result, Op):
        return None
    is_getitem = isinstance(result, GetItemOp)
    op = result.args[0] if is_getitem and result.args[1] == 1 else result
    dim_index = (_VALUE_AND_POSITION_OPS if is_getitem else _POSITION_OPS).get(op.target)
    if dim_index is None:
        return None
    dim = argument(op, dim_index, "dim", -1 if is_getitem else None)
    takes_first = op.target in _TAKES_FIRST or op.kwargs.get("stable") is True
    return ChosenPositions(op.args[0], dim, takes_first)


def allowed_margin(
    captured: CapturedGraph, choice: ChosenPositions, compiled: torch.Tensor, eager: torch.Tensor, multiple: float
) -> float:
    """Returns the allowed difference between elements that correct runs may select; 0 if `compiled` exceeds it.

    `compiled` and `eager` are the positions that both runs returned. The margin is `multiple` times twice the maximum
    difference of eager's elements from double precision. It is also 0 if `compiled` has duplicates or is out of range,
    and if the graph is random or cannot run in double precision.
    """
    if any(isinstance(op, RandomOp) for op in captured.graph.operations):
        return 0.0
    try:
        x, exact = _compute_in_both_precisions(captured, choice.operand)
    except Exception:  # any error of an op, which may be the script's own
        _log.debug("no run in double precision", exc_info=True)
        return 0.0
    n_positions = x.numel() if choice.dim is None or not x.dim() else x.shape[choice.dim]
    is_out_of_range = bool(((compiled < 0) | (compiled >= n_positions)).any())
    if not x.is_floating_point() or is_out_of_range or _has_duplicates(choice, x, compiled):
        return 0.0
    difference = (x.double() - exact)[x.isfinite() & exact.isfinite()].abs()
    margin = 2 * multiple * float(difference.max()) if difference.numel() else 0.0
    compiled_elements, eager_elements = (_select(x, choice.dim, positions).double() for positions in (compiled, eager))
    is_allowed = (
        (compiled_elements == eager_elements)
        | ((compiled_elements - eager_elements).abs() <= margin)
        | (compiled_elements.isnan() & eager_elements.isnan())
    )
    if choice.takes_first:
        are_equal = compiled_elements == eager_elements
        are_equal &= _select(exact, choice.dim, compiled) == _select(exact, choice.dim, eager)
        is_later = (compiled > eager).reshape(compiled_elements.shape)
        is_allowed &= ~(are_equal & is_later)
    return margin if bool(is_allowed.all()) else 0.0


def _compute_in_both_precisions(captured: CapturedGraph, operand: Op) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a node's value in eager and in double precision."""
    graph, tensors, numbers, precisions = captured.graph, captured.tensors, captured.numbers, captured.precisions
    with torch.no_grad():
        symbols = symbol_values(graph, tensors, numbers)
        run = LockstepInterpreter(graph, tensors, symbols, (operand.stable,), "float64", precisions=precisions)
        values = compute_values(graph, tensors, {operand.name}, numbers, precisions)
        return values[operand.name], run.reach(operand.stable)


def _has_duplicates(choice: ChosenPositions, x: torch.Tensor, positions: torch.Tensor) -> bool:
    """True if positions along the dim, such as those of `topk`, contain duplicates."""
    if choice.dim is None or not x.dim() or positions.dim() < x.dim():
        return False
    return bool((positions.sort(choice.dim)[0].diff(dim=choice.dim) == 0).any())


def _select(x: torch.Tensor, dim: int | None, positions: torch.Tensor) -> torch.Tensor:
    """Returns the elements of `x` at `positions` along `dim`, a dim that `positions` may lack, as those of `argmax`."""
    if dim is None or not x.dim():
        return x.reshape(-1)[positions.reshape(-1)]
    has_same_rank = positions.dim() == x.dim()
    return x.gather(dim, positions if has_same_rank else positions.unsqueeze(dim))
