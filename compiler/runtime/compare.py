"""Compares the results of compiled code with those of eager, and measures the deviation of each tensor.

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

# Numbers of bins and of blocks that fit into a report pane, where each is drawn as one character.
_HISTOGRAM_BINS = 32
_MAX_BLOCK_ROWS, _MAX_BLOCK_COLUMNS = 12, 48


@dataclass(frozen=True)
class Tolerance:
    """An allowed error, with an absolute and a relative part as in this module's formula.

    `source` is the origin of the numbers. A difference of `minimum` is always allowed.
    """

    absolute: float
    relative: float
    source: str = field(default="", compare=False)
    minimum: float = 0.0

    def bound(self, rms: float, magnitude: Any = 0.0) -> Any:
        """Returns the allowed difference from eager's elements, a tensor or one number.

        `magnitude` are their absolute values, and `rms` is the root mean square of the whole tensor.
        """
        bound = self.absolute * max(1.0, rms) + self.relative * magnitude
        return bound.clamp(min=self.minimum) if isinstance(bound, torch.Tensor) else max(bound, self.minimum)

    def __str__(self) -> str:
        minimum = f", at least {self.minimum:.2g}" if self.minimum else ""
        return f"abs {self.absolute:.2g}·max(1, rms) + rel {self.relative:g}{minimum}" if self.absolute else "equal"


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
# Integer types by the number of bytes of an element.
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

    `allowed` replaces the element type's tolerance. Unless `equal_nan` is set, the verdict is "nan" if both tensors
    have a NaN at the same index and no other element is wrong.
    """
    dtype = str(eager.dtype).removeprefix("torch.")
    if compiled is None or compiled.shape != eager.shape or compiled.dtype != eager.dtype:
        return OutputReport(
            name, tuple(eager.shape), dtype, max_abs=math.nan, max_rel=math.nan, verdict="missing",
            where=_describe_form(compiled),
        )  # fmt: skip
    tolerance = allowed or tolerance_of(eager.dtype)
    error, relative = _errors(compiled, eager, tolerance)
    mismatches = _mismatches(compiled, eager, tolerance)
    compiled_nans, eager_nans = _nans(compiled), _nans(eager)
    common_nans = None
    if not equal_nan and compiled_nans is not None and eager_nans is not None and bool(eager_nans.any()):
        common_nans = compiled_nans & eager_nans
    low, high, bins = _histogram(compiled)
    rel_where = _index_of_largest(relative) if relative.numel() and bool((relative > 0).any()) else ""
    return OutputReport(
        name,
        tuple(eager.shape),
        dtype,
        max_abs=_maximum(error),
        max_rel=_maximum(relative),
        verdict=_verdict(mismatches, common_nans),
        tolerance=str(tolerance),
        where=_first_index(mismatches) or _first_index(common_nans),
        nans=_count(compiled_nans),
        infs=_count(_infinities(compiled)),
        max_ulp=_max_ulp(compiled, eager),
        histogram=bins,
        low=low,
        high=high,
        **_statistics(compiled),
        map=_error_map(error),
        eager_nans=_count(eager_nans),
        zero_signs=_zero_signs(compiled, eager),
        rel_where=rel_where,
        rel_size=float(_to_double(eager).abs().reshape(-1)[relative.argmax()]) if rel_where else 0.0,
        rel_floor=tolerance.absolute,
    )


def _verdict(mismatches: torch.Tensor, common_nans: torch.Tensor | None) -> Literal["ok", "mismatch", "nan"]:
    """Returns the verdict, from masks of the wrong elements, and of those that are NaN in both tensors."""
    if bool(mismatches.any()):
        return "mismatch"
    return "nan" if common_nans is not None and bool(common_nans.any()) else "ok"


def _nans(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the mask of the elements that are NaN; `None` for types without NaN."""
    if tensor.is_floating_point() and tensor.itemsize > 1:
        return tensor != tensor  # without a copy in double precision
    return _to_double(tensor).isnan() if tensor.is_floating_point() or tensor.is_complex() else None


def _infinities(tensor: torch.Tensor) -> torch.Tensor | None:
    """Returns the mask of the elements that are infinite; `None` for types without infinities."""
    return _to_double(tensor).isinf() if tensor.is_floating_point() or tensor.is_complex() else None


def _count(mask: torch.Tensor | None) -> int:
    return 0 if mask is None else int(mask.sum())


def _zero_signs(compiled: torch.Tensor, eager: torch.Tensor) -> int:
    """Returns how many elements are zero in both tensors, with different signs."""
    if not eager.is_floating_point():
        return 0
    compiled_values, eager_values = _to_double(compiled), _to_double(eager)
    return int(
        ((compiled_values == 0) & (eager_values == 0) & (compiled_values.signbit() != eager_values.signbit())).sum()
    )


def unchecked_report(name: str, compiled: torch.Tensor) -> OutputReport:
    """Returns the report of an output without a reference: its statistics, and no verdict."""
    low, high, bins = _histogram(compiled)
    return OutputReport(
        name,
        tuple(compiled.shape),
        str(compiled.dtype).removeprefix("torch."),
        max_abs=math.nan,
        max_rel=math.nan,
        verdict="unchecked",
        nans=_count(_nans(compiled)),
        infs=_count(_infinities(compiled)),
        histogram=bins,
        low=low,
        high=high,
        **_statistics(compiled),
    )


def _statistics(compiled: torch.Tensor) -> dict[str, Any]:
    """Returns the fields of `OutputReport` that describe the values; {} if no element is finite."""
    values = (compiled.abs() if compiled.is_complex() else compiled).reshape(-1).double()
    finite = values[values.isfinite()]
    if not finite.numel():
        return {}
    deviation = float(finite.std(correction=0))
    return {"mean": float(finite.mean()), "deviation": deviation, "zeros": int((values == 0).sum())}


def _error_map(error: torch.Tensor) -> tuple[tuple[float, ...], ...]:
    """Returns the maximum difference in each block of the tensor, by row of blocks; () without differences.

    The tensor is divided as a matrix into at most `_MAX_BLOCK_ROWS` x `_MAX_BLOCK_COLUMNS` blocks; the last dim has the
    columns.
    """
    if not error.numel() or not bool((error > 0).any()):
        return ()
    matrix = error.reshape(-1, error.shape[-1] if error.dim() else 1)
    rows = torch.stack([part.amax(dim=0) for part in matrix.tensor_split(min(_MAX_BLOCK_ROWS, matrix.shape[0]), dim=0)])
    columns = rows.tensor_split(min(_MAX_BLOCK_COLUMNS, rows.shape[1]), dim=1)
    blocks = torch.stack([part.amax(dim=1) for part in columns], dim=1)
    return tuple(tuple(map(float, row)) for row in blocks.tolist())


def _describe_form(tensor: torch.Tensor | None) -> str:
    """Returns the shape and element type of a result that has others than eager's, as text; "" for a missing one."""
    return "" if tensor is None else f"returned as {'x'.join(map(str, tensor.shape))} {tensor.dtype}"


def _to_double(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def _errors(compiled: torch.Tensor, eager: torch.Tensor, tolerance: Tolerance) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the absolute and the relative differences of elements that are finite in both tensors.

    The difference of other elements is 0 if they are equal, else infinite. The relative difference is also 0 where
    eager's value is within the absolute tolerance of 0.
    """
    compiled_values, eager_values = _to_double(compiled), _to_double(eager)
    are_finite = compiled_values.isfinite() & eager_values.isfinite()
    difference_if_not_finite = torch.where(_are_same(compiled_values, eager_values), 0.0, math.inf)
    error = torch.where(are_finite, (compiled_values - eager_values).abs(), difference_if_not_finite)
    scale = eager_values.abs()
    relative = torch.where(scale > tolerance.absolute, error / scale, 0.0)
    return error, torch.where(are_finite, relative, difference_if_not_finite)


def _are_same(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Returns the mask of the elements that are equal or are NaN in both tensors."""
    return (a == b) | (a.isnan() & b.isnan())


def _mismatches(compiled: torch.Tensor, eager: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """Returns the mask of the elements that differ by more than the tolerance.

    An infinity equals only itself, NaN equals NaN.
    """
    if not eager.is_floating_point() and not eager.is_complex():
        return compiled != eager
    compiled_values, eager_values = _to_double(compiled), _to_double(eager)
    if tolerance == EXACT:
        return ~_are_same(compiled_values, eager_values)
    bound = tolerance.bound(_finite_rms(eager_values), eager_values.abs())
    is_close = eager_values.isfinite() & ((compiled_values - eager_values).abs() <= bound)
    return ~(is_close | _are_same(compiled_values, eager_values))


def _finite_rms(values: torch.Tensor) -> float:
    """Returns the root mean square of the finite elements, 0 without any."""
    finite = values[values.isfinite()]
    return float(finite.abs().square().mean().sqrt()) if finite.numel() else 0.0


def tolerance_check(compiled: torch.Tensor, eager: torch.Tensor) -> ErrorCheck:
    """Returns the check of the element type's tolerance, at the element that uses most of it.

    For types whose numbers must be equal, the check is how many differ.
    """
    tolerance = tolerance_of(eager.dtype)
    if tolerance == EXACT:
        return ErrorCheck("elements differ", int(_mismatches(compiled, eager, tolerance).sum()), 0, "equal")
    compiled_values, eager_values = _to_double(compiled), _to_double(eager)
    rms = _finite_rms(eager_values)
    rule = f"{tolerance.absolute:g} x max(1, rms {rms:.2g}) + {tolerance.relative:g} x |eager|"
    are_finite = compiled_values.isfinite() & eager_values.isfinite()
    if not bool(are_finite.any()):
        return ErrorCheck("abs error", 0.0, tolerance.bound(rms), rule)
    error, bound = (compiled_values - eager_values).abs(), tolerance.bound(rms, eager_values.abs())
    ratio = torch.where(are_finite, error / bound, -1.0)
    position, index = int(ratio.argmax()), _index_of_largest(ratio)
    return ErrorCheck(
        f"abs error at {index}", float(error.reshape(-1)[position]), float(bound.reshape(-1)[position]), rule
    )


def _first_index(mask: torch.Tensor | None) -> str:
    """Returns the index of the first true element, or an empty string without one."""
    return _index_of_largest(mask.int()) if mask is not None and bool(mask.any()) else ""


def index_of_largest_difference(compiled: torch.Tensor, eager: torch.Tensor) -> str:
    """Returns the index where two tensors differ most, among elements that are finite in both, as text."""
    return _index_of_largest((_to_double(compiled) - _to_double(eager)).abs().nan_to_num(0.0, 0.0))


def _index_of_largest(values: torch.Tensor) -> str:
    """Returns the index of the greatest value, the first of several, as text such as `[0, 3]`."""
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
    are_finite = compiled.isfinite() & eager.isfinite()
    compiled_keys, eager_keys = _ordered_integers(compiled[are_finite]), _ordered_integers(eager[are_finite])
    approximate = (compiled_keys.double() - eager_keys.double()).abs()
    # Where 64-bit integers overflow, doubles are exact enough.
    return _maximum(torch.where(approximate < 2**53, (compiled_keys - eager_keys).abs().double(), approximate))


def _ordered_integers(values: torch.Tensor) -> torch.Tensor:
    """Maps floats to integers in the same order; those of neighbouring floats differ by 1."""
    width = values.element_size()
    bits = values.contiguous().view(_INTEGER_VIEW[width]).to(torch.int64)
    lowest = -(1 << (8 * width - 1))
    return torch.where(bits < 0, lowest - bits, bits)


def _histogram(tensor: torch.Tensor) -> tuple[float, float, tuple[int, ...]]:
    """Returns the smallest and the largest finite value, and the number of values in each bin between them."""
    values = (tensor.abs() if tensor.is_complex() else tensor).reshape(-1).double()
    values = values[values.isfinite()]
    if not values.numel():
        return 0.0, 0.0, ()
    low, high = float(values.min()), float(values.max())
    counts = torch.histc(values, _HISTOGRAM_BINS, min=low, max=high if high > low else low + 1.0)
    return low, high, tuple(int(count) for count in counts)


_HALF_TYPES = (torch.float16, torch.bfloat16)


def tolerance_of(dtype: torch.dtype) -> Tolerance:
    """Returns the tolerance of a tensor of `dtype`, the same as for a program's outputs."""
    return TOLERANCES.get(dtype, EXACT)


class ErrorMetrics:
    """Computes the deviations of tensors from their references, in temporary memory that is reused."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def of(self, compiled: torch.Tensor, reference: torch.Tensor) -> Deviation:
        """Compares `compiled` with `reference`, whose element type may be wider, by the tolerance of `compiled`."""
        tolerance = tolerance_of(compiled.dtype)
        if not compiled.numel():
            return Deviation()
        if tolerance == EXACT:
            if torch.equal(compiled, reference):
                return Deviation()
            return _compare_by_element(compiled, reference, tolerance)
        # The absolute part of the tolerance is quicker to check, and a deviation within this part is within the whole.
        deviation = self._compare_finite(_real_values(compiled), _real_values(reference), tolerance)
        if deviation is not None and deviation.of_tolerance <= 1.0:
            return deviation
        return _compare_by_element(compiled, reference, tolerance)

    def _compare_finite(
        self, compiled: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance
    ) -> Deviation | None:
        """Returns the deviation of finite numbers, without the relative part of the tolerance.

        Returns `None` if some numbers are not finite.
        """
        if can_compare_in_one_pass(compiled, reference):
            statistics = compare_in_one_pass(compiled, self._dense(reference))
        else:
            statistics = self._compare_by_torch(compiled, reference)
        if not (math.isfinite(statistics.squared_difference) and math.isfinite(statistics.squared_reference)):
            return None
        relative = 0.0
        if statistics.squared_reference:
            relative = math.sqrt(statistics.squared_difference / statistics.squared_reference)
        rms = math.sqrt(statistics.squared_reference / reference.numel())
        return Deviation(statistics.largest, relative, statistics.largest / tolerance.bound(rms))

    def _compare_by_torch(self, compiled: torch.Tensor, reference: torch.Tensor) -> ErrorStatistics:
        """Returns what `compare_in_one_pass` returns, for tensors of any type and layout, by torch ops."""
        difference = torch.sub(compiled, reference, out=self._scratch(reference))
        low, high = torch.aminmax(difference)
        difference_norm, reference_norm = (
            float(torch.linalg.vector_norm(tensor)) for tensor in (difference, reference)
        )
        return ErrorStatistics(
            max(abs(float(low)), abs(float(high))), difference_norm * difference_norm, reference_norm * reference_norm
        )

    def _dense(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.is_contiguous() else self._scratch(tensor).copy_(tensor)

    def _scratch(self, like: torch.Tensor) -> torch.Tensor:
        """Returns a tensor with the shape and type of `like`, in memory that is reused by the next call."""
        size = like.numel() * like.element_size()
        if self._memory.numel() < size:
            self._memory = torch.empty(size, dtype=torch.uint8)
        return self._memory[:size].view(like.dtype).view(like.shape)


def can_detect_moved_elements(value: torch.Tensor) -> bool:
    """True if a comparison would detect moved elements: at least half of the neighbouring elements differ."""
    # In memory order: copying a transposed weight takes longer than reading it.
    order = sorted(range(value.dim()), key=lambda dim: -value.stride(dim))
    flat = value.permute(order).reshape(-1)
    return 2 * int(torch.count_nonzero(flat[1:] != flat[:-1])) >= flat.numel() > 1


def _real_values(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the numbers as real floats: complex ones as pairs, narrow floats widened so that sums do not overflow."""
    plain = (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).resolve_neg()
    return plain.float() if plain.dtype in _HALF_TYPES else plain


def _compare_by_element(compiled: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> Deviation:
    """Returns the deviation by comparing elements, as for a program's outputs."""
    dtype = reference.dtype
    report = compare("", compiled.to(dtype), reference, tolerance, equal_nan=True)
    if not math.isfinite(report.max_abs):
        return Deviation(of_tolerance=-1.0, nans=report.nans, infs=report.infs, where=report.where)
    share = _share_of_tolerance(compiled.to(dtype), reference, tolerance)
    if report.verdict != "ok":  # a mismatch must have more than 1, even if rounding makes it 1
        share = max(share, math.nextafter(1.0, 2.0))
    return Deviation(
        report.max_abs, _relative_error(compiled, reference), share, report.nans, report.infs, report.where
    )


def _finite_differences(compiled: torch.Tensor, reference: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the absolute differences and the magnitudes of the reference, where both tensors are finite."""
    dtype = torch.complex128 if reference.is_complex() else torch.float64
    compiled_values, reference_values = compiled.to(dtype), reference.to(dtype)
    are_finite = compiled_values.isfinite() & reference_values.isfinite()
    return (compiled_values[are_finite] - reference_values[are_finite]).abs(), reference_values[are_finite].abs()


def _relative_error(compiled: torch.Tensor, reference: torch.Tensor) -> float:
    """Returns the norm of the differences, divided by that of the reference, over pairs of finite numbers."""
    difference, scale = _finite_differences(compiled.to(reference.dtype), reference)
    norm = float(torch.linalg.vector_norm(scale))
    return float(torch.linalg.vector_norm(difference)) / norm if norm else 0.0


def _share_of_tolerance(compiled: torch.Tensor, reference: torch.Tensor, tolerance: Tolerance) -> float:
    """Returns the maximum difference as a fraction of the tolerance there, over pairs of finite numbers."""
    difference, scale = _finite_differences(compiled, reference)
    if not difference.numel():
        return 0.0
    if tolerance == EXACT:
        return float(difference.max())
    rms = float(scale.square().mean().sqrt())
    return float((difference / tolerance.bound(rms, scale)).max())
