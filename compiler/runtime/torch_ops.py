"""The custom torch ops of compiled graphs: `buddy::observe`, random numbers, integer products and recurrent layers.

Philox 4x32-10 of Salmon, Moraes, Dror and Shaw, "Parallel Random Numbers: As Easy as 1, 2, 3" (SC 2011): a cipher of
few rounds that makes four words of 32 bits from a counter of four words and a key of two. Here the key is the seed, and
the counter of an element is its number in row-major order (two words) and that of its stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeAlias

import torch

from buddy.compiler.graph.operations.effects import PHILOX_KEY_INCREMENTS, PHILOX_MULTIPLIERS, PHILOX_ROUNDS

Observer = Callable[[torch.Tensor], None]

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_library = torch.library.Library("buddy", "FRAGMENT")
_library.define("observe(Tensor value) -> ()")


@contextmanager
def observe_nodes(observer: Observer) -> Iterator[None]:
    """Inside, `observer` is called with each observed value of a run; it must copy values that it keeps."""
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


_WORD_MASK = 0xFFFFFFFF

# Word `word` (0 to 3) of each block as int32, and words 2 * `pair` (the low half) and 2 * `pair` + 1 as int64.
_library.define("philox32(Tensor seed, int stream, SymInt[] size, int word=0) -> Tensor")
_library.define("philox64(Tensor seed, int stream, SymInt[] size, int pair=0) -> Tensor")


def philox(counter: Sequence[torch.Tensor], key: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
    """Returns the four words of Philox 4x32-10; words are in the low halves of int64, also in the arguments.

    The operands are broadcast.
    """
    a, b, c, d = counter
    key_0, key_1 = key
    for _ in range(PHILOX_ROUNDS):
        left, right = a * PHILOX_MULTIPLIERS[0], c * PHILOX_MULTIPLIERS[1]
        a, b, c, d = _high(right) ^ b ^ key_0, right & _WORD_MASK, _high(left) ^ d ^ key_1, left & _WORD_MASK
        key_0, key_1 = (key_0 + PHILOX_KEY_INCREMENTS[0]) & _WORD_MASK, (key_1 + PHILOX_KEY_INCREMENTS[1]) & _WORD_MASK
    return a, b, c, d


def _high(product: torch.Tensor) -> torch.Tensor:
    """The high word of an int64."""
    return (product >> 32) & _WORD_MASK


def _block(seed: torch.Tensor, stream: int, size: Sequence[int]) -> tuple[torch.Tensor, ...]:
    """The four words of each element of a tensor of `size`."""
    count = 1
    for extent in size:
        count *= extent
    index, seed = torch.arange(count).reshape(list(size)), seed.reshape(())
    zero = seed & 0  # a tensor, since torch-mlir accepts numbers and literals only for some operands of these ops
    return philox((index & _WORD_MASK, _high(index), zero + stream, zero), (seed & _WORD_MASK, _high(seed)))


def _philox32(seed: torch.Tensor, stream: int, size: Sequence[int], word: int = 0) -> torch.Tensor:
    return _block(seed, stream, size)[word].to(torch.int32)


def _philox64(seed: torch.Tensor, stream: int, size: Sequence[int], pair: int = 0) -> torch.Tensor:
    words = _block(seed, stream, size)
    return words[2 * pair] | (words[2 * pair + 1] << 32)


_library.impl("philox32", _philox32, "CPU")
_library.impl("philox64", _philox64, "CPU")
# `x` [m, k] times the transpose of `steps` [n, k], integers of -8 to 7, times `scales` [n, groups]: of groups along K.
_library.define("int4_mm(Tensor x, Tensor steps, Tensor scales) -> Tensor")


def _int4_mm(x: torch.Tensor, steps: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    weights = steps.to(x.dtype).unflatten(1, (scales.shape[1], -1)) * scales.unsqueeze(2)
    return x @ weights.flatten(1).t()


_library.impl("int4_mm", _int4_mm, "CPU")


@torch.library.register_fake("buddy::int4_mm", lib=_library)
def _(x: torch.Tensor, steps: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    return x.new_empty(x.shape[0], steps.shape[0])


# Decompositions to torch's own ops, for tools that do not know these.
DECOMPOSITIONS = {
    torch.ops.buddy.philox32.default: _philox32,
    torch.ops.buddy.philox64.default: _philox64,
    torch.ops.buddy.int4_mm.default: _int4_mm,
}


@torch.library.register_fake("buddy::philox32", lib=_library)
def _(seed: torch.Tensor, stream: int, size: Sequence[int], word: int = 0) -> torch.Tensor:
    return seed.new_empty(list(size), dtype=torch.int32)


@torch.library.register_fake("buddy::philox64", lib=_library)
def _(seed: torch.Tensor, stream: int, size: Sequence[int], pair: int = 0) -> torch.Tensor:
    return seed.new_empty(list(size), dtype=torch.int64)


# ---- products of dequantised integers --------------------------------------------------------------------------------

_SCALES = "float a_scale, int a_zero, float b_scale, int b_zero, Tensor? b_scales, Tensor? b_zeros"
_library.define(f"integer_product(Tensor a, Tensor b, Tensor? addend, {_SCALES}) -> Tensor")
_library.define(
    "integer_convolution(Tensor x, Tensor weight, Tensor? bias, int[] stride, int[] padding, int[] dilation, "
    f"int groups, {_SCALES}) -> Tensor"
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
    per_channel, spatial = [-1, *[1] * (weight.dim() - 2)], weight.dim() - 2
    zeros = b_zero if b_zeros is None else b_zeros.reshape(-1, 1, *per_channel[1:])
    sums = torch.ops.aten.convolution(
        x.double() - a_zero, weight.double() - zeros, None, stride, padding, dilation, False, [0] * spatial, groups
    )
    scale = _product_of_scales(a_scale, b_scale, b_scales)
    result = sums.float() * (scale.reshape(per_channel) if scale.dim() else scale)
    return result if bias is None else result + bias.reshape(per_channel)


def _product_of_scales(a_scale: float, b_scale: float, b_scales: torch.Tensor | None) -> torch.Tensor:
    """The product of both scales, rounded to single precision."""
    return (torch.tensor(b_scale, dtype=torch.float32) if b_scales is None else b_scales) * a_scale


_library.impl("integer_product", _integer_product, "CPU")
_library.impl("integer_convolution", _integer_convolution, "CPU")


# ---- recurrent layers ------------------------------------------------------------------------------------------------

# One direction of one layer. `steps` is [time, batch, inputs], or [rows, inputs] of packed sequences, with the number
# of sequences that have each step in `batch_sizes`. Returns the output, of the form of `steps`, and the last states.
_STATE_ARGUMENTS = "Tensor input_weight, Tensor hidden_weight, Tensor? input_bias, Tensor? hidden_bias"
_ORDER_ARGUMENTS = "Tensor? batch_sizes=None, bool reverse=False"
_library.define(
    f"lstm_layer(Tensor steps, Tensor hidden, Tensor cell, {_STATE_ARGUMENTS}, Tensor? projection=None, "
    f"{_ORDER_ARGUMENTS}) -> (Tensor, Tensor, Tensor)"
)
_library.define(f"gru_layer(Tensor steps, Tensor hidden, {_STATE_ARGUMENTS}, {_ORDER_ARGUMENTS}) -> (Tensor, Tensor)")
_library.define(
    f"rnn_layer(Tensor steps, Tensor hidden, {_STATE_ARGUMENTS}, str nonlinearity='tanh', {_ORDER_ARGUMENTS}) "
    "-> (Tensor, Tensor)"
)

Weight: TypeAlias = torch.Tensor | None


def _run_layer(
    function: Callable[..., Sequence[torch.Tensor]], steps: torch.Tensor, states: Sequence[torch.Tensor],
    weights: Sequence[Weight], batch_sizes: Weight, reverse: bool,
) -> list[torch.Tensor]:  # fmt: skip
    """Calls PyTorch's kernel for all directions, `torch.lstm` or another, with the steps reversed before and after."""
    present, stacked = [weight for weight in weights if weight is not None], [state[None] for state in states]
    hidden, has_biases = stacked if len(stacked) > 1 else stacked[0], weights[2] is not None
    options = (present, has_biases, 1, 0.0, False, False)
    if batch_sizes is None:
        output, *last = function(steps.flip(0) if reverse else steps, hidden, *options, False)
        return [output.flip(0) if reverse else output, *(state[0] for state in last)]
    order = _reversed_rows(batch_sizes) if reverse else None
    output, *last = function(steps if order is None else steps[order], batch_sizes, hidden, *options)
    return [output if order is None else output[order], *(state[0] for state in last)]


def _reversed_rows(batch_sizes: torch.Tensor) -> torch.Tensor:
    """For each row of packed sequences, the row of the same sequence at the opposite step, counted from the end."""
    starts = batch_sizes.cumsum(0) - batch_sizes
    step = torch.arange(len(batch_sizes)).repeat_interleave(batch_sizes)
    sequence = torch.arange(len(step)) - starts[step]
    length = (batch_sizes[:, None] > sequence).sum(0)
    return starts[length - 1 - step] + sequence


def _lstm_layer(
    steps: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, input_weight: Weight, hidden_weight: Weight,
    input_bias: Weight, hidden_bias: Weight, projection: Weight = None, batch_sizes: Weight = None,
    reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    weights = (input_weight, hidden_weight, input_bias, hidden_bias, projection)
    return tuple(_run_layer(torch.lstm, steps, (hidden, cell), weights, batch_sizes, reverse))


def _gru_layer(
    steps: torch.Tensor, hidden: torch.Tensor, input_weight: Weight, hidden_weight: Weight, input_bias: Weight,
    hidden_bias: Weight, batch_sizes: Weight = None, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    weights = (input_weight, hidden_weight, input_bias, hidden_bias)
    return tuple(_run_layer(torch.gru, steps, (hidden,), weights, batch_sizes, reverse))


def _rnn_layer(
    steps: torch.Tensor, hidden: torch.Tensor, input_weight: Weight, hidden_weight: Weight, input_bias: Weight,
    hidden_bias: Weight, nonlinearity: str = "tanh", batch_sizes: Weight = None, reverse: bool = False,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    weights, function = (input_weight, hidden_weight, input_bias, hidden_bias), torch.rnn_tanh
    if nonlinearity == "relu":
        function = torch.rnn_relu
    return tuple(_run_layer(function, steps, (hidden,), weights, batch_sizes, reverse))


def _layer_shapes(steps: torch.Tensor, hidden: torch.Tensor, *rest: object, **_: object) -> tuple[torch.Tensor, ...]:
    return steps.new_empty([*steps.shape[:-1], hidden.shape[-1]]), hidden.new_empty(hidden.shape)


def _lstm_shapes(
    steps: torch.Tensor, hidden: torch.Tensor, cell: torch.Tensor, *rest: object, **_: object
) -> tuple[torch.Tensor, ...]:
    return *_layer_shapes(steps, hidden), cell.new_empty(cell.shape)


for _name, _function, _shapes in (
    ("lstm_layer", _lstm_layer, _lstm_shapes), ("gru_layer", _gru_layer, _layer_shapes),
    ("rnn_layer", _rnn_layer, _layer_shapes),
):  # fmt: skip
    _library.impl(_name, _function, "CPU")
    torch.library.register_fake(f"buddy::{_name}", _shapes, lib=_library)
