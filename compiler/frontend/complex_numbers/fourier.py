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
from typing import Any

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.frontend.complex_numbers.pair import ComplexPair, Interleaved, rule

aten = torch.ops.aten

# Up to this length, one matrix product is faster than two with a transposition between them.
DIRECT = 64
# For larger factors, the product with the DFT matrix would cost more than Bluestein's three transforms.
LARGEST_FACTOR = 256


@rule(aten._fft_c2c.default)
def c2c(out: torch.Tensor, x: ComplexPair, dims: list[int], normalization: int, forward: bool) -> Any:
    if not _are_static(x.re, dims):
        return NotImplemented
    sign, factor = -1 if forward else 1, _factor_of(x.re, dims, normalization)
    if x.both is not None and _is_only_last_dim(x.re, dims) and x.re.size(-1) <= DIRECT:
        size = x.re.size(-1)
        found = _product(x.both.flatten(-2), _interleaved(size, size, sign, factor, x.re.dtype))
        return Interleaved(found.unflatten(-1, (size, 2)))
    found = x
    for dim in dims:
        found = _transform_dim(found, dim, sign)
    return _scale(found, factor)


@rule(aten._fft_r2c.default)
def r2c(out: torch.Tensor, x: torch.Tensor, dims: list[int], normalization: int, onesided: bool) -> Any:
    """The last of `dims` is transformed first; only half of its result is needed.

    Numbers that are their own conjugates are real, even if a sum of imaginary parts would be NaN.
    """
    if not _are_static(x, dims):
        return NotImplemented
    *others, last = dims
    count, factor = out.size(last), _factor_of(x, dims, normalization)
    is_real = _own_conjugates(out, {dim % x.dim(): x.size(dim) for dim in dims})
    if _is_only_last_dim(x, dims) and x.size(-1) <= DIRECT:
        table = _interleaved(x.size(-1), count, -1, factor, x.dtype)[::2].contiguous()
        both = _product(x, table).unflatten(-1, (count, 2))
        imaginary = numpy.stack([numpy.zeros_like(is_real), is_real], -1)
        return Interleaved(torch.where(_constant(imaginary), 0.0, both))
    found = _move_last_to(_transform_real(_move_to_last(x, last), -1, count), last)
    for dim in others:
        found = _transform_dim(found, dim, -1)
    return _scale(ComplexPair(found.re, torch.where(_constant(is_real), 0.0, found.im)), factor)


@rule(aten._fft_c2r.default)
def c2r(out: torch.Tensor, x: ComplexPair, dims: list[int], normalization: int, last_size: int) -> Any:
    """The last of `dims` is transformed last: its missing numbers are the conjugates of the given ones."""
    if not _are_static(x.re, dims) or not isinstance(last_size, int):
        return NotImplemented
    *others, last = dims
    found = x
    for dim in others:
        found = _transform_dim(found, dim, 1)
    real = _invert_to_real(found.map(lambda part: _move_to_last(part, last)), last_size)
    real = real if _is_only_last_dim(real, [last]) else real.movedim(-1, last)
    factor = _factor_of(real, dims, normalization)
    return real if factor == 1 else real * factor


def _are_static(x: torch.Tensor, dims: list[int]) -> bool:
    """Whether the lengths of the transforms, which need tables, are static."""
    return all(isinstance(x.size(dim), int) for dim in dims)


def _factor_of(x: torch.Tensor, dims: list[int], normalization: int) -> float:
    """The factor of a normalization in PyTorch's numbering: 1, 1 / sqrt(n) or 1 / n for n transformed elements."""
    count = math.prod(x.size(dim) for dim in dims)
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization]


def _scale(x: ComplexPair, factor: float) -> ComplexPair:
    return x if factor == 1 else x.scaled(factor)


def _is_only_last_dim(x: torch.Tensor, dims: list[int]) -> bool:
    return len(dims) == 1 and dims[0] % x.dim() == x.dim() - 1


def _move_to_last(x: torch.Tensor, dim: int) -> torch.Tensor:
    return x if _is_only_last_dim(x, [dim]) else x.movedim(dim, -1)


def _move_last_to(x: ComplexPair, dim: int) -> ComplexPair:
    """`x` with its last dim moved to `dim`."""
    return x if _is_only_last_dim(x.re, [dim]) else x.map(lambda part: part.movedim(-1, dim))


def _transform_dim(x: ComplexPair, dim: int, sign: int) -> ComplexPair:
    return _move_last_to(_transform_last_dim(x.map(lambda part: _move_to_last(part, dim)), sign), dim)


# ---- along the last dim ----------------------------------------------------------------------------------------------


def _transform_last_dim(x: ComplexPair, sign: int) -> ComplexPair:
    """The sums of x[n] exp(sign 2 pi i n k / N) over the last dim; `sign` is -1 for the forward transform.

    An imaginary part of 0 is a Python number.
    """
    size = x.re.size(-1)
    if size == 1:
        return ComplexPair(x.re, x.im if isinstance(x.im, torch.Tensor) else torch.zeros_like(x.re))
    factor = _factor(size)
    if size <= DIRECT or (factor == size and size <= LARGEST_FACTOR):
        return _transform_by_matrix(x, sign, size)
    return (
        _transform_by_convolution(x, sign)
        if factor > LARGEST_FACTOR or factor == size
        else _transform_by_factors(x, sign, factor)
    )


def _transform_by_matrix(x: ComplexPair, sign: int, count: int) -> ComplexPair:
    """The first `count` numbers of the transform: one product per part, with cosines and sines concatenated."""
    size = x.re.size(-1)
    table = _matrix(size, count, sign, x.re.dtype)
    re = _product(x.re, table)
    cosines, sines = re.narrow(-1, 0, count), re.narrow(-1, count, count)
    if not isinstance(x.im, torch.Tensor):
        return ComplexPair(cosines, sines)
    im = _product(x.im, table)
    return ComplexPair(cosines - im.narrow(-1, count, count), sines + im.narrow(-1, 0, count))


def _product(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    """The product of the rows of all of `x` with a matrix; `matmul` would repeat the matrix."""
    return (x.reshape(-1, x.size(-1)) @ table).reshape(*x.shape[:-1], table.size(-1))


def _transform_by_factors(x: ComplexPair, sign: int, a: int) -> ComplexPair:
    """With n = b n1 + n2 and k = k1 + a k2: transforms over n1, twiddle factors n2 k1 / N, transforms over n2."""
    size = x.re.size(-1)
    b = size // a
    columns = ComplexPair(*(_split(part, a, b) for part in (x.re, x.im)))
    inner = _transform_last_dim(columns, sign)  # [..., n2, k1]
    turned = inner * ComplexPair(*_twiddle_factors(a, b, sign, x.re.dtype))
    outer = _transform_last_dim(turned.map(lambda part: part.transpose(-1, -2)), sign)  # [..., k1, k2]
    return outer.map(lambda part: part.transpose(-1, -2).flatten(-2))


def _split(part: Any, a: int, b: int) -> Any:
    """Reshapes [..., n] to [..., n2, n1]."""
    return part.unflatten(-1, (a, b)).transpose(-1, -2) if isinstance(part, torch.Tensor) else part


def _transform_by_convolution(x: ComplexPair, sign: int) -> ComplexPair:
    """With n k = (n^2 + k^2 - (k - n)^2) / 2 the transform is a convolution with a chirp, a product of transforms."""
    size = x.re.size(-1)
    length = 1 << (2 * size - 2).bit_length()
    chirp, of_chirp = (ComplexPair(*parts) for parts in _chirps(size, length, sign, x.re.dtype))
    padded = (x * chirp).map(lambda part: torch.nn.functional.pad(part, (0, length - size)))
    found = _transform_last_dim(_transform_last_dim(padded, -1) * of_chirp, 1)
    return found.map(lambda part: part.narrow(-1, 0, size)) * chirp


def _transform_real(x: torch.Tensor, sign: int, count: int) -> ComplexPair:
    """The first `count` numbers of the transform of real numbers."""
    if 1 < x.size(-1) <= DIRECT:
        return _transform_by_matrix(ComplexPair(x, 0.0), sign, count)
    return _transform_last_dim(ComplexPair(x, 0.0), sign).map(lambda part: part.narrow(-1, 0, count))


def _invert_to_real(x: ComplexPair, size: int) -> torch.Tensor:
    """The unnormalized real inverse transform, from the first `size // 2 + 1` numbers.

    The rest are their conjugates. Imaginary parts of numbers that are their own conjugates are not read.
    """
    half = x.map(lambda part: part.narrow(-1, 0, size // 2 + 1))
    if size <= DIRECT:
        cosines, sines = _half_matrices(size, x.re.dtype)
        real = _product(half.re, cosines)
        return real + _product(half.im.narrow(-1, 1, len(sines)), sines) if len(sines) else real
    mirrored = half.map(lambda part: part.narrow(-1, 1, (size - 1) // 2).flip(-1))
    inner = half.im.narrow(-1, 1, (size - 1) // 2)
    zero = torch.zeros_like(half.im.narrow(-1, 0, 1))
    im = torch.cat([zero, inner, *([zero] if size % 2 == 0 else []), -mirrored.im], -1)
    return _transform_last_dim(ComplexPair(torch.cat([half.re, mirrored.re], -1), im), 1).re


# ---- numbers on the unit circle --------------------------------------------------------------------------------------


def _factor(size: int) -> int:
    """The divisor closest to the root, among those of at most `DIRECT`; the smallest prime factor if that is larger."""
    small = [d for d in range(2, DIRECT + 1) if size % d == 0]
    if small:
        return min(small, key=lambda d: (abs(math.log(d) - math.log(size) / 2), d))
    return next((d for d in range(DIRECT + 1, math.isqrt(size) + 1) if size % d == 0), size)


def _circle(numerators: Any, size: int, sign: int) -> tuple[Any, Any]:
    """Cosines and sines of `sign * 2 pi * numerators / size`, exact at multiples of a quarter turn."""
    angles = sign * 2 * numpy.pi * (numerators % size) / size
    is_quarter = 4 * numerators % size == 0

    def exact(part: Any) -> Any:
        return numpy.where(is_quarter, numpy.rint(part) + 0.0, part)

    return exact(numpy.cos(angles)), exact(numpy.sin(angles))


def _tensor(values: Any, dtype: torch.dtype) -> torch.Tensor:
    return _constant(values.astype({torch.float32: numpy.float32, torch.float64: numpy.float64}[dtype]))


def _constant(values: Any) -> torch.Tensor:
    with _disable_current_modes():  # tables are real tensors, even while tracing
        return torch.from_numpy(numpy.ascontiguousarray(values))


def _own_conjugates(out: torch.Tensor, sizes: Mapping[int, int]) -> Any:
    """Which numbers of the transform `out` of real numbers, with `sizes` by dim, are their own conjugates: an array
    of the same rank, of size 1 along dims where it is constant.
    """
    found = numpy.ones((1,) * out.dim(), bool)
    for dim, size in sizes.items():
        own = 2 * numpy.arange(out.size(dim)) % size == 0
        found = found & own.reshape([-1 if place == dim else 1 for place in range(out.dim())])
    return found


@lru_cache(maxsize=64)
def _matrix(size: int, count: int, sign: int, dtype: torch.dtype) -> torch.Tensor:
    """[size, 2 count]: the cosines of the transform, then its sines."""
    return _tensor(numpy.concatenate(_circle(numpy.outer(range(size), range(count)), size, sign), 1), dtype)


@lru_cache(maxsize=64)
def _interleaved(size: int, count: int, sign: int, factor: float, dtype: torch.dtype) -> torch.Tensor:
    """[2 size, 2 count]: the transform, times `factor`, of complex numbers with interleaved parts."""
    cosines, sines = _circle(numpy.outer(range(size), range(count)), size, sign)
    blocks = numpy.array([[cosines, sines], [-sines, cosines]]) * factor
    return _tensor(blocks.transpose(2, 0, 3, 1).reshape(2 * size, 2 * count), dtype)


@lru_cache(maxsize=64)
def _half_matrices(size: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[size // 2 + 1, size] for real parts, and [(size - 1) // 2, size] for the imaginary parts of numbers with a
    distinct conjugate, which count twice.
    """
    count = size // 2 + 1
    cosines, sines = _circle(numpy.outer(range(count), range(size)), size, 1)
    own = [i for i in range(count) if 2 * i % size == 0]
    twice = numpy.full((count, 1), 2.0)
    twice[own] = 1
    return _tensor(cosines * twice, dtype), _tensor(-2 * sines[1 : 1 + (size - 1) // 2], dtype)


@lru_cache(maxsize=64)
def _twiddle_factors(a: int, b: int, sign: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[b, a]: at (n2, k1) the twiddle factor of n2 k1 / (a b)."""
    cosines, sines = _circle(numpy.outer(range(b), range(a)), a * b, sign)
    return _tensor(cosines, dtype), _tensor(sines, dtype)


@lru_cache(maxsize=16)
def _chirps(size: int, length: int, sign: int, dtype: torch.dtype) -> tuple[Any, Any]:
    """exp(sign pi i n^2 / size), and the transform of its conjugate around 0, of `length`, divided by that length."""
    squares = numpy.array([n * n % (2 * size) for n in range(size)])
    re, im = _circle(squares, 2 * size, sign)
    around = numpy.zeros(length, numpy.complex128)
    around[:size] = re - 1j * im
    around[length - size + 1 :] = around[size - 1 : 0 : -1]
    spectrum = numpy.fft.fft(around) / length
    chirp, of_chirp = (re, im), (spectrum.real, spectrum.imag)
    return tuple(_tensor(part, dtype) for part in chirp), tuple(_tensor(part, dtype) for part in of_chirp)
