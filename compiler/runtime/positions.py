"""Compares results that are positions (argmax, topk, sort) by the elements that they select.

Two correct runs may select different elements if these differ by less than rounding errors. If elements are equal in
eager and in double precision, rounding does not matter: ops that are documented to select the first one must do so.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

import torch

from buddy.compiler.graph.node import GetItemOp, Op, argument
from buddy.compiler.graph.operations.effects import RandomOp
from buddy.compiler.runtime.graph_interpreter import LockstepInterpreter, symbols_at, values_of

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

# By target, the number of the argument `dim`. Positions are the second result, or the only one for the first two.
_ALONE = {"argmax.default": 1, "argmin.default": 1}
_BESIDE_VALUES = {
    "max.dim": 1, "min.dim": 1, "median.dim": 1, "nanmedian.dim": 1, "kthvalue.default": 2, "topk.default": 2,
    "sort.default": 1, "sort.stable": 1,
}  # fmt: skip
# Ops that are documented to select the first one of equal elements.
_FIRST = frozenset(("argmax.default", "argmin.default", "max.dim", "min.dim"))
_log = logging.getLogger("buddy.runner")


class ChosenPositions(NamedTuple):
    """Positions in `operand` along `dim`, or among all elements if it is `None`.

    `takes_first` is true if the op has to select the first one of equal elements.
    """

    operand: Op
    dim: int | None
    takes_first: bool


def choice_of(result: Op | object) -> ChosenPositions | None:
    """Returns the operand and dim of which a result of a graph holds positions, or `None` if it holds none."""
    if not isinstance(result, Op):
        return None
    picks = isinstance(result, GetItemOp)
    maker = result.args[0] if picks and result.args[1] == 1 else result
    place = (_BESIDE_VALUES if picks else _ALONE).get(maker.target)
    if place is None:
        return None
    dim = argument(maker, place, "dim", -1 if picks else None)
    takes_first = maker.target in _FIRST or maker.kwargs.get("stable") is True
    return ChosenPositions(maker.args[0], dim, takes_first)


def allowed_margin(
    captured: CapturedGraph, choice: ChosenPositions, ours: torch.Tensor, eager: torch.Tensor, multiple: float
) -> float:
    """Returns the allowed difference between elements that correct runs may select; 0 if `ours` exceeds it.

    It is `multiple` times twice the maximum difference of eager from double precision. It is also 0 if `ours` has
    duplicates or is out of range, and if the graph is random or cannot run in double precision.
    """
    if any(isinstance(op, RandomOp) for op in captured.graph.operations):
        return 0.0
    try:
        x, exact = _in_both_precisions(captured, choice.operand)
    except Exception:  # any error of an op, which may be the script's own
        _log.debug("no run in double precision", exc_info=True)
        return 0.0
    size = x.numel() if choice.dim is None else x.shape[choice.dim] if x.dim() else 1
    if not x.is_floating_point() or bool(((ours < 0) | (ours >= size)).any()) or _has_duplicates(choice, x, ours):
        return 0.0
    difference = (x.double() - exact)[x.isfinite() & exact.isfinite()].abs()
    found = 2 * multiple * float(difference.max()) if difference.numel() else 0.0
    one, other = (_select(x, choice.dim, positions).double() for positions in (ours, eager))
    near = (one == other) | ((one - other).abs() <= found) | (one.isnan() & other.isnan())
    if choice.takes_first:
        same = [_select(exact, choice.dim, positions) for positions in (ours, eager)]
        later = (ours > eager).reshape(one.shape)
        near &= ~((one == other) & (same[0] == same[1]) & later)
    return found if bool(near.all()) else 0.0


def _in_both_precisions(captured: CapturedGraph, operand: Op) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a node's value in eager and in double precision."""
    graph, tensors, numbers = captured.graph, captured.tensors, captured.numbers
    with torch.no_grad():
        run = LockstepInterpreter(graph, tensors, symbols_at(graph, tensors, numbers), (operand.stable,), "float64")
        return values_of(graph, tensors, {operand.name}, numbers)[operand.name], run.reach(operand.stable)


def _has_duplicates(choice: ChosenPositions, x: torch.Tensor, positions: torch.Tensor) -> bool:
    """True if positions along the dim, as of `topk`, contain duplicates."""
    if choice.dim is None or not x.dim() or positions.dim() < x.dim():
        return False
    return bool((positions.sort(choice.dim)[0].diff(dim=choice.dim) == 0).any())


def _select(x: torch.Tensor, dim: int | None, positions: torch.Tensor) -> torch.Tensor:
    if dim is None or not x.dim():
        return x.reshape(-1)[positions.reshape(-1)]
    kept = positions.dim() == x.dim()
    return x.gather(dim, positions if kept else positions.unsqueeze(dim))
