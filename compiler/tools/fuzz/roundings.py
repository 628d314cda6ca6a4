"""How far a program's results move when each of its ops rounds otherwise: what a comparison has to allow for.

A random program cancels, divides by what is nearly zero, and asks whether one sum is greater than another; code that
rounds in another order is then far off without being wrong. So eager runs a few times with the last bits of every
float changed at random, which is what other roundings would do; each element may be off by a multiple of how far it
moved, and one that was a number or a truth value and changed says nothing (the idea is that of stochastic arithmetic:
J. Vignes, "A stochastic arithmetic for reliable scientific computation", 1993).

Random bits never cancel, as sums in some order do: what they move by as much as it is itself is 0 as often as not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from buddy.compiler.runtime.compare import EXACT, TOLERANCES
from buddy.compiler.tools.fuzz import nonfinite

# Runs with other roundings. Where rounding decides between two answers, all runs agree once in 2**(RUNS - 1) times.
RUNS = 6
# So this share of as many elements as differ between the runs may be other than eager's in a way that no run has shown.
UNSHOWN = 1 / 8
# Each op's result moves by up to this many units in the last place of its largest elements: sums of a few hundred
# addends, and polynomials in the place of libm's functions, are off by up to as many.
UNITS = 4.0
# An element may be off by this times what the runs show: they show a sample of what can happen, not its bound.
MARGIN = 16.0


class Noted(TorchDispatchMode):
    """Keeps a copy of every float tensor that an op makes, with the op."""

    def __init__(self) -> None:
        super().__init__()
        self.floats: list[tuple[Any, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.floats += [(func, leaf.clone()) for leaf in _made(func, found)]
        return found


class Shaken(TorchDispatchMode):
    """Every float that an op makes is off by a few units in its last place. Views, and what has no elements, stay.

    `plain` are those that the ops make unshaken, as long as they are the same ops: a program may take another branch.
    """

    def __init__(self, chance: torch.Generator, plain: Sequence[tuple[Any, torch.Tensor]] = ()) -> None:
        super().__init__()
        self._chance, self._plain = chance, iter(plain)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in _made(func, found):
            shake(leaf, self._chance)
            op, plain = next(self._plain, (None, leaf))
            if op == func and plain.shape == leaf.shape:
                _cancel(leaf, plain, self._chance)
            else:
                self._plain = iter(())
        nonfinite.spread(func, args, kwargs, found, self._chance)
        return found


def _made(func: Any, found: Any) -> Iterator[torch.Tensor]:
    """The floats in what `func` has made, as real numbers, where it is no view of what was there."""
    returns = func._schema.returns
    if returns and all(place.alias_info is None or place.alias_info.is_write for place in returns):
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                yield from _floats_of(leaf)


def _floats_of(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point() and tensor.numel() and 0 not in tensor.stride():
        yield tensor


def shake(tensor: torch.Tensor, chance: torch.Generator) -> None:
    """Move the elements of a float tensor, in place; a program's own random numbers come from another generator.

    NaN has either sign: IEEE 754 leaves open which one a computation gives it.
    """
    with torch.utils._python_dispatch._disable_current_modes():
        wide = tensor.double()
        finite = wide.isfinite()
        scale = wide[finite].square().mean().sqrt() if bool(finite.any()) else wide.new_zeros(())
        unit = torch.finfo(tensor.dtype).eps * UNITS * (wide.abs() + scale) / 2
        moved = wide + unit * (2 * torch.rand(wide.shape, dtype=torch.float64, generator=chance) - 1)
        tensor.copy_(torch.where(finite, moved, wide))
        either = torch.rand(wide.shape, generator=chance).to(tensor.dtype) - 0.5
        tensor.copy_(torch.where(tensor.isnan(), torch.copysign(tensor, either), tensor))


def _cancel(tensor: torch.Tensor, plain: torch.Tensor, chance: torch.Generator) -> None:
    """Have half of the elements be 0, in place, that roundings may move across it; `plain` is the tensor unshaken."""
    with torch.utils._python_dispatch._disable_current_modes():
        wide = plain.double()
        crosses = wide.abs() <= MARGIN * (tensor.double() - wide).abs()
        tensor.masked_fill_(crosses & (torch.rand(wide.shape, generator=chance) < 0.5), 0.0)


def runs(program: Callable[[Any], Any], arguments: Callable[[], Any]) -> list[Any]:
    """What `program` makes of fresh `arguments()` under `RUNS` other roundings."""
    found, given = [], arguments()
    with Noted() as noted:
        program(given)
    for seed in range(RUNS):
        chance = torch.Generator().manual_seed(seed)
        given = arguments()
        for leaf in tree_leaves(given):
            for floats in _floats_of(leaf) if isinstance(leaf, torch.Tensor) else ():
                shake(floats, chance)
        with Shaken(chance, noted.floats):
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
    if eagers.is_complex():
        ours, eagers, *shaken = (torch.view_as_real(tensor.resolve_conj()) for tensor in (ours, eagers, *shaken))
    wrong, decided = (_floats if eagers.is_floating_point() else _others)(ours, eagers, shaken)
    if int(wrong.sum()) <= UNSHOWN * int(decided.sum()):
        return ""
    at = tuple(int(index) for index in wrong.nonzero()[0])
    return f"{ours[at].item()!r} at {list(at)}, eager gives {eagers[at].item()!r}"


def _others(
    ours: torch.Tensor, eagers: torch.Tensor, shaken: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which numbers and truth values are wrong, and of which rounding decides."""
    decided = torch.zeros(eagers.shape, dtype=torch.bool)
    for run in shaken:
        decided |= run != eagers
    return (ours != eagers) & ~decided, decided


def _floats(
    ours: torch.Tensor, eagers: torch.Tensor, shaken: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which floats are wrong, and which ones move by more than the tolerance, or become infinite or none."""
    tolerance = TOLERANCES.get(eagers.dtype, EXACT)
    mine, theirs = ours.double(), eagers.double()
    finite = theirs.isfinite()
    scale = theirs[finite].square().mean().sqrt().clamp(min=1.0) if bool(finite.any()) else 1.0
    allowed = tolerance.absolute * scale + tolerance.relative * theirs.abs()
    moved, lost = torch.zeros_like(theirs), torch.zeros_like(finite)
    for run in (run.double() for run in shaken):
        both = run.isfinite() & finite
        moved = torch.where(both, torch.maximum(moved, (run - theirs).abs()), moved)
        lost |= ~both & ~_same(run, theirs)
    near = finite & ((mine - theirs).abs() <= allowed + MARGIN * moved)
    return ~lost & ~near & ~_same(mine, theirs), lost | (moved > allowed)


def _same(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    return (one == other) | (one.isnan() & other.isnan())
