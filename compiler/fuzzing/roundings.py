"""How far a program's results move when each of its ops rounds otherwise: what a comparison has to allow for.

A random program cancels, divides by what is nearly zero, and asks whether one sum is greater than another; code that
rounds in another order is then far off without being wrong. So eager runs a few times with the last bits of every
float changed at random, which is what other roundings would do; each element may be off by a multiple of how far it
moved, and one that was a number or a truth value and changed says nothing (the idea is that of stochastic arithmetic:
J. Vignes, "A stochastic arithmetic for reliable scientific computation", 1993).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

from buddy.compiler.runner.compare import EXACT, TOLERANCES

# Runs with other roundings. One that matters shows in one of them with a probability of about 1 - 2**-RUNS.
RUNS = 6
# Each op's result moves by up to this many units in the last place of its largest elements: sums of a few hundred
# addends, and polynomials in the place of libm's functions, are off by up to as many.
UNITS = 4.0
# An element may be off by this times what the runs show: they show a sample of what can happen, not its bound.
MARGIN = 16.0


class Shaken(TorchDispatchMode):
    """Every float that an op makes is off by a few units in its last place. Views, and what has no elements, stay."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if returns and all(place.alias_info is None or place.alias_info.is_write for place in returns):
            for leaf in tree_leaves(found):
                if isinstance(leaf, torch.Tensor):
                    shake(leaf)
        return found


def shake(tensor: torch.Tensor) -> None:
    """Move the elements of a float tensor, in place."""
    if not tensor.is_floating_point() or not tensor.numel() or 0 in tensor.stride():
        return
    with torch.utils._python_dispatch._disable_current_modes():
        wide = tensor.double()
        finite = wide.isfinite()
        scale = wide[finite].square().mean().sqrt() if bool(finite.any()) else wide.new_zeros(())
        unit = torch.finfo(tensor.dtype).eps * UNITS * (wide.abs() + scale) / 2
        moved = wide + unit * (2 * torch.rand(wide.shape, dtype=torch.float64) - 1)
        tensor.copy_(torch.where(finite, moved, wide))


def runs(program: Callable[[Any], Any], arguments: Callable[[], Any]) -> list[Any]:
    """What `program` makes of fresh `arguments()` under `RUNS` other roundings."""
    found = []
    for seed in range(RUNS):
        torch.manual_seed(seed)
        given = arguments()
        tree_map(lambda leaf: shake(leaf) if isinstance(leaf, torch.Tensor) else None, given)
        with Shaken():
            found.append(program(given))
    return found


def differs(ours: Any, eagers: Any, shaken: Sequence[Any]) -> str:
    """Where results of eager's structure differ by more than roundings explain; "" for nowhere."""
    leaves = [tree_leaves(run) for run in shaken]
    for number, (mine, other) in enumerate(zip(tree_leaves(ours), tree_leaves(eagers), strict=True)):
        if isinstance(other, torch.Tensor) and other.numel():
            said = _where(mine, other, [run[number] for run in leaves])
            if said:
                return f"result {number}: {said}"
    return ""


def _where(ours: torch.Tensor, eagers: torch.Tensor, shaken: Sequence[torch.Tensor]) -> str:
    if any(run.shape != eagers.shape or run.dtype != eagers.dtype for run in shaken):
        return ""
    wrong = _wrong_floats(ours, eagers, shaken) if eagers.is_floating_point() else _wrong_others(ours, eagers, shaken)
    if not bool(wrong.any()):
        return ""
    at = tuple(int(index) for index in wrong.nonzero()[0])
    return f"{ours[at].item()!r} at {list(at)}, eager gives {eagers[at].item()!r}"


def _wrong_others(ours: torch.Tensor, eagers: torch.Tensor, shaken: Sequence[torch.Tensor]) -> torch.Tensor:
    wrong = ours != eagers
    for run in shaken:
        wrong &= run == eagers
    return wrong


def _wrong_floats(ours: torch.Tensor, eagers: torch.Tensor, shaken: Sequence[torch.Tensor]) -> torch.Tensor:
    tolerance = TOLERANCES.get(eagers.dtype, EXACT)
    mine, theirs, others = ours.double(), eagers.double(), [run.double() for run in shaken]
    finite = theirs.isfinite()
    scale = theirs[finite].square().mean().sqrt().clamp(min=1.0) if bool(finite.any()) else 1.0
    allowed = tolerance.absolute * scale + tolerance.relative * theirs.abs()
    moved, steady = torch.zeros_like(theirs), torch.ones_like(finite)
    for run in others:
        alike = (run == theirs) | (run.isnan() & theirs.isnan())
        both = run.isfinite() & finite
        moved = torch.where(both, torch.maximum(moved, (run - theirs).abs()), moved)
        steady &= both | alike
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    near = (mine - theirs).abs() <= allowed + MARGIN * moved
    return steady & ~same & ~near
