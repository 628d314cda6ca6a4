"""Random numbers of each distribution of PyTorch, from counter-based random bits (`runtime.philox`).

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
RULES: dict[Any, Rule] = {}

# The bits of a random fraction: the significand digits of the dtype, as in eager.
_DIGITS = {torch.float16: 11, torch.bfloat16: 8, torch.float32: 24, torch.float64: 53}
_NARROW = (torch.float16, torch.bfloat16)
FLOATS = frozenset(_DIGITS)
NUMBERS = FLOATS | {torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8}
WITH_BOOL = NUMBERS | {torch.bool}
WITH_UNSIGNED = WITH_BOOL | {torch.uint16, torch.uint32, torch.uint64}
# Up to this, the product of a range and a fraction of 43 bits fits into 63.
_SHORT = 1 << 20
_GREATEST = (1 << 63) - 1


class RandomBits:
    """The random numbers of one node, in memory order; the node's result has the form of the tensor `made`."""

    def __init__(self, seed: torch.Tensor, stream: int, made: torch.Tensor) -> None:
        self._seed, self._stream, self.made, self.dtype = seed, stream, made, made.dtype

    def of_form(self, made: torch.Tensor) -> RandomBits:
        """The same stream for a result of another form."""
        return RandomBits(self._seed, self._stream, made)

    def words(self, word: int = 0) -> torch.Tensor:
        """Uniform int32 values. There are 4 words for each element, from 0."""
        return self._in_memory(lambda shape: torch.ops.buddy.philox32.default(self._seed, self._stream, shape, word))

    def doubles(self, pair: int = 0) -> torch.Tensor:
        """Uniform int64 values. There are 2 for each element, from 0, made of its 4 words."""
        return self._in_memory(lambda shape: torch.ops.buddy.philox64.default(self._seed, self._stream, shape, pair))

    def all(self, value: float) -> torch.Tensor:
        """The same number for each element."""
        return self._in_memory(lambda shape: torch.full(shape, value, dtype=self.dtype))

    def _in_memory(self, make: Callable[[list[Any]], torch.Tensor]) -> torch.Tensor:
        made = self.made
        if made.is_contiguous():
            return make(list(made.shape))
        strides = made.stride()
        order = sorted(range(made.dim()), key=lambda dim: -strides[dim])
        return make([made.shape[dim] for dim in order]).permute([order.index(dim) for dim in range(made.dim())])

    def fractions(self, number: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Uniform multiples of a power of two in [0, 1), with the resolution that `dtype` has between 1/2 and 1.

        The type is float32 or wider. `number` selects one of several numbers for each element.
        """
        dtype = dtype or self.dtype
        digits = _DIGITS.get(dtype, 24)
        bits = self.doubles(number) if dtype == torch.float64 else self.words(number)
        return (bits & ((1 << digits) - 1)).to(_wide(dtype)) * 2.0**-digits

    def positive(self, number: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Uniform in (0, 1], in float32 at least, with full precision."""
        return 1 - self.fractions(number, _wide(dtype or self.dtype))

    def normal(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Normally distributed with mean 0 and deviation 1, in float32 at least (Box and Muller 1958)."""
        dtype = _wide(dtype or self.dtype)
        radius = (self.positive(0, dtype).log() * -2).sqrt()
        return radius * (self.fractions(1, dtype) * (2 * math.pi)).cos()

    def exponential(self, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Exponentially distributed with mean 1, in float32 at least."""
        return -self.positive(0, dtype).log()

    def uniform(self, low: float, high: float) -> torch.Tensor:
        """Uniform in [`low`, `high`) in the node's dtype; `low` if the interval contains nothing else."""
        found = self.fractions() * (high - low) + low
        if low == 0 and high == 1:
            return found
        with _disable_current_modes():
            last = torch.tensor(high, dtype=self.dtype).nextafter(torch.tensor(low, dtype=self.dtype)).item()
        return found.to(self.dtype).clamp_max(last)

    def below(self, count: Any) -> torch.Tensor:
        """Uniform integers in [0, `count`) as int64: `count` times a fraction of 63 bits, or of 43 if it is small.

        Remainders would prefer small numbers for a very large `count`.
        """
        if isinstance(count, int) and count & (count - 1) == 0:
            bits = self.words().to(torch.int64) if count <= 1 << 32 else self.doubles()
            return bits & (count - 1)
        if isinstance(count, int) and count <= _SHORT:
            return ((self.doubles() & ((1 << 43) - 1)) * count) >> 43
        if not isinstance(count, int):
            return (self.doubles() & _GREATEST) % count  # a size, which is small relative to 2**63
        return _times_fraction(self.doubles() & _GREATEST, count)


def _wide(dtype: torch.dtype) -> torch.dtype:
    """The type in which eager computes before it rounds once: float64 for float64, float32 for all other types."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _times_fraction(bits: torch.Tensor, count: int) -> torch.Tensor:
    """`bits * count >> 63` for numbers below 2**63: products of halves, whose sums wrap but fit as unsigned."""
    half = (1 << 32) - 1
    (high, low), (upper, lower) = (bits >> 32, bits & half), (count >> 32, count & half)
    middle = high * lower + low * upper + (((low * lower) >> 32) & half)
    return high * (2 * upper) + ((middle >> 31) & ((1 << 33) - 1))


def rule(*overloads: Any, results: frozenset[torch.dtype]) -> Callable[[Rule], Rule]:
    """Registers a function for these ops: it takes the node's `RandomBits`, then all arguments except those that define
    the form.

    `results` are the dtypes that eager supports on CPUs; with others the node runs in eager, which raises.
    """

    def registered(function: Rule) -> Rule:
        def checked(bits: RandomBits, *args: Any, **named: Any) -> Any:
            return function(bits, *args, **named) if bits.dtype in results else NotImplemented

        RULES.update(dict.fromkeys(overloads, checked))
        return function

    return registered


# ---- floats ----------------------------------------------------------------------------------------------------------


@rule(aten.rand.default, aten.rand_like.default, results=FLOATS)
def rand(bits: RandomBits, _form: Any) -> torch.Tensor:
    return bits.fractions().to(bits.dtype)


@rule(aten.randn.default, aten.randn_like.default, results=FLOATS)
def randn(bits: RandomBits, _form: Any) -> torch.Tensor:
    return bits.normal().to(bits.dtype)


@rule(aten.uniform.default, results=FLOATS)
def uniform(bits: RandomBits, _like: Any, low: float = 0.0, high: float = 1.0) -> torch.Tensor:
    return bits.uniform(low, high).to(bits.dtype) if low <= high and math.isfinite(high - low) else NotImplemented


@rule(aten.normal_functional.default, results=FLOATS)
def normal(bits: RandomBits, _like: Any, mean: float = 0.0, deviation: float = 1.0) -> torch.Tensor:
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.normal.float_float, results=FLOATS)
def normal_of_numbers(bits: RandomBits, mean: float, deviation: float, _size: Any) -> torch.Tensor:
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.normal.Tensor_float, aten.normal.float_Tensor, aten.normal.Tensor_Tensor, results=FLOATS)
def normal_of_tensors(bits: RandomBits, mean: Any, deviation: Any = 1.0) -> torch.Tensor:
    if isinstance(deviation, torch.Tensor):
        if deviation.dtype not in FLOATS:
            return NotImplemented
        _assert_true((deviation >= 0).all(), "normal expects all elements of std >= 0.0")
    mean, deviation = (v.to(_wide(v.dtype)) if isinstance(v, torch.Tensor) else v for v in (mean, deviation))
    return (bits.normal() * deviation + mean).to(bits.dtype)


@rule(aten.log_normal.default, results=FLOATS)
def log_normal(bits: RandomBits, _like: Any, mean: float = 1.0, deviation: float = 2.0) -> torch.Tensor:
    return (bits.normal() * deviation + mean).exp().to(bits.dtype)


@rule(aten.exponential.default, results=FLOATS)
def exponential(bits: RandomBits, _like: Any, rate: float = 1.0) -> torch.Tensor:
    return (bits.exponential() / rate).to(bits.dtype)


@rule(aten.cauchy.default, results=FLOATS)
def cauchy(bits: RandomBits, _like: Any, median: float = 0.0, scale: float = 1.0) -> torch.Tensor:
    """Uses the cotangent, whose pole is at 0, where floats are densest; odd multiples of half a step avoid the pole."""
    wide = _wide(bits.dtype)
    digits = _DIGITS[wide] - 1
    drawn = bits.doubles() if wide == torch.float64 else bits.words()
    odd = ((drawn & ((1 << digits) - 1)) * 2 + (1 - (1 << digits))).to(wide)
    angle = odd * (math.pi / (1 << (digits + 1)))
    return (angle.cos() / angle.sin() * scale + median).to(bits.dtype)


@rule(aten.geometric.default, results=NUMBERS)
def geometric(bits: RandomBits, _like: Any, p: float) -> torch.Tensor:
    """Computes in double precision, so that the rounding of a logarithm does not change the integer."""
    if not 0 < p < 1:
        return NotImplemented
    fractions = ((bits.doubles() & ((1 << 52) - 1)).to(torch.float64) + 0.5) * 2.0**-52
    return (fractions.log() / math.log1p(-p)).ceil().to(bits.dtype)


@rule(aten.rrelu_with_noise_functional.default, results=FLOATS)  # also float16, which eager supports on GPUs only
def rrelu(
    bits: RandomBits,
    x: torch.Tensor,
    noise: torch.Tensor,
    low: float = 1 / 8,
    high: float = 1 / 3,
    training: bool = False,
    _generator: Any = None,
) -> Any:  # fmt: skip
    if _generator is not None:
        return NotImplemented
    if not training:
        return aten.leaky_relu.default(x, (low + high) / 2), noise.clone()
    slopes = torch.where(x <= 0, bits.uniform(low, high).to(x.dtype), 1)
    return x * slopes, slopes


# ---- integers and choices --------------------------------------------------------------------------------------------


@rule(aten.bernoulli.p, results=WITH_BOOL)
def bernoulli_of_a_number(bits: RandomBits, _like: Any, p: float = 0.5) -> torch.Tensor:
    """Ones with probability `p`, to 32 bits."""
    if not 0 <= p <= 1:
        return NotImplemented
    ones = round(p * (1 << 32))
    if ones in (0, 1 << 32):
        return bits.all(float(ones != 0))
    return (bits.words() <= ones - 1 - (1 << 31)).to(bits.dtype)


@rule(aten.bernoulli.default, results=FLOATS)
def bernoulli(bits: RandomBits, p: torch.Tensor) -> torch.Tensor:
    return _bernoulli(bits, p)


@rule(aten.bernoulli.Tensor, results=WITH_BOOL)
def bernoulli_like(bits: RandomBits, _like: Any, p: torch.Tensor) -> torch.Tensor:
    return _bernoulli(bits, p) if p.dtype in FLOATS else NotImplemented


def _bernoulli(bits: RandomBits, p: torch.Tensor) -> torch.Tensor:
    _assert_true(((p >= 0) & (p <= 1)).all(), "Expected p_in >= 0 && p_in <= 1 to be true, but got false.")
    wide = _wide(p.dtype)
    return (bits.fractions(0, wide) < p.to(wide)).to(bits.dtype)


@rule(aten.randint.default, results=WITH_UNSIGNED)
def randint(bits: RandomBits, high: Any, _size: Any) -> torch.Tensor:
    return _draw_between(bits, 0, high)


@rule(aten.randint.low, results=WITH_UNSIGNED)
def randint_from(bits: RandomBits, low: Any, high: Any, _size: Any) -> torch.Tensor:
    return _draw_between(bits, low, high)


@rule(aten.randint_like.default, results=WITH_UNSIGNED)
def randint_like(bits: RandomBits, _like: Any, high: Any) -> torch.Tensor:
    return _draw_between(bits, 0, high)


@rule(aten.randint_like.low_dtype, getattr(aten.random, "from"), results=WITH_UNSIGNED)
def randint_like_from(bits: RandomBits, _like: Any, low: Any, high: Any) -> torch.Tensor:
    return NotImplemented if high is None else _draw_between(bits, low, high)


@rule(aten.random.to, results=WITH_UNSIGNED)
def random_to(bits: RandomBits, _like: Any, high: int) -> torch.Tensor:
    return _draw_between(bits, 0, high)


@rule(aten.random.default, results=WITH_UNSIGNED)
def random(bits: RandomBits, _like: Any) -> torch.Tensor:
    """Uniform over all non-negative integers of the dtype; for floats, those that are exactly representable."""
    greatest = 1 if bits.dtype == torch.bool else 1 << _DIGITS.get(bits.dtype, 0)
    if not bits.dtype.is_floating_point and bits.dtype != torch.bool:
        greatest = min(torch.iinfo(bits.dtype).max, _GREATEST)
    return _draw_between(bits, 0, greatest + 1)


def _draw_between(bits: RandomBits, low: Any, high: Any) -> torch.Tensor:
    count = high - low
    if isinstance(count, int) and not (0 < count <= 1 << 63 and _is_in_range(bits.dtype, low, high - 1)):
        return NotImplemented
    found = bits.below(count)
    return (found + low if not isinstance(low, int) or low else found).to(bits.dtype)


def _is_in_range(dtype: torch.dtype, least: int, greatest: int) -> bool:
    """Whether both bounds are within the range of a type, as eager requires."""
    if dtype == torch.bool:
        return least >= 0 and greatest <= 1
    limits = torch.finfo(dtype) if dtype.is_floating_point else torch.iinfo(dtype)
    return bool(limits.min <= least and greatest <= limits.max)


@rule(aten.randperm.default, results=NUMBERS)
def randperm(bits: RandomBits, count: Any) -> torch.Tensor:
    """The sort order of as many random numbers of 64 bits, which are almost never equal."""
    if isinstance(count, int) and not _is_in_range(bits.dtype, 0, count):
        return NotImplemented
    return bits.doubles().sort()[1].to(bits.dtype)


@rule(aten.multinomial.default, results=frozenset((torch.int64,)))
def multinomial(bits: RandomBits, weights: torch.Tensor, count: Any, replacement: bool = False) -> torch.Tensor:
    """Computes in double precision, so that the rounding of a sum or a quotient does not change the choice.

    Without replacement, the smallest of exponential variables determine the choice and its order, as in eager.
    """
    if (isinstance(count, int) and count <= 0) or weights.dtype not in FLOATS:
        return NotImplemented
    message = "probability tensor contains either `inf`, `nan` or element < 0"
    _assert_true(((weights >= 0) & (weights < math.inf)).all(), message)
    _assert_true((weights.sum(-1) > 0).all(), "invalid multinomial distribution (sum of probabilities <= 0)")
    wide = weights.to(torch.float64)
    if replacement:
        sums = wide.cumsum(-1)
        places = bits.fractions(0, torch.float64) * sums[..., -1:]
        return torch.searchsorted(sums.contiguous(), places.contiguous(), right=True)
    chances = wide / bits.of_form(weights).exponential(torch.float64)
    return chances.topk(count, -1)[1]


def _assert_true(holds: torch.Tensor, message: str) -> None:
    aten._assert_async.msg(holds, message)
