"""Measures the deviation of a tensor from a reference, with few passes over memory if it is within tolerance."""

from __future__ import annotations

import math

import torch

from buddy.compiler.protocol.numerics_report import Deviation
from buddy.compiler.runtime.compare import EXACT, TOLERANCES, Tolerance, compare
from buddy.compiler.runtime.error_statistics import ErrorStatistics, can_compare_in_one_pass, compare_in_one_pass

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
