"""Computes random numbers of each distribution of PyTorch from counter-based random bits (`runtime.torch_ops`).

Distributions, dtypes and ranges are eager's; the numbers differ.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from buddy.compiler.runtime import torch_ops  # noqa: F401  (defines the ops)

aten = torch.ops.aten

Rule = Callable[..., Any]
DISTRIBUTION_RULES: dict[Any, Rule] = {}

# The bits of a random fraction: the significand digits of the dtype, as in eager.
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}

# Sets of dtypes for the argument `results` of `rule`.
FLOATS = frozenset(_DIGITS)
NUMBERS = FLOATS | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
WITH_BOOL = NUMBERS | {torch.bool}
COMPLEX = frozenset({torch.complex64, torch.complex128})
WITH_UNSIGNED = WITH_BOOL | {torch.uint16, torch.uint32, torch.uint64}
# Up to this count, the product of the count and a fraction of 43 bits fits into 63 bits.
_MAX_SHORT_COUNT = 1 << 20
_INT64_MAX = (1 << 63) - 1


class RandomBits:
    """Draws the random numbers of one node, in the memory order of its result.

    `seed` is a 0-d int64 tensor. Nodes that draw from the same seed have different numbers `stream`. `result` is a
    tensor with the form (shape, strides and dtype) of the node's result.
    """

    def __init__(self, seed: torch.Tensor, stream: int, result: torch.Tensor) -> None:
        self._seed, self._stream, self.result, self.dtype = seed, stream, result, result.dtype

    def with_form(self, result: torch.Tensor) -> RandomBits:
        """Returns the same stream for a result with the form of another tensor."""
        return RandomBits(self._seed, self._stream, result)

    def for_parts(self) -> RandomBits:
        """Returns the same stream for the parts of a complex result, along an additional last dim."""
        with _disable_current_modes():
            return self.with_form(torch.view_as_real(self.result))

    def int32s(self, index: int = 0) -> torch.Tensor:
        """Returns uniform int32 values, one per element; `index` (0 to 3) selects one of four independent values."""
        return self._make_in_memory_order(
            lambda shape: torch.ops.buddy.philox32.default(self._seed, self._stream, shape, index)
        )

    def int64s(self, index: int = 0) -> torch.Tensor:
        """Returns uniform int64 values, one per element; `index` (0 or 1) selects one of two independent values.

        They have the bits of the int32 values 2 `index` and 2 `index` + 1.
        """
        return self._make_in_memory_order(
            lambda shape: torch.ops.buddy.philox64.default(self._seed, self._stream, shape, index)
        )

    def constant(self, value: float) -> torch.Tensor:
        """Returns a tensor with `value` for each element."""
        return self._make_in_memory_order(lambda shape: torch.full(shape, value, dtype=self.dtype))

    def _make_in_memory_order(self, make: Callable[[list[int | torch.SymInt]], torch.Tensor]) -> torch.Tensor:
        """Calls `make` with the sizes in the order of the strides of `result`, and permutes its tensor back."""
        result = self.result
        if result.is_contiguous():
            return make(list(result.shape))
        strides = result.stride()
        order = sorted(range(result.dim()), key=lambda dim: -strides[dim])
        return make([result.shape[dim] for dim in order]).permute([order.index(dim) for dim in range(result.dim())])

    def fractions(self, index: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns uniform multiples of a power of two in [0, 1), with the resolution of `dtype` between 1/2 and 1.

        Their type is float64 for float64, otherwise float32. `index` is as in `int32s` and `int64s`.
        """
        dtype = dtype or self.dtype
        digits = _DIGITS.get(dtype, 24)
        bits = self.int64s(index) if dtype == torch.float64 else self.int32s(index)
        return (bits & ((1 << digits) - 1)).to(_compute_type(dtype)) * 2.0**-digits

    def positive(self, index: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns numbers that are uniform in (0, 1], in float32 or float64, with full precision."""
        return 1 - self.fractions(index, _compute_type(dtype or self.dtype))

    def normal(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns normally distributed numbers of mean 0 and deviation 1, float32 or float64 (Box and Muller 1958)."""
        dtype = _compute_type(dtype or self.dtype)
        radius = (self.positive(0, dtype).log() * -2).sqrt()
        return radius * (self.fractions(1, dtype) * (2 * math.pi)).cos()

    def exponential(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Returns exponentially distributed numbers of mean 1, in float32 or float64."""
        return -self.positive(0, dtype).log()

    def uniform(self, low: float, high: float) -> torch.Tensor:
        """Returns numbers that are uniform in [`low`, `high`), in the node's dtype.

        All are `low` if the interval contains no other value.
        """
        values = self.fractions() * (high - low) + low
        if low == 0 and high == 1:
            return values
        with _disable_current_modes():
            last = torch.tensor(high, dtype=self.dtype).nextafter(torch.tensor(low, dtype=self.dtype)).item()
        return values.to(self.dtype).clamp_max(last)

    def below(self, count: int | torch.SymInt) -> torch.Tensor:
        """Returns uniform integers in [0, `count`), as int64.

        They are `count` times a random fraction of 63 bits, or of 43 bits for a small `count`. Remainders would favour
        small numbers if `count` is very large, and are used only for a symbolic `count`.
        """
        if isinstance(count, int) and count & (count - 1) == 0:
            bits = self.int32s().to(torch.int64) if count <= 1 << 32 else self.int64s()
            return bits & (count - 1)
        if isinstance(count, int) and count <= _MAX_SHORT_COUNT:
            return ((self.int64s() & ((1 << 43) - 1)) * count) >> 43
        if not isinstance(count, int):
            return (self.int64s() & _INT64_MAX) % count  # a symbolic size, which is small relative to 2**63
        return _multiply_fraction(self.int64s() & _INT64_MAX, count)


def _compute_type(dtype: torch.dtype) -> torch.dtype:
    """Returns the type in which eager computes before it rounds once: float64 for float64, otherwise float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _multiply_fraction(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Returns `bits * count >> 63` for numbers below 2**63, by products of 32-bit halves.

    The sum `middle` fits in an unsigned 64-bit integer, but may wrap in int64, so it is shifted as an unsigned number.
    """
    half = (1 << 32) - 1
    (high, low), (upper, lower) = (bits >> 32, bits & half), (count >> 32, count & half)
    middle = high * lower + low * upper + (((low * lower) >> 32) & half)
    return high * (2 * upper) + ((middle >> 31) & ((1 << 33) - 1))


def rule(*overloads: torch._ops.OpOverload, results: frozenset[torch.dtype]) -> Callable[[Rule], Rule]:
    """Registers the decorated function for `overloads`.

    It is called with the node's `RandomBits`, then with the node's arguments without keywords such as `dtype` and
    `generator`. Arguments of which only the form matters have names such as `_like`: `RandomBits.result` has the form.
    `results` are the dtypes that eager supports on CPUs: nodes of other dtypes run in eager, which raises an error.
    """

    def register(function: Rule) -> Rule:
        def check_dtype(bits: RandomBits, *args: object, **kwargs: object) -> torch.Tensor:
            return function(bits, *args, **kwargs) if bits.dtype in results else NotImplemented

        DISTRIBUTION_RULES.update(dict.fromkeys(overloads, check_dtype))
        return function

    return register


# A complex number has normally distributed parts, whose variances add up to the variance of the number.
_PART_DEVIATION = math.sqrt(0.5)


# ---- floats ----------------------------------------------------------------------------------------------------------


@rule(aten.rand.default, aten.rand_like.default, results=FLOATS | COMPLEX)
def rand(bits: RandomBits, _form: object) -> torch.Tensor:
    """Returns uniform numbers in [0, 1); complex numbers have independent parts."""
    if bits.dtype.is_complex:
        return torch.view_as_complex(rand(bits.for_parts(), _form))
    return bits.fractions().to(bits.dtype)


@rule(aten.randn.default, aten.randn_like.default, results=FLOATS | COMPLEX)
def randn(bits: RandomBits, _form: object) -> torch.Tensor:
    """Returns normally distributed numbers of mean 0 and variance 1."""
    return normal(bits, _form)


@rule(aten.uniform.default, results=FLOATS | COMPLEX)
def uniform(bits: RandomBits, _like: object, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    """Returns uniform numbers in [`low`, `high`)."""
    if bits.dtype.is_complex:
        parts = uniform(bits.for_parts(), _like, low, high)
        return parts if parts is NotImplemented else torch.view_as_complex(parts)
    return bits.uniform(low, high).to(bits.dtype) if low <= high and math.isfinite(high - low) else NotImplemented


@rule(aten.normal_functional.default, results=FLOATS | COMPLEX)
def normal(bits: RandomBits, _like: object, mean: float = 0.0, deviation: float = 1.0) -> torch.Tensor:
    """Returns normally distributed numbers with one mean and one deviation."""
    if bits.dtype.is_complex:
        return torch.view_as_complex(normal(bits.for_parts(), _like, 0.0, deviation * _PART_DEVIATION)) + mean
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.normal.float_float, results=FLOATS)
def normal_of_numbers(bits: RandomBits, mean: float, deviation: float, _size: object) -> torch.Tensor:
    """Returns normally distributed numbers of a given size, with one mean and one deviation."""
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, results=FLOATS)
def normal_of_tensors(
    bits: RandomBits, mean: torch.Tensor | float, deviation: torch.Tensor | float = 1.0
) -> torch.Tensor:
    """Returns normally distributed numbers, with a mean or a deviation for each element."""
    if isinstance(deviation, torch.Tensor):
        if deviation.dtype not in FLOATS:
            return NotImplemented
        _assert_true((deviation >= 0).all(), "normal expects all elements of std >= 0.0")
    mean, deviation = (v.to(_compute_type(v.dtype)) if isinstance(v, torch.Tensor) else v for v in (mean, deviation))
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.log_normal.default, results=FLOATS)
def log_normal(bits: RandomBits, _like: object, mean: float = 1.0, deviation: float = 2.0) -> torch.Tensor:
    """Returns numbers whose logarithms are normally distributed."""
    return (bits.normal() * deviation + mean).exp().to(bits.dtype)


@rule(aten.exponential.default, results=FLOATS)
def exponential(bits: RandomBits, _like: object, rate: float = 1.0) -> torch.Tensor:
    """Returns exponentially distributed numbers of mean 1 / `rate`."""
    return (bits.exponential() / rate).to(bits.dtype)


@rule(aten.cauchy.default, results=FLOATS)
def cauchy(bits: RandomBits, _like: object, median: float = 0.0, scale: float = 1.0) -> torch.Tensor:
    """Returns numbers of the Cauchy distribution: cotangents of uniform angles, times `scale`, plus `median`.

    The pole of the cotangent is at 0, where floats are densest. Angles are odd multiples of half a step, so none is 0.
    """
    dtype = _compute_type(bits.dtype)
    digits = _DIGITS[dtype] - 1
    drawn = bits.int64s() if dtype == torch.float64 else bits.int32s()
    odd = ((drawn & ((1 << digits) - 1)) * 2 + (1 - (1 << digits))).to(dtype)
    angle = odd * (math.pi / (1 << (digits + 1)))
    return (angle.cos() / angle.sin() * scale + median).to(bits.dtype)


@rule(aten.geometric.default, results=NUMBERS)
def geometric(bits: RandomBits, _like: object, p: float) -> torch.Tensor:
    """Returns the numbers of trials up to the first success, each of probability `p`.

    Computes in double precision, so that the rounding of a logarithm does not change the integer. The fractions are in
    (0, 1), because the logarithm of 0 is infinite.
    """
    if not 0 < p < 1:
        return NotImplemented
    fractions = ((bits.int64s() & ((1 << 52) - 1)).to(torch.float64) + 0.5) * 2.0**-52
    return (fractions.log() / math.log1p(-p)).ceil().to(bits.dtype)


@rule(aten.rrelu_with_noise_functional.default, results=FLOATS)  # also float16, which eager supports on GPUs only
def rrelu(
    bits: RandomBits,
    x: torch.Tensor,
    noise: torch.Tensor,
    low: float = 1 / 8,
    high: float = 1 / 3,
    training: bool = False,
    _generator: object = None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """Returns `x` with its negative elements times slopes, and the slopes.

    In training, slopes are random in [`low`, `high`). Otherwise the slope is their mean, and the second result `noise`.
    """
    if _generator is not None:
        return NotImplemented
    if not training:
        return aten.leaky_relu.default(x, (low + high) / 2), noise.clone()
    slopes = torch.where(x <= 0, bits.uniform(low, high).to(x.dtype), 1)
    return x * slopes, slopes


# ---- integers and choices --------------------------------------------------------------------------------------------


@rule(aten.bernoulli.p, results=WITH_BOOL)
def bernoulli_of_a_number(bits: RandomBits, _like: object, p: float = 0.5) -> torch.Tensor:
    """Returns ones with probability `p`, which is rounded to 32 bits."""
    if not 0 <= p <= 1:
        return NotImplemented
    n_ones = round(p * (1 << 32))  # of the 2**32 values of an int32, those for which the result is 1
    if n_ones in (0, 1 << 32):
        return bits.constant(float(n_ones != 0))
    return (bits.int32s() <= n_ones - 1 - (1 << 31)).to(bits.dtype)


@rule(aten.bernoulli.default, results=FLOATS)
def bernoulli(bits: RandomBits, p: torch.Tensor) -> torch.Tensor:
    """Returns ones, each with the probability in `p`, else zeros."""
    return _bernoulli(bits, p)


@rule(aten.bernoulli.Tensor, results=WITH_BOOL)
def bernoulli_like(bits: RandomBits, _like: object, p: torch.Tensor) -> torch.Tensor:
    """Returns ones, each with the probability in `p`, else zeros, in the dtype of another tensor."""
    return _bernoulli(bits, p) if p.dtype in FLOATS else NotImplemented


def _bernoulli(bits: RandomBits, p: torch.Tensor) -> torch.Tensor:
    _assert_true(((p >= 0) & (p <= 1)).all(), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    dtype = _compute_type(p.dtype)
    return (bits.fractions(0, dtype) < p.to(dtype)).to(bits.dtype)


@rule(aten.randint.default, results=WITH_UNSIGNED)
def randint(bits: RandomBits, high: int | torch.SymInt, _size: object) -> torch.Tensor:
    """Returns uniform integers in [0, `high`)."""
    return _draw_between(bits, 0, high)


@rule(aten.randint.low, results=WITH_UNSIGNED)
def randint_from(bits: RandomBits, low: int | torch.SymInt, high: int | torch.SymInt, _size: object) -> torch.Tensor:
    """Returns uniform integers in [`low`, `high`)."""
    return _draw_between(bits, low, high)


@rule(aten.randint_like.default, results=WITH_UNSIGNED)
def randint_like(bits: RandomBits, _like: object, high: int | torch.SymInt) -> torch.Tensor:
    """Returns uniform integers in [0, `high`), in the form of another tensor."""
    return _draw_between(bits, 0, high)


@rule(aten.randint_like.low_dtype, getattr(aten.random, "from"), results=WITH_UNSIGNED)
def randint_like_from(
    bits: RandomBits, _like: object, low: int | torch.SymInt, high: int | torch.SymInt
) -> torch.Tensor:
    """Returns uniform integers in [`low`, `high`), in the form of another tensor."""
    return NotImplemented if high is None else _draw_between(bits, low, high)


@rule(aten.random.to, results=WITH_UNSIGNED)
def random_to(bits: RandomBits, _like: object, high: int) -> torch.Tensor:
    """Returns uniform integers in [0, `high`), in the form of another tensor."""
    return _draw_between(bits, 0, high)


@rule(aten.random.default, results=WITH_UNSIGNED)
def random(bits: RandomBits, _like: object) -> torch.Tensor:
    """Returns non-negative integers, uniform over those that the dtype represents exactly."""
    maximum = 1 if bits.dtype == torch.bool else 1 << _DIGITS.get(bits.dtype, 0)
    if not bits.dtype.is_floating_point and bits.dtype != torch.bool:
        maximum = min(torch.iinfo(bits.dtype).max, _INT64_MAX)
    return _draw_between(bits, 0, maximum + 1)


def _draw_between(bits: RandomBits, low: int | torch.SymInt, high: int | torch.SymInt) -> torch.Tensor:
    """Returns uniform integers in [`low`, `high`); `NotImplemented` for bounds that eager rejects."""
    count = high - low
    if isinstance(count, int) and not (0 < count <= 1 << 63 and _is_in_range(bits.dtype, low, high - 1)):
        return NotImplemented
    drawn = bits.below(count)
    return (drawn + low if not isinstance(low, int) or low else drawn).to(bits.dtype)


def _is_in_range(dtype: torch.dtype, minimum: int, maximum: int) -> bool:
    """True if both bounds are within the range of a type, as eager requires."""
    if dtype == torch.bool:
        return minimum >= 0 and maximum <= 1
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return bool(limits.min <= minimum and maximum <= limits.max)


@rule(aten.randperm.default, results=NUMBERS)
def randperm(bits: RandomBits, count: int | torch.SymInt) -> torch.Tensor:
    """Returns the order that sorts `count` random 64-bit integers, which are almost never equal."""
    if isinstance(count, int) and not _is_in_range(bits.dtype, 0, count):
        return NotImplemented
    return bits.int64s().sort()[1].to(bits.dtype)


@rule(aten.multinomial.default, results=frozenset((torch.int64,)))
def multinomial(
    bits: RandomBits, weights: torch.Tensor, count: int | torch.SymInt, replacement: bool = False
) -> torch.Tensor:
    """Returns `count` indices into the last dim of `weights`, drawn with probabilities in proportion to the weights.

    Computes in double precision, so that the rounding of a sum or a quotient does not change the choice. Without
    replacement, selects the largest quotients of the weights and exponential random numbers, as in eager.
    """
    if (isinstance(count, int) and count <= 0) or weights.dtype not in FLOATS:
        return NotImplemented
    message = "probability tensor contains either `inf`, `nan` or element < 0"
    _assert_true(((weights >= 0) & (weights < math.inf)).all(), message)
    _assert_true((weights.sum(-1) > 0).all(), "invalid multinomial distribution (sum of probabilities <= 0)")
    wide = weights.to(torch.float64)
    if replacement:
        sums = wide.cumsum(-1)
        thresholds = bits.fractions(0, torch.float64) * sums[..., -1:]
        return torch.searchsorted(sums.contiguous(), thresholds.contiguous(), right=True)
    scores = wide / bits.with_form(weights).exponential(torch.float64)
    return scores.topk(count, -1)[1]


def _assert_true(condition: torch.Tensor, message: str) -> None:
    """Makes the program raise an error with eager's `message` unless `condition`, without dims, is true."""
    aten._assert_async.msg(condition, message)
