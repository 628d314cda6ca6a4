"""Compares what compiled code returned with what eager returned, and measures the deviation of each tensor.

Integers and booleans must be equal. For floats,
`|compiled - eager| <= absolute * max(1, rms(eager)) + relative * |eager|`
with the numbers of `TOLERANCES`, which allow for a few roundings of one op. The root mean square scales the absolute
part because sums in another order differ by roundings of the addends, even if the sum is small. `sensitivity` widens or
narrows this tolerance if the program magnifies or hides rounding errors. An infinity equals only itself, NaN equals NaN
only on request, and zeros are equal whatever their sign.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal

import torch

from buddy.compiler.protocol import OutputReport
from buddy.compiler.protocol.numerics import Deviation
from buddy.compiler.protocol.run_report import ErrorCheck
from buddy.compiler.runtime.error_statistics import ErrorStatistics, can_compare_in_one_pass, compare_in_one_pass

_BINS = 32
_ROWS, _COLUMNS = 12, 48


@dataclass(frozen=True)
class Tolerance:
    """An allowed error. `source` is the origin of the numbers; a difference of `least` is always allowed."""

    absolute: float
    relative: float
    source: str = field(default="", compare=False)
    least: float = 0.0

    def bound(self, rms: float, eager: Any = 0.0) -> Any:
        """Returns the allowed difference from `eager`, a number or a tensor of magnitudes; `rms` is that of all."""
        bound = self.absolute * max(1.0, rms) + self.relative * eager
        return bound.clamp(min=self.least) if isinstance(bound, torch.Tensor) else max(bound, self.least)

    def __str__(self) -> str:
        least = f", at least {self.least:.2g}" if self.least else ""
        return f"abs {self.absolute:.2g}·max(1, rms) + rel {self.relative:g}{least}" if self.absolute else "equal"


_TORCH = "torch.testing.assert_close"
EXACT = Tolerance(0.0, 0.0, "integers, bools and 8-bit floats: torch.testing.assert_close")
TOLERANCES = {
    torch.float64: Tolerance(1e-7, 1e-7, _TORCH),
    torch.complex128: Tolerance(1e-7, 1e-7, _TORCH),
    torch.float32: Tolerance(1e-5, 1.3e-6, _TORCH),
    torch.complex64: Tolerance(1e-5, 1.3e-6, _TORCH),
    # A rounding to 8 bits of mantissa is 2^-8 of the number: `absolute` is that of two or three addends.
    torch.bfloat16: Tolerance(1e-2, 1.6e-2, f"relative: {_TORCH}; absolute: three roundings of 2^-8 of an addend"),
    # 2^-11 for 11 bits, on both sides: twenty addends that cancel, as in a row of a small product.
    torch.float16: Tolerance(1e-2, 1e-3, f"relative: {_TORCH}; absolute: twenty roundings of 2^-11 of an addend"),
    torch.complex32: Tolerance(1e-5, 1e-3, _TORCH),
}
_INTEGER_VIEW = {8: torch.int64, 4: torch.int32, 2: torch.int16}


def compare(
    name: str,
    compiled: torch.Tensor | None,
    eager: torch.Tensor,
    allowed: Tolerance | None = None,
    *,
    equal_nan: bool = False,
) -> OutputReport:
    """Returns one output's report. `compiled` is `None` if the program did not return it.

    `allowed` replaces the element type's tolerance. Unless `equal_nan`, an output with a NaN where eager has one is not
    ok.
    """
    dtype = str(eager.dtype).removeprefix("torch.")
    if compiled is None or compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return OutputReport(name, tuple(eager.shape), dtype, math.nan, math.nan, "missing", where=_shape_of(compiled))
    tolerance = allowed or TOLERANCES.get(eager.dtype, EXACT)
    error, relative = _errors(compiled, eager, tolerance)
    wrong = _mismatches(compiled, eager, tolerance)
    ours, theirs = _nans(compiled), _nans(eager)
    unexpected_nans = None if equal_nan or ours is None or theirs is None or not bool(theirs.any()) else ours & theirs
    low, high, bins = _histogram(compiled)
    rel_where = _index_of_greatest(relative) if relative.numel() and bool((relative > 0).any()) else ""
    return OutputReport(
        name,
        tuple(eager.shape),
        dtype,
        max_abs=_maximum(error),
        max_rel=_maximum(relative),
        verdict=_verdict(wrong, unexpected_nans),
        tolerance=str(tolerance),
        where=_first_index(wrong) or _first_index(unexpected_nans),
        nans=_count(ours),
        infs=_count(_infs(compiled)),
        max_ulp=_max_ulp(compiled, eager),
        histogram=bins,
        low=low,
        high=high,
        **_statistics(compiled),
        map=_blocks(error),
        eager_nans=_count(theirs),
        zero_signs=_zero_signs(compiled, eager),
        rel_where=rel_where,
        rel_size=float(_wide(eager).abs().reshape(-1)[relative.argmax()]) if rel_where else 0.0,
        rel_floor=tolerance.absolute,
    )


def _verdict(wrong: torch.Tensor, unexpected_nans: torch.Tensor | None) -> Literal["ok", "mismatch", "nan"]:
    if bool(wrong.any()):
        return "mismatch"
    return "nan" if unexpected_nans is not None and bool(unexpected_nans.any()) else "ok"


def _nans(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns which elements are NaN; `None` if none can be."""
    return tensor != tensor if tensor.is_floating_point() and tensor.itemsize > 1 else _wide_nans(tensor)


def _wide_nans(tensor: torch.Tensor) -> torch.Tensor | None:
    return _wide(tensor).isnan() if tensor.is_floating_point() or tensor.is_complex() else None


def _infs(tensor: torch.Tensor) -> torch.Tensor | None:
    return _wide(tensor).isinf() if tensor.is_floating_point() or tensor.is_complex() else None


def _count(found: torch.Tensor | None) -> int:
    return 0 if found is None else int(found.sum())


def _zero_signs(compiled: torch.Tensor, eager: torch.Tensor) -> int:
    """Returns how many elements are zero on both sides, with different signs."""
    if not eager.is_floating_point():
        return 0
    ours, theirs = _wide(compiled), _wide(eager)
    return int(((ours == 0) & (theirs == 0) & (ours.signbit() != theirs.signbit())).sum())


def unchecked_report(name: str, compiled: torch.Tensor) -> OutputReport:
    """Returns the report of an output without a reference: its statistics, and no verdict."""
    low, high, bins = _histogram(compiled)
    return OutputReport(
        name,
        tuple(compiled.shape),
        str(compiled.dtype).removeprefix("torch."),
        math.nan,
        math.nan,
        "unchecked",
        nans=_count(_nans(compiled)),
        infs=_count(_infs(compiled)),
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
    """Returns the maximum difference in each of at most `_ROWS` x `_COLUMNS` blocks of the tensor as a matrix."""
    if not error.numel() or not bool((error > 0).any()):
        return ()
    matrix = error.reshape(-1, error.shape[-1] if error.dim() else 1)
    rows = torch.stack([part.amax(dim=0) for part in matrix.tensor_split(min(_ROWS, matrix.shape[0]), dim=0)])
    columns = rows.tensor_split(min(_COLUMNS, rows.shape[1]), dim=1)
    blocks = torch.stack([part.amax(dim=1) for part in columns], dim=1)
    return tuple(tuple(map(float, row)) for row in blocks.tolist())


def _shape_of(tensor: torch.Tensor | None) -> str:
    return "" if tensor is None else f"returned as {'x'.join(map(str, tensor.shape))} {tensor.dtype}"


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _errors(compiled: torch.Tensor, eager: torch.Tensor, tolerance: Tolerance) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns absolute and relative differences where both are finite; elsewhere 0 for equal values, else infinite.

    The relative difference is set to 0 where eager's value is within the absolute tolerance of 0.
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


def _mismatches(compiled: torch.Tensor, eager: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Returns which elements differ by more than the tolerance. An infinity equals only itself, NaN equals NaN."""
    if not eager.is_floating_point() and not eager.is_complex():
        return compiled != eager
    ours, theirs = _wide(compiled), _wide(eager)
    if tolerance == EXACT:
        return ~_same(ours, theirs)
    close = theirs.isfinite() & ((ours - theirs).abs() <= tolerance.bound(_finite_rms(theirs), theirs.abs()))
    return ~(close | _same(ours, theirs))


def _finite_rms(values: torch.Tensor) -> float:
    """Returns the root mean square of the finite elements, 0 without any."""
    finite = values[values.isfinite()]
    return float(finite.abs().square().mean().sqrt()) if finite.numel() else 0.0


def tolerance_check(compiled: torch.Tensor, eager: torch.Tensor) -> ErrorCheck:
    """Returns the check of the element type's tolerance, at the element that uses most of it.

    For numbers that have to be equal, it is a check of how many differ.
    """
    tolerance = tolerance_of(eager.dtype)
    if tolerance == EXACT:
        return ErrorCheck("elements differ", int(_mismatches(compiled, eager, tolerance).sum()), 0, "equal")
    ours, theirs = _wide(compiled), _wide(eager)
    rms = _finite_rms(theirs)
    rule = f"{tolerance.absolute:g} x max(1, rms {rms:.2g}) + {tolerance.relative:g} x |eager|"
    finite = ours.isfinite() & theirs.isfinite()
    if not bool(finite.any()):
        return ErrorCheck("abs error", 0.0, tolerance.bound(rms), rule)
    error, bound = (ours - theirs).abs(), tolerance.bound(rms, theirs.abs())
    share = torch.where(finite, error / bound, -1.0)
    place, where = int(share.argmax()), _index_of_greatest(share)
    return ErrorCheck(f"abs error at {where}", float(error.reshape(-1)[place]), float(bound.reshape(-1)[place]), rule)


def _first_index(wrong: torch.Tensor | None) -> str:
    return _index_of_greatest(wrong.int()) if wrong is not None and bool(wrong.any()) else ""


def index_of_greatest(compiled: torch.Tensor, eager: torch.Tensor) -> str:
    """Returns the index where two tensors differ most, among elements that are finite in both."""
    return _index_of_greatest((_wide(compiled) - _wide(eager)).abs().nan_to_num(0.0, 0.0))


def _index_of_greatest(values: torch.Tensor) -> str:
    """Returns the first index of the greatest value."""
    position = int(values.reshape(-1).argmax())
    index = []
    for size in reversed(values.shape):
        index.append(position % size)
        position //= size
    return str(list(reversed(index)))


def _maximum(values: torch.Tensor) -> float:
    return float(values.max()) if values.numel() else 0.0


def _max_ulp(compiled: torch.Tensor, eager: torch.Tensor) -> float:
    """Returns the maximum distance in representable values, over pairs of finite floats."""
    if not eager.is_floating_point() or not eager.numel() or eager.itemsize == 1:
        return 0.0
    both = compiled.isfinite() & eager.isfinite()
    ours, theirs = _ordered(compiled[both]), _ordered(eager[both])
    rough = (ours.double() - theirs.double()).abs()
    # Where 64-bit integers overflow, doubles are exact enough.
    return _maximum(torch.where(rough < 2**53, (ours - theirs).abs().double(), rough))


def _ordered(values: torch.Tensor) -> torch.Tensor:
    """Maps floats to integers in the same order, with neighbours one apart."""
    width = values.element_size()
    bits = values.contiguous().view(_INTEGER_VIEW[width]).to(torch.int64)
    lowest = -(1 << (8 * width - 1))
    return torch.where(bits < 0, lowest - bits, bits)


def _histogram(tensor: torch.Tensor) -> tuple[float, float, tuple[int, ...]]:
    """Returns the least and greatest finite value, and the number of values in each equal bin between them."""
    values = (tensor.abs() if tensor.is_complex() else tensor).reshape(-1).double()
    values = values[values.isfinite()]
    if not values.numel():
        return 0.0, 0.0, ()
    low, high = float(values.min()), float(values.max())
    counts = torch.histc(values, _BINS, min=low, max=high if high > low else low + 1.0)
    return low, high, tuple(int(count) for count in counts)


_SINGLE = (torch.float16, torch.bfloat16)


def tolerance_of(dtype: torch.dtype) -> Tolerance:
    """Returns the tolerance of a tensor of `dtype`, the same as for a program's outputs."""
    return TOLERANCES.get(dtype, EXACT)


class ErrorMetrics:
    """Computes deviations, and reuses the memory of temporaries."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, ours: torch.Tensor, reference: torch.Tensor) -> Deviation:
        """Compares `ours` with `reference`, which may be wider; the tolerance is that of `ours`."""
        tolerance = tolerance_of(ours.dtype)
        if not ours.numel():
            return Deviation()
        if tolerance == EXACT:
            return Deviation() if torch.equal(ours, reference) else _by_element(ours, reference, tolerance)
        found = self._fast(_parts(ours), _parts(reference), tolerance)
        return found if found is not None and found.share <= 1.0 else _by_element(ours, reference, tolerance)

    def _fast(self, ours: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> Deviation | None:
        """Returns the deviation of finite numbers, without the relative part of the tolerance.

        Returns `None` if some numbers are not finite.
        """
        found = (
            compare_in_one_pass(ours, self._dense(reference))
            if can_compare_in_one_pass(ours, reference)
            else self._compare_by_torch(ours, reference)
        )
        if not (math.isfinite(found.apart) and math.isfinite(found.size)):
            return None
        relative = math.sqrt(found.apart / found.size) if found.size else 0.0
        rms = math.sqrt(found.size / reference.numel())
        return Deviation(found.largest, relative, found.largest / tolerance.bound(rms))

    def _compare_by_torch(self, ours: torch.Tensor, reference: torch.Tensor) -> ErrorStatistics:
        """Does the same for tensors of any type and layout, by torch ops."""
        difference = torch.sub(ours, reference, out=self._scratch(reference))
        least, most = torch.aminmax(difference)
        apart, size = (float(torch.linalg.vector_norm(found)) for found in (difference, reference))
        return ErrorStatistics(max(abs(float(least)), abs(float(most))), apart * apart, size * size)

    def _dense(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_contiguous() else self._scratch(tensor).copy_(tensor)

    def _scratch(self, like: torch.Tensor) -> torch.Tensor:
        """Returns a tensor of that shape and type in the memory of the previous one."""
        size = like.numel() * like.element_size()
        if self._memory.numel() < size:
            self._memory = torch.empty(size, dtype=torch.uint8)
        return self._memory[:size].view(like.dtype).view(like.shape)


def needs_positions(value: torch.Tensor) -> bool:
    """True if moved elements would be detected: most neighbours differ. Those of a mask or of zeros do not."""
    # In memory order: copying a transposed weight takes longer than reading it.
    order = sorted(range(value.dim()), key=lambda dim: -value.stride(dim))
    flat = value.permute(order).reshape(-1)
    return 2 * int(torch.count_nonzero(flat[1:] != flat[:-1])) >= flat.numel() > 1


def _parts(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the numbers as stored: complex ones as pairs, narrow floats widened so that sums do not overflow."""
    plain = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).resolve_neg()
    return plain.float() if plain.dtype in _SINGLE else plain


def _by_element(ours: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> Deviation:
    """Returns the deviation computed by element, as for a program's outputs."""
    wide = reference.dtype
    report = compare("", ours.to(wide), reference, tolerance, equal_nan=True)
    if not math.isfinite(report.max_abs):
        return Deviation(0.0, 0.0, -1.0, report.nans, report.infs, report.where)
    share = _share(ours.to(wide), reference, tolerance)
    share = share if report.verdict == "ok" else max(share, math.nextafter(1.0, 2.0))
    return Deviation(report.max_abs, _relative(ours, reference), share, report.nans, report.infs, report.where)


def _finite(ours: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kind = torch.complex128 if reference.is_complex() else torch.float64
    one, other = ours.to(kind), reference.to(kind)
    both = one.isfinite() & other.isfinite()
    return (one[both] - other[both]).abs(), other[both].abs()


def _relative(ours: torch.Tensor, reference: torch.Tensor) -> float:
    difference, scale = _finite(ours.to(reference.dtype), reference)
    size = float(torch.linalg.vector_norm(scale))
    return float(torch.linalg.vector_norm(difference)) / size if size else 0.0


def _share(ours: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> float:
    """Returns the maximum difference as a fraction of the tolerance there, over pairs of finite numbers."""
    difference, scale = _finite(ours, reference)
    if not difference.numel():
        return 0.0
    if tolerance == EXACT:
        return float(difference.max())
    rms = float(scale.square().mean().sqrt())
    return float((difference / tolerance.bound(rms, scale)).max())
