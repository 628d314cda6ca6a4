"""The custom torch ops of compiled graphs: `buddy::observe`, random numbers, integer products and singular values.

The ops of recurrent layers are in another module, which this module imports so that all ops are defined.

Random numbers come from Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3"
(SC 2011): a cipher of few rounds that makes four words of 32 bits from a counter of four words and a key of two. Here
the key is the seed, and the counter of an element is its number in row-major order (two words) and that of its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from buddy.compiler.graph.operations.effects import PHILOX_KEY_INCREMENTS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS
from buddy.compiler.runtime import recurrent_ops as recurrent_ops

Observer = Callable[[torch.Tensor], None]

# Called with each observed value.
_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_library = torch.library.Library("buddy", "FRAGMENT")
_library.define("observe(Tensor value) -> ()")


@contextmanager
def observe_nodes(observer: Observer) -> Iterator[None]:
    """While active, `observer` is called with each observed value of a run; it must copy values that it keeps."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def _observe(value: torch.Tensor) -> None:
    observer = _observer.get()
    if observer is not None:
        observer(value)


_library.impl("observe", _observe, "CompositeExplicitAutograd")


# ---- random bits -----------------------------------------------------------------------------------------------------


_WORD_MASK = 0xFFFFFFFF

# `philox32` returns word `word` (0 to 3) of each element as int32; `philox64` returns words 2 * `pair` (the low half)
# and 2 * `pair` + 1 as int64.
_library.define("philox32(Tensor seed, int stream, SymInt[] size, int word=0) -> Tensor")
_library.define("philox64(Tensor seed, int stream, SymInt[] size, int pair=0) -> Tensor")


def philox(counter: Sequence[torch.Tensor], key: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns the four words of Philox 4x32-10 for a `counter` of four words and a `key` of two.

    Words are in the low halves of int64, in the arguments and in the results. The operands are broadcast.
    """
    a, b, c, d = counter
    key_0, key_1 = key
    for _ in range(PHILOX_ROUNDS):
        left, right = a * PHILOX_MULTIPLIERS[0], c * PHILOX_MULTIPLIERS[1]
        a, b, c, d = _high(right) ^ b ^ key_0, right & _WORD_MASK, _high(left) ^ d ^ key_1, left & _WORD_MASK
        key_0, key_1 = (key_0 + PHILOX_KEY_INCREMENTS[0]) & _WORD_MASK, (key_1 + PHILOX_KEY_INCREMENTS[1]) & _WORD_MASK
    return a, b, c, d


def _high(product: torch.Tensor) -> torch.Tensor:
    """Returns the high word of each int64, as an unsigned number."""
    return (product >> 32) & _WORD_MASK


def _philox_words(seed: torch.Tensor, stream: int, size: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """Returns the four random words of each element of a tensor of `size`."""
    count = 1
    for extent in size:
        count *= extent
    index, seed = torch.arange(count).reshape(list(size)), seed.reshape(())
    zero = seed & 0  # a tensor, since torch-mlir accepts numbers and literals only for some operands of these ops
    return philox((index & _WORD_MASK, _high(index), zero + stream, zero), (seed & _WORD_MASK, _high(seed)))


def _philox32(seed: torch.Tensor, stream: int, size: Sequence[int], word: int = 0) -> torch.Tensor:
    return _philox_words(seed, stream, size)[word].to(torch.int32)


def _philox64(seed: torch.Tensor, stream: int, size: Sequence[int], pair: int = 0) -> torch.Tensor:
    words = _philox_words(seed, stream, size)
    return words[2 * pair] | (words[2 * pair + 1] << 32)


_library.impl("philox32", _philox32, "CPU")
_library.impl("philox64", _philox64, "CPU")


@torch.library.register_fake("buddy::philox32", lib=_library)
def _(seed: torch.Tensor, stream: int, size: Sequence[int], word: int = 0) -> torch.Tensor:
    return seed.new_empty(list(size), dtype=torch.int32)


@torch.library.register_fake("buddy::philox64", lib=_library)
def _(seed: torch.Tensor, stream: int, size: Sequence[int], pair: int = 0) -> torch.Tensor:
    return seed.new_empty(list(size), dtype=torch.int64)


# ---- products of dequantised integers --------------------------------------------------------------------------------

# The product of `x` [m, k] and the transpose of 4-bit weights: `steps` [n, k], integers from -8 to 7, times `scales`
# [n, groups], one for each group of consecutive steps along k.
_library.define("int4_mm(Tensor x, Tensor steps, Tensor scales) -> Tensor")


def _int4_mm(x: torch.Tensor, steps: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    weights = steps.to(x.dtype).unflatten(1, (scales.shape[1], -1)) * scales.unsqueeze(2)
    return x @ weights.flatten(1).t()


_library.impl("int4_mm", _int4_mm, "CPU")


@torch.library.register_fake("buddy::int4_mm", lib=_library)
def _(x: torch.Tensor, steps: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], steps.shape[0])


# A product of matrices and a convolution of quantised numbers, given as integers, with a result in float32. Both have
# these arguments: the scale and the zero point of each operand; `b_scales` and `b_zeros` are those of each channel of
# the second operand, if its channels have their own.
_QUANTISATION_ARGUMENTS = "float a_scale, int a_zero, float b_scale, int b_zero, Tensor? b_scales, Tensor? b_zeros"
_library.define(f"integer_product(Tensor a, Tensor b, Tensor? addend, {_QUANTISATION_ARGUMENTS}) -> Tensor")
_library.define(
    "integer_convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, "
    f"int groups, {_QUANTISATION_ARGUMENTS}) -> Tensor"
)


def _integer_product(
    a: torch.Tensor, b: torch.Tensor, addend: torch.Tensor | None, a_scale: float, a_zero: int, b_scale: float,
    b_zero: int, b_scales: torch.Tensor | None, b_zeros: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    # Sums of these integers are exact in double precision.
    sums = (a.double() - a_zero) @ (b.double() - (b_zero if b_zeros is None else b_zeros))
    result = sums.float() * _product_of_scales(a_scale, b_scale, b_scales)
    return result if addend is None else result + addend


def _integer_convolution(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int], padding: list[int],
    dilation: list[int], groups: int, a_scale: float, a_zero: int, b_scale: float, b_zero: int,
    b_scales: torch.Tensor | None, b_zeros: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    n_spatial_dims = weight.dim() - 2
    per_channel = [-1, *[1] * n_spatial_dims]
    zeros = b_zero if b_zeros is None else b_zeros.reshape(-1, *[1] * (n_spatial_dims + 1))
    sums = torch.ops.aten.convolution(
        x.double() - a_zero,
        weight.double() - zeros,
        None,
        stride,
        padding,
        dilation,
        False,
        [0] * n_spatial_dims,
        groups,
    )
    scale = _product_of_scales(a_scale, b_scale, b_scales)
    result = sums.float() * (scale.reshape(per_channel) if scale.dim() else scale)
    return result if bias is None else result + bias.reshape(per_channel)


def _product_of_scales(a_scale: float, b_scale: float, b_scales: torch.Tensor | None) -> torch.Tensor:
    """Returns the product of both scales, rounded to single precision."""
    return (torch.tensor(b_scale, dtype=torch.float32) if b_scales is None else b_scales) * a_scale


_library.impl("integer_product", _integer_product, "CPU")
_library.impl("integer_convolution", _integer_convolution, "CPU")


# Decompositions of these ops to torch's own ops, for torch-mlir, which does not know them.
DECOMPOSITIONS = {
    torch.ops.buddy.philox32.default: _philox32,
    torch.ops.buddy.philox64.default: _philox64,
    torch.ops.buddy.int4_mm.default: _int4_mm,
}


# ---- singular values -------------------------------------------------------------------------------------------------

# PyTorch's `svdvals` saves singular vectors for its gradient. Their signs are arbitrary, so those of compiled code may
# differ from those of LAPACK. The gradient of this op computes the vectors itself, and multiplies each left vector by
# its right one, so that the signs cancel.

# Returns the singular values of matrices [*batch, rows, columns] in descending order: [*batch, min(rows, columns)].
_library.define("singular_values(Tensor a) -> Tensor")
# Returns the gradient of `a`, from that of its singular values.
_library.define("singular_values_gradient(Tensor a, Tensor gradient) -> Tensor")


def _singular_values(a: torch.Tensor) -> torch.Tensor:
    return torch.linalg.svdvals(a)


def _fake_singular_values(a: torch.Tensor) -> torch.Tensor:
    return a.new_empty([*a.shape[:-2], min(a.shape[-2:])], dtype=a.real.dtype if a.is_complex() else a.dtype)


def _singular_values_gradient(a: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    left, _, right = torch.linalg.svd(a, full_matrices=False)
    return (left * gradient.unsqueeze(-2)) @ right


def _fake_singular_values_gradient(a: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    return a.new_empty(a.shape)


def _save_inputs(ctx: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _differentiate_singular_values(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
    (a,) = ctx.saved_tensors
    return torch.ops.buddy.singular_values_gradient(a, gradient)


for _name, _function, _fake in (
    ("singular_values", _singular_values, _fake_singular_values),
    ("singular_values_gradient", _singular_values_gradient, _fake_singular_values_gradient),
):
    _library.impl(_name, _function, "CPU")
    torch.library.register_fake(f"buddy::{_name}", _fake, lib=_library)
torch.library.register_autograd(
    "buddy::singular_values", _differentiate_singular_values, setup_context=_save_inputs, lib=_library
)
