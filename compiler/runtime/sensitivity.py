"""Measures how far two correct runs of a program may differ, on the program itself.

A deep program differs from another correct run of itself by more than a few roundings: each op rounds, and later ops
may amplify that. So if a result exceeds the tolerance of its element type, the program runs once more in double
precision, node by node, and eager's differences from that, the *spread*, measure its sensitivity to rounding. Compiled
code that is as good as eager has errors of that size too, in other directions: the maximum of its differences from
eager may be `MULTIPLE` times the maximum of the spread, and their root mean square `MULTIPLE` times that of the spread.
The second condition detects faults that change every element by less than the worst rounding error.
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

# The maximum error of one run and that of another, of equal distributions, add up to twice the spread if both are at
# one element; this accepts compiled code with errors three times those of eager.
MULTIPLE = 4.0
# If double precision differs from eager by more than this fraction of the result's root mean square, the program is not
# the same in both (as one that is not deterministic), or its result is meaningless (bfloat16: 2**-8).
MOST = 1 / 8
_WIDE = {False: torch.float64, True: torch.complex128}
_log = logging.getLogger("buddy.runner")


class Spread(NamedTuple):
    """The maximum and the root mean square of the differences between a result and the same in double precision."""

    largest: float
    rms: float


def spreads(captured: CapturedGraph, expected: Sequence[Any], random: torch.Tensor | None = None) -> tuple[Spread, ...]:
    """Returns the spread of each of eager's results, `expected`: its difference from double precision, if finite.

    One per result, in order; 0 for results that are not floats. Computed once for each `captured`; empty if that fails,
    for lack of memory or of an op in double precision. Random numbers start from the generator's state `random`, which
    must be that of eager's run; by default both start from `SEED`.
    """
    if captured.spreads is None:
        try:
            captured.spreads = _measured(captured, expected, random)
        except Exception as error:  # any error of an op, which may be the script's own
            _log.debug("no run in double precision", exc_info=error)
            captured.spreads = ()
    return captured.spreads


def compared(
    captured: CapturedGraph, expected: Sequence[Any], index: int, ours: torch.Tensor | None, *, equal_nan: bool
) -> OutputReport:
    """Compares result `index` of `captured` with eager's, which is a tensor of `expected`.

    If it exceeds the tolerance of its element type, the spread decides; positions are judged by the values they point
    to.
    """
    name, eager = str(captured.graph.results[index]), expected[index]
    report = compare(name, ours, eager, equal_nan=equal_nan)
    if report.verdict != "mismatch" or not math.isfinite(report.max_abs):
        return report
    choice = choice_of(captured.graph.results[index])
    if choice is not None and ours is not None:
        near = room(captured, choice, ours, eager, MULTIPLE)
        told = f"{near:.1e} of eager's choice"
        return msgspec.structs.replace(report, verdict="ok", where="", tolerance=told) if near else report
    found = spreads(captured, expected)
    if not found or ours is None:
        return report
    spread = found[index]
    if is_within(ours, eager, spread):
        report = compare(name, ours, eager, allowed(eager.dtype, spread), equal_nan=equal_nan)
    return msgspec.structs.replace(report, spread=spread.largest)


def is_within(ours: torch.Tensor, eager: torch.Tensor, spread: Spread) -> bool:
    """True if two correct runs of a program with that spread may differ like this.

    NaN is allowed where eager has it.
    """
    exact = eager.to(_WIDE[eager.is_complex()])
    wide = ours.to(exact.dtype)
    if not bool(((wide == exact) | (wide.isnan() & exact.isnan()) | (wide.isfinite() & exact.isfinite())).all()):
        return False
    found, size = _apart(wide, exact), _apart(exact, torch.zeros_like(exact)).rms
    if spread.rms > MOST * size:
        return False
    return found.largest <= MULTIPLE * spread.largest and found.rms <= MULTIPLE * spread.rms


def allowed(dtype: torch.dtype, spread: Spread) -> Tolerance:
    """Returns the tolerance of an element of a result of `dtype` with that spread."""
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
    """Returns the differences of elements that are finite in both."""
    floats = isinstance(rounded, torch.Tensor) and (rounded.is_floating_point() or rounded.is_complex())
    if not floats or not rounded.numel():
        return Spread(0.0, 0.0)
    wide = rounded.detach().to(exact.dtype)
    difference = (wide - exact)[wide.isfinite() & exact.isfinite()].abs()
    if not difference.numel():
        return Spread(0.0, 0.0)
    return Spread(float(difference.max()), float(difference.square().mean().sqrt()))
