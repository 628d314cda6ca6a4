"""Complex numbers, which are compiled by their parts, and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.ops.cases.base import Group, aten, normal, whole


def numbers(*shape: int, dtype: torch.dtype = torch.complex64) -> torch.Tensor:
    part = dtype.to_real()
    return torch.complex(normal(*shape, dtype=part), normal(*shape, dtype=part))


ARITHMETIC: dict[str, Callable[..., Any]] = {
    "add": lambda x, y, r: x + y,
    "add, scaled": lambda x, y, r: torch.add(x, y, alpha=2 - 1j),
    "sub of a real": lambda x, y, r: r - x,
    "mul": lambda x, y, r: x * y[:1],
    "mul by a real": lambda x, y, r: x * r,
    "mul by a number": lambda x, y, r: 2j * x,
    "div": lambda x, y, r: x / y,
    "div of a number": lambda x, y, r: 1 / x,
    "div of large numbers": lambda x, y, r: x * 1e18 / (y * 1e30),
    "ldexp": lambda x, y, r: torch.ldexp(x, y) + torch.ldexp(x, r > 0) + torch.ldexp(r, x),
    "nonzero, so many": lambda x, y, r: torch.nonzero_static(x * (r > 0), size=9),
    "square": lambda x, y, r: x**2,
    "lerp": lambda x, y, r: torch.lerp(x, y, 0.7j),
    "addcmul": lambda x, y, r: torch.addcmul(x, y, x, value=2),
    "addcdiv": lambda x, y, r: torch.addcdiv(x, y, x, value=1j),
    "abs": lambda x, y, r: x.abs(),
    "angle": lambda x, y, r: x.angle(),
    "sgn": lambda x, y, r: torch.sgn(x * (r > 0)),
    "conj": lambda x, y, r: x.conj() * y,
    "real": lambda x, y, r: (x * y).real,
    "imag of conj": lambda x, y, r: x.conj().imag,
    "view_as_real": lambda x, y, r: torch.view_as_real(x),
    "view_as_complex": lambda x, y, r: torch.view_as_complex(r[:, :4].reshape(3, 2, 2)),
    "complex": lambda x, y, r: torch.complex(r, r + 1),
    "polar": lambda x, y, r: torch.polar(r.abs(), r),
    "eq": lambda x, y, r: x == torch.where(r > 0, x, y),
    "ne a number": lambda x, y, r: (x * 0 + 1j) != 1j,
    "logical": lambda x, y, r: torch.logical_or(x * (r > 0), r > 1) & torch.logical_not(x * 0),
    "any": lambda x, y, r: (x * (r > 1)).any(1),
    "isnan": lambda x, y, r: torch.isnan(torch.complex(r.log(), r)),
    "nan_to_num": lambda x, y, r: torch.nan_to_num(torch.complex(r.log(), 1 / (r > 0)), 2.0, posinf=3.0),
    "nan_to_num to the largest": lambda x, y, r: torch.nan_to_num(torch.complex(1 / (r > 0), r)),
    "cast from real": lambda x, y, r: r.to(torch.complex64),
    "cast from bool": lambda x, y, r: (r > 0).to(torch.complex64),
    "cast to a wider type": lambda x, y, r: x.to(torch.complex128),
    "cast to bool": lambda x, y, r: (x * (r > 0)).bool(),
    "real zeros like it": lambda x, y, r: torch.zeros_like(x, dtype=torch.float64),
    "a number of all": lambda x, y, r: torch.full((2, 3), 1 - 2j),
}
OF_ONE: tuple[str, ...] = (
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt", "sin", "cos", "tan", "sinh", "cosh",
    "tanh", "asin", "acos", "atan", "asinh", "acosh", "atanh", "sigmoid",
)  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **{name: lambda x, y, name=name: getattr(torch, name)(x) for name in OF_ONE},
    "tanh far out": lambda x, y: torch.tanh(x * 40),
    "sqrt of negative numbers": lambda x, y: (x.real - 3).to(x.dtype).sqrt(),
    "pow": torch.pow,
    "pow of a number": lambda x, y: torch.pow(2 - 1j, x),
    "pow with a number": lambda x, y: x**1.5,
    "reciprocal of the root": lambda x, y: x**-0.5,
}
# Each part is each of these: zeros tell the side of a branch cut, large numbers overflow on the way.
PARTS = torch.tensor([0.0, -0.0, 1.0, -2.5, torch.inf, -torch.inf, torch.nan, 1e30, 1e10, -1e-30])
SPECIAL = torch.complex(PARTS.repeat_interleave(len(PARTS)), PARTS.repeat(len(PARTS)))
FEWER = SPECIAL[:70].reshape(7, 10)[:, :7].flatten()


def in_parts(function: Callable[..., Any]) -> Callable[..., Any]:
    """Comparisons take one NaN for both parts of a complex number."""
    return lambda *inputs: torch.view_as_real(function(*inputs))


OF_SPECIAL: dict[str, Callable[..., Any]] = {
    **{name: in_parts(FUNCTIONS[name]) for name in OF_ONE},
    "reciprocal": in_parts(lambda x, y: torch.reciprocal(x)),
    "silu": in_parts(lambda x, y: torch.nn.functional.silu(x)),
    "to the power 0": in_parts(lambda x, y: x**0),
    "to a real power": in_parts(lambda x, y: x**1.5),
    "power of 2": in_parts(lambda x, y: torch.pow(2, x)),
    "power of 0": in_parts(lambda x, y: torch.pow(0, x)),
    "over a number": in_parts(lambda x, y: x / (1 + 2j)),
    "sub of a number": in_parts(lambda x, y: 2 - x),
    "products of one": in_parts(lambda x, y: x.reshape(-1, 1).prod(1)),
    "norm of one": lambda x, y: torch.linalg.vector_norm(x.reshape(-1, 1), 2, 1),
    "mean of one": in_parts(lambda x, y: x.reshape(-1, 1).mean(1)),
    "mean of reals": in_parts(lambda x, y: x.real.reshape(-1, 10).mean(1, dtype=torch.complex128)),
    "cumprod": in_parts(lambda x, y: x.reshape(-1, 10).cumprod(1)),
}
OF_SPECIAL_PAIRS: dict[str, Callable[..., Any]] = {
    name: in_parts(lambda x, y, op=op: op(x[:, None], y))
    for name, op in {
        "add": torch.add,
        "sub, scaled": lambda x, y: torch.sub(x, y, alpha=2),
        "div": torch.div,
        "pow": torch.pow,
        "addcdiv": lambda x, y: torch.addcdiv(x, x, y),
    }.items()
}
MOVED: dict[str, Callable[..., Any]] = {
    "cat": lambda x, m: torch.cat([x, x.real, m], 0),
    "stack": lambda x, m: torch.stack([x, 2 * x], 1),
    "permute": lambda x, m: (x + 1).t().reshape(2, 6),
    "slice": lambda x, m: x[1:, ::2] * 2,
    "select": lambda x, m: x[1] + 1,
    "split": lambda x, m: x.split(2, 1)[1] + 1,
    "index": lambda x, m: x[torch.tensor([2, 0])],
    "index_put": lambda x, m: x.index_put((torch.tensor([1]),), m[0], accumulate=True),
    "gather": lambda x, m: x.gather(1, torch.tensor([[3], [0], [1]])),
    "flip": lambda x, m: x.flip(0),
    "pad": lambda x, m: torch.nn.functional.pad(x, (1, 2), value=3),
    "where": lambda x, m: torch.where(x.real > 0, x, 1j),
    "masked_fill": lambda x, m: x.masked_fill(x.real > 0, 2j),
    "diagonal_scatter": lambda x, m: torch.diagonal_scatter(m, x[0]),
    "as_strided": lambda x, m: (x + 1).as_strided((2, 2), (1, 3), 1),
    "tril": lambda x, m: m.tril(),
    "fftshift": lambda x, m: torch.fft.fftshift(x),
    "sum": lambda x, m: x.sum(),
    "mean": lambda x, m: x.mean(0, keepdim=True),
    "sum of reals": lambda x, m: x.real.sum(1, dtype=torch.complex64),
    "prod": lambda x, m: x[:, :3].prod(1),
    "cumsum": lambda x, m: x.cumsum(1),
    "cumprod": lambda x, m: x.cumprod(1),
    "cumprod in double precision": lambda x, m: (x * 1e30).cumprod(1, dtype=torch.complex128) * 1e-100,
    "cumprod whose later factors overflow": lambda x, m: (x * torch.tensor([1e-30, 1e30, 1e30, 1e-30])).cumprod(1),
    "var": lambda x, m: x.var(1),
    "norm": lambda x, m: torch.linalg.vector_norm(x, 3, 1),
    "norm in double precision": lambda x, m: torch.linalg.vector_norm(
        x * 0 + (3e38 + 3e38j), 2, 1, dtype=torch.complex128
    ),
    "mm": lambda x, m: x @ m,
    "mm of a conjugate": lambda x, m: x.conj() @ x.mT,
    "addmm": lambda x, m: torch.addmm(m[0], x, m, beta=1j, alpha=2),
    "bmm": lambda x, m: torch.bmm(m.expand(2, 4, 4), x.T.expand(2, 4, 3)),
    "vdot": lambda x, m: torch.vdot(x[0], x[1]),
    "convolution": lambda x, m: torch.nn.functional.conv1d(x[None], m[:2, None, :2].expand(2, 3, 2), m[0, :2]),
}


def _of_length(n: int) -> dict[str, Callable[..., Any]]:
    """All one-dimensional transforms, of `n` of the numbers that there are."""
    half = n // 2 + 1
    return {
        f"rfft {n}": lambda x, z: torch.fft.rfft(x[:, :n]),
        f"fft {n}": lambda x, z: torch.fft.fft(z[:, :n]),
        f"ifft {n}": lambda x, z: torch.fft.ifft(z[:, :n], norm="ortho"),
        f"irfft {n}": lambda x, z: torch.fft.irfft(z[:, :half], n),
    }


# Products with one matrix, of an odd and an even number; of two factors; a large prime, by a convolution.
LENGTHS = (1, 2, 9, 96)
LARGE_PRIME = 269
FOURIER: dict[str, Callable[..., Any]] = {
    **{name: f for n in LENGTHS for name, f in _of_length(n).items()},
    "fft of a large prime": lambda x, z: torch.fft.fft(z[:, :LARGE_PRIME]),
    "irfft of a large prime": lambda x, z: torch.fft.irfft(z[:, : LARGE_PRIME // 2 + 1], LARGE_PRIME),
    "rfft of a middling prime": lambda x, z: torch.fft.rfft(x[:, :67]),
    "fft of reals": lambda x, z: torch.fft.fft(x[:, :12]),
    "hfft": lambda x, z: torch.fft.hfft(z[:, :7], norm="ortho"),
    "ihfft": lambda x, z: torch.fft.ihfft(x[:, :12]),
    "fft of a first dim": lambda x, z: torch.fft.fft(z[:, :5], dim=0),
    "rfft of a first dim": lambda x, z: torch.fft.rfft(x[:, :5], dim=0),
    "fft2": lambda x, z: torch.fft.fft2(z[:, :6]),
    "rfftn": lambda x, z: torch.fft.rfftn(x[:, :24].reshape(2, 3, 8), dim=(0, 2), norm="forward"),
    "irfftn": lambda x, z: torch.fft.irfftn(z[:, :24].reshape(2, 3, 8)),
    "all numbers of a real one": lambda x, z: aten._fft_r2c(x[:, :10], [1], 1, False),
    "stft": lambda x, z: torch.stft(x.flatten(), 16, 8, window=torch.hann_window(16), return_complex=True),
    "istft": lambda x, z: torch.istft(z[:, :27].reshape(1, 9, 6), 16, 8, window=torch.ones(16)),
}

# Writes of `y` into `x`, of which one may be real: numbers become real ones, or get the imaginary part 0.
WRITES: dict[str, Callable[..., Any]] = {
    "copy_": lambda x, y: x.clone().copy_(y),
    "copy_ to a slice": lambda x, y: torch.add(x, 0).slice_scatter(x.clone()[::2].copy_(y[1::2]), 0, 0, 8, 2),
    "slice_scatter": lambda x, y: x.slice_scatter(y[:4], 0, 2, 6),
    "select_scatter": lambda x, y: x.select_scatter(y[2], 0, 0),
    "diagonal_scatter": lambda x, y: x.reshape(2, 4).diagonal_scatter(y[1:3]),
    "as_strided_scatter": lambda x, y: x.as_strided_scatter(y[:4], (4,), (2,)),
}
_MIXED = torch.tensor([1 + 2j, 0, 3j, 2, 1j, -1, 2, 3])
_REALS = {"bool": torch.bool, "float32": torch.float32, "int64": torch.int64, "float16": torch.float16}

GROUPS: dict[str, Group] = {
    "complex numbers": Group((numbers(3, 4), numbers(3, 4), normal(3, 4)), ARITHMETIC),
    "functions of complex numbers": Group((numbers(4, 5), numbers(4, 5)), FUNCTIONS),
    "functions of complex128": Group(
        (numbers(4, 5, dtype=torch.complex128), numbers(4, 5, dtype=torch.complex128)),
        {name: FUNCTIONS[name] for name in ("exp", "log", "log1p", "sqrt", "tanh", "asin", "acosh", "atanh", "pow")},
    ),
    "special complex numbers": Group((SPECIAL, SPECIAL), OF_SPECIAL),
    "special numbers of complex128": Group((SPECIAL.to(torch.complex128), FEWER.to(torch.complex128)), OF_SPECIAL),
    "pairs of special complex numbers": Group(
        (FEWER.to(torch.complex128), FEWER.to(torch.complex128)), OF_SPECIAL_PAIRS
    ),
    "moves and sums of complex numbers": Group((numbers(3, 4), numbers(4, 4)), MOVED),
    "fourier": Group((normal(2, 300), numbers(2, 300)), FOURIER),
    "fourier of double precision": Group(
        (normal(2, 300, dtype=torch.float64), numbers(2, 300, dtype=torch.complex128)),
        {name: f for n in (9, 96) for name, f in _of_length(n).items()},
    ),
    **{
        f"writes of complex numbers to {name}": Group(((torch.arange(8) % 3).to(dtype), _MIXED), WRITES)
        for name, dtype in _REALS.items()
    },
    "writes of real numbers to complex ones": Group(
        (_MIXED, torch.arange(8) % 3),
        {**WRITES, "index_fill": lambda x, y: x.index_fill(0, y[:2], torch.tensor(2.5))},
    ),
    "empty complex": Group(
        (numbers(0, 4), whole(0, 1, 0)),
        {"exp": lambda x, i: x.exp(), "sum": lambda x, i: x.sum(0), "index": lambda x, i: x[i]},
    ),
}
