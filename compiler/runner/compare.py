"""Compares what compiled code returned with what eager returned.

Integers and booleans must be equal. For floats,
`|compiled - eager| <= absolute * max(1, rms(eager)) + relative * |eager|`
with the figures of `torch.testing.assert_close`, which allow for a few roundings of one op. The root mean square scales
the absolute part because sums taken in another order differ by roundings of the addends, however small the sum comes
out. The size of the program does not widen it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from buddy.compiler.protocol import OutputReport

_BINS = 32
_ROWS, _COLUMNS = 12, 48


@dataclass(frozen=True)
class Tolerance:
    absolute: float
    relative: float

    def __str__(self) -> str:
        return f"abs {self.absolute:.2g}·max(1, rms) + rel {self.relative:g}" if self.absolute else "equal"


EXACT = Tolerance(0.0, 0.0)
TOLERANCES = {
    torch.float64: Tolerance(1e-7, 1e-7),
    torch.complex128: Tolerance(1e-7, 1e-7),
    torch.float32: Tolerance(1e-5, 1.3e-6),
    torch.complex64: Tolerance(1e-5, 1.3e-6),
    torch.bfloat16: Tolerance(1e-2, 1.6e-2),
    torch.float16: Tolerance(1e-2, 1e-3),
}
_INTEGER_VIEW = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def compare(
    name: str, compiled: torch.Tensor | None, eager: torch.Tensor, allowed: Tolerance | None = None
) -> OutputReport:
    """One output's report. `compiled` is None when the program did not return it.

    `allowed` stands in for the element type's own tolerance.
    """
    dtype = str(eager.dtype).removeprefix("torch.")
    if compiled is None or compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return OutputReport(name, tuple(eager.shape), dtype, math.nan, math.nan, "missing", where=_shape_of(compiled))
    tolerance = allowed or TOLERANCES.get(eager.dtype, EXACT)
    error, relative = _errors(compiled, eager, tolerance)
    wrong = _wrong(compiled, eager, tolerance)
    low, high, bins = _histogram(compiled)
    return OutputReport(
        name,
        tuple(eager.shape),
        dtype,
        max_abs=_maximum(error),
        max_rel=_maximum(relative),
        verdict="mismatch" if bool(wrong.any()) else "ok",
        tolerance=str(tolerance),
        where=_first_index(wrong),
        nans=int(compiled.isnan().sum()),
        infs=int(compiled.isinf().sum()),
        max_ulp=_max_ulp(compiled, eager),
        histogram=bins,
        low=low,
        high=high,
        **_statistics(compiled),
        map=_blocks(error),
    )


def unchecked(name: str, compiled: torch.Tensor) -> OutputReport:
    """The report of an output that there is nothing to compare with: figures of its own, and no verdict."""
    low, high, bins = _histogram(compiled)
    return OutputReport(
        name,
        tuple(compiled.shape),
        str(compiled.dtype).removeprefix("torch."),
        math.nan,
        math.nan,
        "unchecked",
        nans=int(compiled.isnan().sum()),
        infs=int(compiled.isinf().sum()),
        histogram=bins,
        low=low,
        high=high,
        **_statistics(compiled),
    )


def _statistics(compiled: torch.Tensor) -> dict[str, Any]:
    values = (compiled.abs() if compiled.is_complex() else compiled).reshape(-1).double()
    finite = values[values.isfinite()]
    if not finite.numel():
        return {}
    deviation = float(finite.std(correction=0))
    return {"mean": float(finite.mean()), "deviation": deviation, "zeros": int((values == 0).sum())}


def _blocks(error: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    """The greatest difference in each of at most `_ROWS` x `_COLUMNS` blocks of the tensor as a matrix."""
    if not error.numel() or not bool((error > 0).any()):
        return ()
    matrix = error.reshape(-1, error.shape[-1] if error.dim() else 1)
    rows = torch.stack([part.amax(dim=0) for part in matrix.tensor_split(min(_ROWS, matrix.shape[0]), dim=0)])
    columns = rows.tensor_split(min(_COLUMNS, rows.shape[1]), dim=1)
    blocks = torch.stack([part.amax(dim=1) for part in columns], dim=1)
    return tuple(tuple(map(float, row)) for row in blocks.tolist())


def _shape_of(tensor: torch.Tensor | None) -> str:
    return "" if tensor is None else f"came as {'x'.join(map(str, tensor.shape))} {tensor.dtype}"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _errors(compiled: torch.Tensor, eager: torch.Tensor, tolerance: Tolerance) -> tuple[torch.Tensor, torch.Tensor]:
    """Absolute and relative differences where both are finite; elsewhere 0 for equal values, else infinite.

    Where eager's value is within the absolute tolerance of 0, a relative difference says nothing and is given as 0.
    """
    ours, theirs = _wide(compiled), _wide(eager)
    both = ours.isfinite() & theirs.isfinite()
    differs = torch.where(_same(ours, theirs), 0.0, math.inf)
    error = torch.where(both, (ours - theirs).abs(), differs)
    scale = theirs.abs()
    relative = torch.where(scale > tolerance.absolute, error / scale, 0.0)
    return error, torch.where(both, relative, differs)


def _same(ours: torch.Tensor, theirs: torch.Tensor) -> torch.Tensor:
    return (ours == theirs) | (ours.isnan() & theirs.isnan())


def _wrong(compiled: torch.Tensor, eager: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Which elements differ by more than the tolerance. NaN equals NaN; an infinity only itself."""
    if tolerance == EXACT:
        return compiled != eager
    ours, theirs = _wide(compiled), _wide(eager)
    finite = theirs.isfinite()
    rms = float(theirs[finite].abs().square().mean().sqrt()) if bool(finite.any()) else 0.0
    allowed = tolerance.absolute * max(1.0, rms) + tolerance.relative * theirs.abs()
    close = finite & ((ours - theirs).abs() <= allowed)
    return ~(close | _same(ours, theirs))


def _first_index(wrong: torch.Tensor) -> str:
    flat = wrong.reshape(-1)
    if not bool(flat.any()):
        return ""
    position = int(flat.int().argmax())
    index = []
    for size in reversed(wrong.shape):
        index.append(position % size)
        position //= size
    return str(list(reversed(index)))


def _maximum(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _max_ulp(compiled: torch.Tensor, eager: torch.Tensor) -> float:
    """The largest distance counted in representable values between the two, over pairs of finite floats."""
    if not eager.is_floating_point() or not eager.numel():
        return 0.0
    both = compiled.isfinite() & eager.isfinite()
    ours, theirs = _ordered(compiled[both]), _ordered(eager[both])
    rough = (ours.double() - theirs.double()).abs()
    # Integers so far apart that 64 bits overflow are told by doubles, which have no need to be exact there.
    return _maximum(torch.where(rough < 2**53, (ours - theirs).abs().double(), rough))


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Floats as integers in the same order, neighbours one apart."""
    width = values.element_size()
    bits = values.contiguous().view(_INTEGER_VIEW[width]).to(torch.int64)
    lowest = -(1 << (8 * width - 1))
    return torch.where(bits < 0, lowest - bits, bits)


def _histogram(tensor: torch.Tensor) -> tuple[float, float, tuple[int, ...]]:
    """Least and greatest finite value, and how many values lie in each of the equal bins between them."""
    values = (tensor.abs() if tensor.is_complex() else tensor).reshape(-1).double()
    values = values[values.isfinite()]
    if not values.numel():
        return 0.0, 0.0, ()
    low, high = float(values.min()), float(values.max())
    counts = torch.histc(values, _BINS, min=low, max=high if high > low else low + 1.0)
    return low, high, tuple(int(count) for count in counts)
