"""Fourier transforms of any length, as matrix products.

A length with small factors is transformed by Cooley and Tukey's rule (1965): for N = A B, transforms of length A,
twiddle factors, transforms of length B. Short lengths, and short primes, are products with the DFT matrix, for which
the compiler has fast kernels. Longer primes become a convolution by Bluestein's rule (1970). Numbers on the unit circle
are computed in double precision, from exactly reduced angles.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache

import numpy as np
import torch
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.frontend.complex_numbers.pair import ComplexPair, Interleaved, rule

aten = torch.ops.aten

# Up to this length, one matrix product is faster than two with a transposition between them.
MAX_DIRECT_LENGTH = 64
# For larger prime factors, the product with the DFT matrix would cost more than Bluestein's three transforms.
LARGEST_FACTOR = 256


@rule(aten._fft_c2c.default)
def c2c(
    out: torch.Tensor, x: ComplexPair, dims: list[int], normalization: int, forward: bool
) -> Interleaved | ComplexPair:
    """Returns the transform of complex numbers along `dims`, one after the other."""
    if not _are_static(x.re, dims):
        return NotImplemented
    sign, scale = -1 if forward else 1, _normalization_factor(x.re, dims, normalization)
    if x.stacked is not None and _is_only_last_dim(x.re, dims) and x.re.size(-1) <= MAX_DIRECT_LENGTH:
        size = x.re.size(-1)
        result = _product(x.stacked.flatten(-2), _interleaved_matrix(size, size, sign, scale, x.re.dtype))
        return Interleaved(result.unflatten(-1, (size, 2)))
    result = x
    for dim in dims:
        result = _transform_dim(result, dim, sign)
    return _scale(result, scale)


@rule(aten._fft_r2c.default)
def r2c(
    out: torch.Tensor, x: torch.Tensor, dims: list[int], normalization: int, onesided: bool
) -> Interleaved | ComplexPair:
    """Returns the transform of real numbers, first along the last of `dims`: only half of that result is needed.

    Results that equal their own conjugates, such as the first one, are real: their imaginary parts are set to 0,
    because the computed sum may be NaN.
    """
    if not _are_static(x, dims):
        return NotImplemented
    *others, last = dims
    count, scale = out.size(last), _normalization_factor(x, dims, normalization)
    is_self_conjugate = _self_conjugate_mask(out, {dim % x.dim(): x.size(dim) for dim in dims})
    if _is_only_last_dim(x, dims) and x.size(-1) <= MAX_DIRECT_LENGTH:
        table = _interleaved_matrix(x.size(-1), count, -1, scale, x.dtype)[::2].contiguous()
        stacked = _product(x, table).unflatten(-1, (count, 2))
        is_zero_part = np.stack([np.zeros_like(is_self_conjugate), is_self_conjugate], -1)
        return Interleaved(torch.where(_constant(is_zero_part), 0.0, stacked))
    result = _move_last_to(_transform_real(_move_to_last(x, last), -1, count), last)
    for dim in others:
        result = _transform_dim(result, dim, -1)
    return _scale(ComplexPair(result.re, torch.where(_constant(is_self_conjugate), 0.0, result.im)), scale)


@rule(aten._fft_c2r.default)
def c2r(out: torch.Tensor, x: ComplexPair, dims: list[int], normalization: int, last_size: int) -> torch.Tensor:
    """Returns the real inverse transform to length `last_size` along the last of `dims`.

    `x` has only half of that dim, because the other half would be conjugates; it is therefore transformed last.
    """
    if not _are_static(x.re, dims) or not isinstance(last_size, int):
        return NotImplemented
    *others, last = dims
    partial = x
    for dim in others:
        partial = _transform_dim(partial, dim, 1)
    real = _invert_to_real(partial.map(lambda part: _move_to_last(part, last)), last_size)
    real = real if _is_only_last_dim(real, [last]) else real.movedim(-1, last)
    scale = _normalization_factor(real, dims, normalization)
    return real if scale == 1 else real * scale


def _are_static(x: torch.Tensor, dims: list[int]) -> bool:
    """True if the lengths of the transforms are static: their matrices are constants."""
    return all(isinstance(x.size(dim), int) for dim in dims)


def _normalization_factor(x: torch.Tensor, dims: list[int], normalization: int) -> float:
    """Returns the factor of a normalization in PyTorch's numbering: 1, 1 / sqrt(n) or 1 / n, for n elements."""
    count = math.prod(x.size(dim) for dim in dims)
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization]


def _scale(x: ComplexPair, factor: float) -> ComplexPair:
    return x if factor == 1 else x.scaled(factor)


def _is_only_last_dim(x: torch.Tensor, dims: list[int]) -> bool:
    return len(dims) == 1 and dims[0] % x.dim() == x.dim() - 1


def _move_to_last(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x if _is_only_last_dim(x, [dim]) else x.movedim(dim, -1)


def _move_last_to(x: ComplexPair, dim: int) -> ComplexPair:
    """Returns `x` with its last dim moved to `dim`."""
    return x if _is_only_last_dim(x.re, [dim]) else x.map(lambda part: part.movedim(-1, dim))


def _transform_dim(x: ComplexPair, dim: int, sign: int) -> ComplexPair:
    """Like `_transform_last_dim`, for any dim."""
    return _move_last_to(_transform_last_dim(x.map(lambda part: _move_to_last(part, dim)), sign), dim)


# ---- along the last dim ----------------------------------------------------------------------------------------------


def _transform_last_dim(x: ComplexPair, sign: int) -> ComplexPair:
    """Returns the sums of x[n] exp(sign 2 pi i n k / N) over the last dim; `sign` is -1 for the forward transform.

    The imaginary part of `x` may be the Python number 0.
    """
    size = x.re.size(-1)
    if size == 1:
        return ComplexPair(x.re, x.im if isinstance(x.im, torch.Tensor) else torch.zeros_like(x.re))
    divisor = _choose_divisor(size)
    if size <= MAX_DIRECT_LENGTH or (divisor == size and size <= LARGEST_FACTOR):
        return _transform_by_matrix(x, sign, size)
    if divisor > LARGEST_FACTOR or divisor == size:
        return _transform_by_convolution(x, sign)
    return _transform_by_factors(x, sign, divisor)


def _transform_by_matrix(x: ComplexPair, sign: int, count: int) -> ComplexPair:
    """Returns the first `count` numbers of the transform: one product per part, with cosines and sines concatenated."""
    size = x.re.size(-1)
    table = _dft_matrix(size, count, sign, x.re.dtype)
    re = _product(x.re, table)
    cosines, sines = re.narrow(-1, 0, count), re.narrow(-1, count, count)
    if not isinstance(x.im, torch.Tensor):
        return ComplexPair(cosines, sines)
    im = _product(x.im, table)
    return ComplexPair(cosines - im.narrow(-1, count, count), sines + im.narrow(-1, 0, count))


def _product(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """Returns `x @ table` as one matrix product of the flattened `x`; `matmul` would repeat the matrix."""
    return (x.reshape(-1, x.size(-1)) @ table).reshape(*x.shape[:-1], table.size(-1))


def _transform_by_factors(x: ComplexPair, sign: int, a: int) -> ComplexPair:
    """Computes the transform of length N = a b by transforms of lengths a and b.

    With n = b n1 + n2 and k = k1 + a k2, it transforms over n1, multiplies by the twiddle factors of n2 k1 / N, and
    transforms over n2.
    """
    size = x.re.size(-1)
    b = size // a
    columns = ComplexPair(*(_split(part, a, b) for part in (x.re, x.im)))
    inner = _transform_last_dim(columns, sign)  # [..., n2, k1]
    twiddled = inner * ComplexPair(*_twiddle_factors(a, b, sign, x.re.dtype))
    outer = _transform_last_dim(twiddled.map(lambda part: part.transpose(-1, -2)), sign)  # [..., k1, k2]
    return outer.map(lambda part: part.transpose(-1, -2).flatten(-2))


def _split(part: torch.Tensor, a: int, b: int) -> torch.Tensor:
    """Reshapes [..., n] to [..., n2, n1]."""
    return part.unflatten(-1, (a, b)).transpose(-1, -2) if isinstance(part, torch.Tensor) else part


def _transform_by_convolution(x: ComplexPair, sign: int) -> ComplexPair:
    """Computes the transform as a convolution with a chirp, which is a product of transforms.

    This follows from n k = (n^2 + k^2 - (k - n)^2) / 2.
    """
    size = x.re.size(-1)
    length = 1 << (2 * size - 2).bit_length()
    chirp, kernel_spectrum = (ComplexPair(*parts) for parts in _chirps(size, length, sign, x.re.dtype))
    padded = (x * chirp).map(lambda part: torch.nn.functional.pad(part, (0, length - size)))
    convolution = _transform_last_dim(_transform_last_dim(padded, -1) * kernel_spectrum, 1)
    return convolution.map(lambda part: part.narrow(-1, 0, size)) * chirp


def _transform_real(x: torch.Tensor, sign: int, count: int) -> ComplexPair:
    """Returns the first `count` numbers of the transform of real numbers."""
    if 1 < x.size(-1) <= MAX_DIRECT_LENGTH:
        return _transform_by_matrix(ComplexPair(x, 0.0), sign, count)
    return _transform_last_dim(ComplexPair(x, 0.0), sign).map(lambda part: part.narrow(-1, 0, count))


def _invert_to_real(x: ComplexPair, size: int) -> torch.Tensor:
    """Returns the unnormalized real inverse transform, from the first `size // 2 + 1` numbers.

    The rest are their conjugates. Imaginary parts of numbers that are their own conjugates are not read.
    """
    half = x.map(lambda part: part.narrow(-1, 0, size // 2 + 1))
    if size <= MAX_DIRECT_LENGTH:
        cosines, sines = _real_inverse_matrices(size, x.re.dtype)
        real = _product(half.re, cosines)
        return real + _product(half.im.narrow(-1, 1, len(sines)), sines) if len(sines) else real
    mirrored = half.map(lambda part: part.narrow(-1, 1, (size - 1) // 2).flip(-1))
    inner = half.im.narrow(-1, 1, (size - 1) // 2)
    zero = torch.zeros_like(half.im.narrow(-1, 0, 1))
    im = torch.cat([zero, inner, *([zero] if size % 2 == 0 else []), -mirrored.im], -1)
    return _transform_last_dim(ComplexPair(torch.cat([half.re, mirrored.re], -1), im), 1).re


def _choose_divisor(size: int) -> int:
    """Returns the divisor of `size` in [2, `MAX_DIRECT_LENGTH`] that is closest to the square root of `size`.

    Without such a divisor, returns the smallest prime factor.
    """
    small = [d for d in range(2, MAX_DIRECT_LENGTH + 1) if size % d == 0]
    if small:
        return min(small, key=lambda d: (abs(math.log(d) - math.log(size) / 2), d))
    return next((d for d in range(MAX_DIRECT_LENGTH + 1, math.isqrt(size) + 1) if size % d == 0), size)


# ---- numbers on the unit circle --------------------------------------------------------------------------------------


def _unit_circle(numerators: np.ndarray, size: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns cosines and sines of `sign * 2 pi * numerators / size`, exact at multiples of a quarter turn."""
    angles = sign * 2 * np.pi * (numerators % size) / size
    is_quarter = 4 * numerators % size == 0

    def exact(part: np.ndarray) -> np.ndarray:
        return np.where(is_quarter, np.rint(part) + 0.0, part)

    return exact(np.cos(angles)), exact(np.sin(angles))


def _tensor(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
    """Returns a constant of type `dtype`, float32 or float64."""
    return _constant(values.astype({torch.float32: np.float32, torch.float64: np.float64}[dtype]))


def _constant(values: np.ndarray) -> torch.Tensor:
    """Returns a constant of the type of `values`."""
    with _disable_current_modes():  # tables are real tensors, even while tracing
        return torch.from_numpy(np.ascontiguousarray(values))


def _self_conjugate_mask(out: torch.Tensor, sizes: Mapping[int, int]) -> np.ndarray:
    """Returns a mask of the elements of `out` that equal their own conjugates.

    `out` is the transform of real numbers along the dims in `sizes`, which maps dims to lengths. The mask has the rank
    of `out`, and size 1 along the other dims.
    """
    mask = np.ones((1,) * out.dim(), bool)
    for dim, size in sizes.items():
        is_self_conjugate = 2 * np.arange(out.size(dim)) % size == 0
        mask = mask & is_self_conjugate.reshape([-1 if axis == dim else 1 for axis in range(out.dim())])
    return mask


@lru_cache(maxsize=64)
def _dft_matrix(size: int, count: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """Returns the DFT matrix [size, 2 count]: `count` columns of cosines, then `count` columns of sines."""
    return _tensor(np.concatenate(_unit_circle(np.outer(range(size), range(count)), size, sign), 1), dtype)


@lru_cache(maxsize=64)
def _interleaved_matrix(size: int, count: int, sign: int, factor: float, dtype: torch.dtype) -> torch.Tensor:
    """Returns the DFT matrix [2 size, 2 count] for complex numbers with interleaved parts, times `factor`."""
    cosines, sines = _unit_circle(np.outer(range(size), range(count)), size, sign)
    blocks = np.array([[cosines, sines], [-sines, cosines]]) * factor
    return _tensor(blocks.transpose(2, 0, 3, 1).reshape(2 * size, 2 * count), dtype)


@lru_cache(maxsize=64)
def _real_inverse_matrices(size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the matrices of the inverse transform to real numbers, from the first half of the spectrum.

    [size // 2 + 1, size] is for the real parts, [(size - 1) // 2, size] for the imaginary parts. Numbers with a
    distinct conjugate, which is in the other half, have the weight 2.
    """
    count = size // 2 + 1
    cosines, sines = _unit_circle(np.outer(range(count), range(size)), size, 1)
    self_conjugate = [i for i in range(count) if 2 * i % size == 0]
    weights = np.full((count, 1), 2.0)
    weights[self_conjugate] = 1
    return _tensor(cosines * weights, dtype), _tensor(-2 * sines[1 : 1 + (size - 1) // 2], dtype)


@lru_cache(maxsize=64)
def _twiddle_factors(a: int, b: int, sign: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns cosines and sines [b, a]: at (n2, k1) are those of the twiddle factor of n2 k1 / (a b)."""
    cosines, sines = _unit_circle(np.outer(range(b), range(a)), a * b, sign)
    return _tensor(cosines, dtype), _tensor(sines, dtype)


@lru_cache(maxsize=16)
def _chirps(
    size: int, length: int, sign: int, dtype: torch.dtype
) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
    """Returns the chirp exp(sign pi i n^2 / size), and the spectrum of the convolution kernel, each as its two parts.

    The kernel is the chirp's conjugate for n from 1 - size to size - 1, padded to `length`, and divided by `length`.
    """
    squares = np.array([n * n % (2 * size) for n in range(size)])
    re, im = _unit_circle(squares, 2 * size, sign)
    kernel = np.zeros(length, np.complex128)
    kernel[:size] = re - 1j * im
    kernel[length - size + 1 :] = kernel[size - 1 : 0 : -1]
    spectrum = np.fft.fft(kernel) / length
    chirp, kernel_spectrum = (re, im), (spectrum.real, spectrum.imag)
    return tuple(_tensor(part, dtype) for part in chirp), tuple(_tensor(part, dtype) for part in kernel_spectrum)
