"""Decompositions of quantisation ops of ATen and of `quantized_decomposed`, which round like eager.

ATen's kernels are in aten/src/ATen/native/quantized/cpu/kernels/QuantizedOpKernels.cpp of PyTorch. PyTorch defines the
ops of `quantized_decomposed` by Python functions (torch/ao/quantization/fx/_decomposed.py), which are used as
decompositions; the functions below replace those that read numbers out of tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import Any

import torch
from torch.ao.quantization.fx import _decomposed as eager

from buddy.compiler.runtime import torch_ops  # noqa: F401  (defines the op int4_mm)

aten = torch.ops.aten
# Dequantised numbers, and the mask of those that were within the range.
NumbersAndMask = tuple[torch.Tensor, torch.Tensor]

# The first float beyond int64, to which eager converts between rounding and clamping per channel.
_BEYOND_INT64 = 2.0**63


def _round_to_steps(x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor) -> torch.Tensor:
    """Returns round(`x` / `scale`) + `zero_point`, in float32 or wider; ties round to even."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return zero_point.to(wide.dtype) + torch.round(wide * scale.to(torch.float32).reciprocal())


def _convert_back(
    x: torch.Tensor, steps: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: int, high: int
) -> NumbersAndMask:
    """Clamps `steps` to [low, high], and converts them back to numbers of the type of `x`.

    Also returns the mask of steps within the range.
    """
    clamped = torch.where(steps.isnan(), low, steps.clamp(low, high))
    numbers = (clamped - zero_point.to(steps.dtype)).to(scale.dtype) * scale
    return numbers.to(x.dtype), (steps >= low) & (steps <= high)


def fake_quantize_per_tensor(
    x: torch.Tensor, scale: float, zero_point: int, quant_min: int, quant_max: int
) -> NumbersAndMask:
    """Quantises and dequantises `x` with one scale and zero point."""
    step, zero = torch.full([], scale, dtype=torch.float32), torch.full([], zero_point, dtype=torch.int64)
    return _convert_back(x, _round_to_steps(x, step, zero), step, zero, quant_min, quant_max)


def fake_quantize_by_tensor_parameters(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, enabled: torch.Tensor, quant_min: int,
    quant_max: int,
) -> NumbersAndMask:  # fmt: skip
    """Quantises and dequantises, with parameters of one element each; if `enabled` is 0, `x` is unchanged."""
    step, zero, is_enabled = scale.reshape([]), zero_point.reshape([]), enabled.reshape([]) != 0
    numbers, mask = _convert_back(x, _round_to_steps(x, step, zero), step, zero, quant_min, quant_max)
    return torch.where(is_enabled, numbers, x), mask | ~is_enabled


def fake_quantize_per_channel(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, axis: int, quant_min: int, quant_max: int
) -> NumbersAndMask:
    """Quantises and dequantises `x` with a scale and an integer zero point for each index of dim `axis`."""
    if zero_point.is_floating_point():
        return NotImplemented
    shape = [-1 if dim == axis else 1 for dim in range(x.dim())]
    # Per channel, eager converts the scales to the promoted type; a single scale stays in float32.
    step, zero = scale.reshape(shape).to(torch.promote_types(x.dtype, scale.dtype)), zero_point.reshape(shape)
    steps = _round_to_steps(x, step, zero)
    steps = torch.where(steps.abs() < _BEYOND_INT64, steps, float("nan"))
    return _convert_back(x, steps, step, zero, quant_min, quant_max)


def scaled_mm(
    a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor, bias: torch.Tensor | None = None,
    scale_result: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, use_fast_accum: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Multiplies `a` [m, k] by `b` [k, n], both float8, in float32.

    Scales are per tensor, or per row of `a` and per column of `b`. As in eager, `scale_result` only divides results
    that are float8 because of `out_dtype`; `use_fast_accum` is for GPUs.
    """
    product = (a.to(torch.float32) * scale_a) @ (b.to(torch.float32) * scale_b)
    if bias is not None:
        product = product + bias
    if scale_result is not None and out_dtype is not None and out_dtype.itemsize == 1:
        product = product / scale_result
    return product.to(out_dtype or a.dtype)


def int8_weight_mm(x: torch.Tensor, weight: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Multiplies `x` [m, k] by the transpose of `weight` [n, k], int8, and scales column i by `scales[i]`."""
    product = x.to(torch.float32) @ weight.to(torch.float32).t()
    return (product * scales.to(torch.float32)).to(x.dtype)


@lru_cache(maxsize=1)
def _int4_block() -> int | None:
    """Returns how `_convert_weight_to_int4pack_for_cpu` packs 4-bit weights on this CPU: the rows of a block.

    Within a block and a step of K, byte j has row j in its low half, and row j + block / 2 in its high half (PyTorch,
    aten/src/ATen/native/cpu/int4mm_kernel.cpp). Returns 2 if instead byte j has rows 2 j and 2 j + 1, in blocks of 32
    rows, and `None` for another order. Packs weights in a separate thread to find out, because this thread decomposes
    graphs on fake tensors.
    """

    def probe() -> int | None:
        weights = torch.randint(0, 16, (128, 8), generator=torch.Generator().manual_seed(0), dtype=torch.int32)
        packed = aten._convert_weight_to_int4pack_for_cpu(weights, 1)
        return next((n for n in (64, 32, 2) if torch.equal(_unpack_int4(packed, n), weights)), None)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(probe).result()


def _unpack_int4(packed: torch.Tensor, block: int) -> torch.Tensor:
    """Returns the integers [n, k], int32, from 0 to 15, in `packed` [n, k / 2]; `block` is as in `_int4_block`."""
    n, k = packed.shape[0], 2 * packed.shape[1]
    pairs_share_bytes = block == 2
    block_rows = min(n, 32) if pairs_share_bytes else block
    packed_bytes = packed.reshape(n // block_rows, k, 1, block_rows // 2).to(torch.int32)
    shifts = (torch.arange(2, dtype=torch.int32) * 4).reshape(2, 1)
    halves = (packed_bytes >> shifts) & 15  # [blocks, k, half, byte]
    rows = halves.transpose(2, 3) if pairs_share_bytes else halves
    return rows.reshape(n // block_rows, k, block_rows).transpose(1, 2).reshape(n, k)


def int4_weight_mm(
    x: torch.Tensor, packed: torch.Tensor, group_size: int, scales_and_zeros: torch.Tensor
) -> torch.Tensor:
    """Multiplies `x` [m, k] by the transpose of 4-bit weights [n, k].

    `packed` has the order of this CPU (`_int4_block`). `scales_and_zeros` is [k / group_size, n, 2]: for each group of
    consecutive weights of a row, the scale, and the number that the integer 8 represents.
    """
    block = _int4_block()
    if block is None or packed.shape[0] % max(block, 32):
        return NotImplemented
    # The integers and the scales depend on weights only: if these are constant, they are computed before the calls.
    steps = (_unpack_int4(packed, block) - 8).to(torch.int8)
    scales = scales_and_zeros.select(2, 0).t().to(torch.float32) + 0.0
    wide = x.to(torch.float32)
    sums = wide.unflatten(1, (-1, group_size)).sum(2)
    product = torch.ops.buddy.int4_mm(wide, steps, scales)
    return (product + sums @ scales_and_zeros.select(2, 1).to(torch.float32)).to(x.dtype)


# Ops on weights that are packed for one CPU: unpacking them in each call would take longer than eager.
OF_CONSTANT_WEIGHTS = (aten._weight_int4pack_mm_for_cpu.default,)

ATEN_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.fake_quantize_per_tensor_affine_cachemask.default: fake_quantize_per_tensor,
    aten._fake_quantize_per_tensor_affine_cachemask_tensor_qparams.default: fake_quantize_by_tensor_parameters,
    aten.fake_quantize_per_channel_affine_cachemask.default: fake_quantize_per_channel,
    aten._scaled_mm.default: scaled_mm,
    aten._weight_int8pack_mm.default: int8_weight_mm,
    aten._weight_int4pack_mm_for_cpu.default: int4_weight_mm,
}


# ---- quantized_decomposed --------------------------------------------------------------------------------------------


ops = torch.ops.quantized_decomposed

# A minimum and a maximum, or a scale and a zero point.
TensorPair = tuple[torch.Tensor, torch.Tensor]


def _single_number(parameter: torch.Tensor, like: torch.dtype) -> torch.Tensor:
    """Returns the only element of `parameter`, as type `like`, without dims: it does not affect type promotion."""
    return parameter.reshape([]).to(like)


def quantize_per_tensor(
    x: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: Any, high: Any, dtype: torch.dtype
) -> torch.Tensor:
    """Returns round(`x` / `scale`) + `zero_point`, clamped to [`low`, `high`].

    `scale` and `zero_point` are tensors of one element, `low` and `high` are numbers or such tensors.
    """
    wide = x.to(torch.float32)
    # Eager computes the reciprocal in double precision, in Python, and multiplies in the precision of `wide`.
    inverse = scale.to(torch.float64).reciprocal()
    steps = torch.round(wide * _single_number(inverse, wide.dtype)) + _single_number(zero_point, wide.dtype)
    return _clamp(steps, low, high).to(dtype)


def _clamp(steps: torch.Tensor, low: Any, high: Any) -> torch.Tensor:
    """Clamps `steps` to bounds that are numbers, or tensors of one element."""
    if isinstance(low, torch.Tensor):
        return torch.clamp(steps, _single_number(low, steps.dtype), _single_number(high, steps.dtype))
    return torch.clamp(steps, low, high)


def dequantize_per_tensor(
    q: torch.Tensor, scale: torch.Tensor, zero_point: torch.Tensor, low: Any, high: Any, dtype: torch.dtype,
    *, out_dtype: torch.dtype | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns (`q` - `zero_point`) * `scale`, rounded after each step to the type of the result, as in eager."""
    result_type = out_dtype or torch.float32
    # If the tensors are half precision, eager's scalar operands are float32.
    compute_type = torch.promote_types(result_type, torch.float32)
    offset = (q.to(result_type).to(compute_type) - _single_number(zero_point, compute_type)).to(result_type)
    return (offset.to(compute_type) * _single_number(scale, compute_type)).to(result_type)


def _range_with_zero(x: torch.Tensor) -> TensorPair:
    """Returns the minimum and the maximum of `x` and 0, without dims."""
    minimum, maximum = torch.aminmax(x)
    return torch.minimum(minimum, torch.zeros_like(minimum)), torch.maximum(maximum, torch.zeros_like(maximum))


def choose_qparams(x: torch.Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> TensorPair:
    """Returns a scale (float64) and a zero point (int64), of one element, that map the range of `x` to [low, high]."""
    minimum, maximum = _range_with_zero(x)
    scale = torch.maximum((maximum - minimum) / float(high - low), torch.full([1], eps, dtype=torch.float32))
    zero_point = low - torch.round(minimum / scale).to(torch.int32)
    return scale.to(torch.float64), torch.clamp(zero_point, low, high).to(torch.int64)


def choose_qparams_symmetric(x: torch.Tensor, low: int, high: int, eps: float, dtype: torch.dtype) -> TensorPair:
    """Like `choose_qparams`, with the zero point in the middle of the range of `dtype`."""
    minimum, maximum = _range_with_zero(x)
    scale = torch.maximum(-minimum, maximum) / (float(high - low) / 2)
    scale = torch.maximum(scale, torch.full([1], eps, dtype=torch.float32))
    middle = 128 if dtype == torch.uint8 else 0
    return scale.to(torch.float64), torch.full([1], middle, dtype=torch.int64)


def quantize_per_channel_group(
    x: torch.Tensor, scales: torch.Tensor, zero_points: torch.Tensor, low: int, high: int, dtype: torch.dtype,
    group_size: int = 128,
) -> torch.Tensor:  # fmt: skip
    """Quantises `x` [m, n] to integers of `dtype` in [low, high], with a scale and a zero point per group of a row.

    A group has `group_size` elements; `scales` and `zero_points` are [m, n / group_size]. As in eager, NaN raises an
    error.
    """
    size = x.shape[-1] if group_size > x.shape[-1] and scales.shape[-1] == 1 else group_size
    torch.ops.aten._assert_async.msg(x.isnan().logical_not().all(), "to_quant must not contain NaNs")
    inverse = (1.0 / scales).reshape(-1, 1)
    steps = (x.reshape(-1, size) * inverse + zero_points.reshape(-1, 1)).round().clamp(low, high)
    return steps.to(dtype).reshape(x.shape)


QUANTIZED_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    ops.quantize_per_tensor.default: eager.quantize_per_tensor,
    ops.quantize_per_tensor.tensor: quantize_per_tensor,
    ops.quantize_per_tensor.tensor2: quantize_per_tensor,
    ops.dequantize_per_tensor.default: eager.dequantize_per_tensor,
    ops.dequantize_per_tensor.tensor: dequantize_per_tensor,
    ops.dequantize_per_tensor.tensor2: dequantize_per_tensor,
    ops.choose_qparams.tensor: choose_qparams,
    ops.choose_qparams_symmetric.tensor: choose_qparams_symmetric,
    ops.quantize_per_channel.default: eager.quantize_per_channel,
    ops.dequantize_per_channel.default: eager.dequantize_per_channel,
    ops.choose_qparams_per_token.default: eager.choose_qparams_per_token,
    ops.choose_qparams_per_token_asymmetric.default: eager.choose_qparams_per_token_asymmetric,
    ops._choose_qparams_per_token_asymmetric_impl.default: eager._choose_qparams_per_token_asymmetric_impl,
    ops.quantize_per_token.default: eager.quantize_per_token,
    ops.dequantize_per_token.default: eager.dequantize_per_token,
    ops.quantize_per_channel_group.default: quantize_per_channel_group,
    ops.dequantize_per_channel_group.default: eager.dequantize_per_channel_group,
    ops.convert_element_type.no_fuse: eager.convert_element_type,
}
