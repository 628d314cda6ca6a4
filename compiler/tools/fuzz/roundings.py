"""Measures how far a program's results move when its ops round differently, and where NaN and infinity may differ.

Eager runs a few times with the last bits of every float changed at random (J. Vignes, "A stochastic arithmetic for
reliable scientific computation", 1993). An element may differ from eager by a multiple of its deviation in these runs;
an integer or a boolean that changed is ignored. Random bits never cancel, although sums in some order do, so a value
that moves by as much as its own size is set to 0 half of the time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from buddy.compiler.runtime.compare import EXACT, TOLERANCES

_aten = torch.ops.aten
_ATTENTION = _aten._scaled_dot_product_flash_attention_for_cpu.default
_TRANSFORMS = (_aten._fft_c2c.default, _aten._fft_r2c.default, _aten._fft_c2r.default)


def spread_nonfinite(func: Any, args: Any, kwargs: Any, found: Any, chance: torch.Generator) -> None:
    """Changes `found`, the results of `func`, in place and at random where another algorithm might differ.

    Results of ops outside this module are unchanged.
    """
    if func in _TRANSFORMS:
        _transformed(func, args, found, chance)
    elif func == _ATTENTION and bool(torch.rand((), generator=chance) < 0.5):
        _attended(args, kwargs or {}, found[0])


def _attended(args: Any, kwargs: Any, found: torch.Tensor) -> None:
    query, key, value, *rest = args
    defaults: list[Any] = [0.0, False]
    dropout, is_causal = rest + defaults[len(rest) :]
    with torch.utils._python_dispatch._disable_current_modes():
        if not all(bool(tensor.isfinite().all()) for tensor in (query, key, value)):
            mask, scale = kwargs.get("attn_mask"), kwargs.get("scale")
            by_math = _aten._scaled_dot_product_attention_math
            found.copy_(by_math(query, key, value, mask, dropout, is_causal, None, scale=scale)[0])


def _transformed(func: Any, args: Any, found: Any, chance: torch.Generator) -> None:
    """Makes every part that another algorithm might make NaN either NaN or infinite."""
    with torch.utils._python_dispatch._disable_current_modes():
        numbers, dims = args[0], args[1]
        reached = (~numbers.isfinite()).sum(dims, keepdim=True).bool().expand(found.shape)
        parts = torch.view_as_real(found) if found.is_complex() else found
        if found.is_complex():
            reached = torch.stack([reached, reached], -1)
        if func == _aten._fft_r2c.default:
            reached[..., 1] &= ~_own_conjugates(numbers, found, dims)
        values = torch.where(torch.rand(parts.shape, generator=chance) < 0.5, math.nan, math.inf)
        parts.copy_(torch.where(reached, values.to(parts.dtype), parts))


def _own_conjugates(numbers: torch.Tensor, found: torch.Tensor, dims: list[int]) -> torch.Tensor:
    """Which results are their own conjugates: number k of n is the conjugate of number n - k, and number 0 of
    itself.
    """
    own = torch.ones(found.shape, dtype=torch.bool)
    for dim in dims:
        places = torch.arange(found.shape[dim])
        along = (2 * places) % numbers.shape[dim] == 0
        own &= along.reshape([-1 if place == dim % found.dim() else 1 for place in range(found.dim())])
    return own


# Number of runs with other roundings. If rounding decides between two answers, all runs agree once in 2**(RUNS - 1)
# times.
RUNS = 6
# So, relative to the number of elements that differ between the runs, this share may differ from eager in a way that no
# run has shown.
UNSHOWN = 1 / 8
# Each op's result moves by up to this many units in the last place of its largest elements: sums of a few hundred
# addends, and polynomial approximations of libm's functions, have errors of this size.
UNITS = 4.0
# The allowed error as a multiple of the spread of the runs, which are a sample and not a bound.
MARGIN = 16.0


class RecordedFloats(TorchDispatchMode):
    """Keeps a copy of every float tensor that an op returns, with the op."""

    def __init__(self) -> None:
        super().__init__()
        self.floats: list[tuple[Any, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        self.floats += [(func, leaf.clone()) for leaf in _made(func, found)]
        return found


class PerturbedFloats(TorchDispatchMode):
    """Changes every float result of an op by a few units in its last place, except for views and empty tensors.

    `plain` are the unchanged results, as long as the ops are the same: a program may take another branch.
    """

    def __init__(self, chance: torch.Generator, plain: Sequence[tuple[Any, torch.Tensor]] = ()) -> None:
        super().__init__()
        self._chance, self._plain = chance, iter(plain)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in _made(func, found):
            perturb_tensor(leaf, self._chance)
            op, plain = next(self._plain, (None, leaf))
            if op == func and plain.shape == leaf.shape:
                _cancel(leaf, plain, self._chance)
            else:
                self._plain = iter(())
        spread_nonfinite(func, args, kwargs, found, self._chance)
        return found


def _made(func: Any, found: Any) -> Iterator[torch.Tensor]:
    """The new float tensors that `func` returned, as real numbers; views are left out."""
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


def perturb_tensor(tensor: torch.Tensor, chance: torch.Generator) -> None:
    """Moves the elements of a float tensor, in place; a program's own random numbers come from another generator.

    NaN gets either sign: IEEE 754 does not specify the sign of a computed NaN.
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
    """Sets half of the elements to 0, in place, that rounding may move across it; `plain` is the unchanged tensor."""
    with torch.utils._python_dispatch._disable_current_modes():
        wide = plain.double()
        crosses = wide.abs() <= MARGIN * (tensor.double() - wide).abs()
        tensor.masked_fill_(crosses & (torch.rand(wide.shape, generator=chance) < 0.5), 0.0)


def runs(program: Callable[[Any], Any], arguments: Callable[[], Any]) -> list[Any]:
    """The results of `program` on fresh `arguments()` with `RUNS` other roundings."""
    found, given = [], arguments()
    with RecordedFloats() as noted:
        program(given)
    for seed in range(RUNS):
        chance = torch.Generator().manual_seed(seed)
        given = arguments()
        for leaf in tree_leaves(given):
            for floats in _floats_of(leaf) if isinstance(leaf, torch.Tensor) else ():
                perturb_tensor(floats, chance)
        with PerturbedFloats(chance, noted.floats):
            found.append(program(given))
    return found


def differs(ours: Any, eagers: Any, shaken: Sequence[Any]) -> str:
    """Describes where results differ by more than rounding explains; "" if nowhere."""
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
    """Which integers and booleans are wrong, and which depend on rounding."""
    decided = torch.zeros(eagers.shape, dtype=torch.bool)
    for run in shaken:
        decided |= run != eagers
    return (ours != eagers) & ~decided, decided


def _floats(
    ours: torch.Tensor, eagers: torch.Tensor, shaken: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which floats are wrong, and which move by more than the tolerance, or change between finite and non-finite."""
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
