"""How far two correct runs of one program may be apart, measured on the program itself.

A deep program is further from another correct run of itself than a few roundings: each op rounds, and what follows may
magnify that. So where a result is beyond its element type's own tolerance, the program runs once more in double
precision, node by node, and eager's differences from that, the *spread*, tell how much rounding matters here. Compiled
code that is as good as eager has errors of that size, too, in other directions: the greatest of its differences from
eager may be `MULTIPLE` times the greatest of the spread, and their root mean square `MULTIPLE` times that of the
spread. The second shows faults that move every element by less than roundings move the worst.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import torch

from buddy.compiler.protocol import OutputReport
from buddy.compiler.runtime.compare import EXACT, TOLERANCES, Tolerance, compare
from buddy.compiler.runtime.in_step import InStep
from buddy.compiler.runtime.node_by_node import SEED, symbols_at
from buddy.compiler.runtime.positions import choice_of, room

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

# The greatest of one run's errors and that of another's, of equal distributions, add up to twice the spread where both
# are at one element; compiled code with errors three times those of eager is still called right.
MULTIPLE = 4.0
# Where double precision is further than this from eager, as a share of the result's root mean square, the program
# is not the same in both, as one that computes something else each time, or its result says nothing (bfloat16: 2**-8).
MOST = 1 / 8
_WIDE = {False: torch.float64, True: torch.complex128}
_log = logging.getLogger("buddy.runner")


class Spread(NamedTuple):
    """Of the differences between a result and the same in double precision the greatest, and the root mean square."""

    largest: float
    rms: float


def spreads(captured: CapturedGraph, expected: Sequence[Any], random: torch.Tensor | None = None) -> tuple[Spread, ...]:
    """How far each of eager's results, `expected`, is from double precision, by its finite elements: the spread.

    One for each result, in order; 0 for what is no float. Computed once for each `captured`; empty where that cannot
    be, for want of memory or of an op in double precision. Random numbers begin from the generator's state `random`,
    which has to be that of eager's run; without it both began from `SEED`.
    """
    if captured.spreads is None:
        try:
            captured.spreads = _measured(captured, expected, random)
        except Exception as error:  # what an op raises, which may be the script's own
            _log.debug("no run in double precision", exc_info=error)
            captured.spreads = ()
    return captured.spreads


def compared(
    captured: CapturedGraph, expected: Sequence[Any], index: int, ours: torch.Tensor | None, *, equal_nan: bool
) -> OutputReport:
    """Result `index` of `captured` beside eager's, which is a tensor of `expected`.

    Where it is beyond the tolerance of its element type, what the spread allows decides; of positions, what they point
    to.
    """
    name, eager = str(captured.graph.results[index]), expected[index]
    report = compare(name, ours, eager, equal_nan=equal_nan)
    if report.verdict != "mismatch" or not math.isfinite(report.max_abs):
        return report
    choice = choice_of(captured.graph.results[index])
    if choice is not None and ours is not None:
        near = room(captured, choice, ours, eager, MULTIPLE)
        told = f"{near:.1e} of what eager chose"
        return msgspec.structs.replace(report, verdict="ok", where="", tolerance=told) if near else report
    found = spreads(captured, expected)
    if not found or ours is None:
        return report
    spread = found[index]
    if is_within(ours, eager, spread):
        report = compare(name, ours, eager, allowed(eager.dtype, spread), equal_nan=equal_nan)
    return msgspec.structs.replace(report, spread=spread.largest)


def is_within(ours: torch.Tensor, eager: torch.Tensor, spread: Spread) -> bool:
    """Whether two correct runs of a program with that spread may differ as these do. NaN may be where eager has it."""
    exact = eager.to(_WIDE[eager.is_complex()])
    wide = ours.to(exact.dtype)
    if not bool(((wide == exact) | (wide.isnan() & exact.isnan()) | (wide.isfinite() & exact.isfinite())).all()):
        return False
    found, size = _apart(wide, exact), _apart(exact, torch.zeros_like(exact)).rms
    if spread.rms > MOST * size:
        return False
    return found.largest <= MULTIPLE * spread.largest and found.rms <= MULTIPLE * spread.rms


def allowed(dtype: torch.dtype, spread: Spread) -> Tolerance:
    """What is tolerated of an element of a result of `dtype` with that spread."""
    own = TOLERANCES.get(dtype, EXACT)
    return own if own == EXACT else Tolerance(own.absolute, own.relative, own.source, MULTIPLE * spread.largest)


def _measured(captured: CapturedGraph, expected: Sequence[Any], random: torch.Tensor | None) -> tuple[Spread, ...]:
    before = torch.get_rng_state()
    try:
        torch.manual_seed(SEED)
        if random is not None:
            torch.set_rng_state(random)
        with torch.no_grad():
            symbols = symbols_at(captured.graph, captured.tensors, captured.numbers)
            exact = InStep(captured.graph, captured.tensors, symbols, (), "float64").finish()
    finally:
        torch.set_rng_state(before)
    return tuple(_apart(one, other) for one, other in zip(expected, exact, strict=True))


def _apart(rounded: Any, exact: Any) -> Spread:
    """The differences of elements that are finite in both."""
    floats = isinstance(rounded, torch.Tensor) and (rounded.is_floating_point() or rounded.is_complex())
    if not floats or not rounded.numel():
        return Spread(0.0, 0.0)
    wide = rounded.detach().to(exact.dtype)
    difference = (wide - exact)[wide.isfinite() & exact.isfinite()].abs()
    if not difference.numel():
        return Spread(0.0, 0.0)
    return Spread(float(difference.max()), float(difference.square().mean().sqrt()))
