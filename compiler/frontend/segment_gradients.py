"""Decomposes the gradients of reductions of consecutive segments: `segment_reduce` and `embedding_bag`.

Each element gets the number of its segment, by which it reads the values of the segment.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten

# The values of `mode` in `embedding_bag`.
_SUM, _MEAN, _MAX = range(3)
# Eager adds to gradients in half precision and rounds after each addition; its ops are called for these.
_HALVES = (torch.float16, torch.bfloat16)


# ---- segment_reduce --------------------------------------------------------------------------------------------------


def segment_reduce_backward(
    gradient: torch.Tensor, output: torch.Tensor, data: torch.Tensor, mode: str, *, lengths: torch.Tensor | None = None,
    offsets: torch.Tensor | None = None, axis: int = 0, initial: float | None = None,
) -> torch.Tensor:  # fmt: skip
    """Returns the gradient of `data` [*outer, size, *inner], for a `gradient` of `output` [*outer, segments, *inner].

    An element outside of all segments has the gradient 0.
    """
    limits = lengths if offsets is None else offsets
    if limits is None or data.dtype in _HALVES or 0 in (*data.shape, *output.shape):
        return NotImplemented
    segment, length = _segments(limits, offsets is None, data.size(axis))
    shape = [*segment.shape, *[1] * (data.dim() - axis - 1)]
    is_inside = ((segment >= 0) & (segment < output.size(axis))).reshape(shape)
    index = segment.clamp(0, output.size(axis) - 1).reshape(shape).expand(data.shape)

    def gather_by_segment(values: torch.Tensor) -> torch.Tensor:
        return values.gather(axis, index)

    element_gradient = gather_by_segment(gradient)
    if mode == "mean":
        element_gradient = element_gradient / length.reshape(shape).to(data.dtype)
    elif mode in ("max", "min"):
        is_chosen = (data == gather_by_segment(output)) | data.isnan()
        ones = (is_chosen & is_inside).to(data.dtype)
        count = gather_by_segment(torch.zeros_like(output).scatter_add(axis, index, ones))
        # Eager's kernel divides only positive gradients by the number of equal elements.
        shared = torch.where((element_gradient > 0) & (count > 1), element_gradient / count, element_gradient)
        element_gradient = torch.where(is_chosen, shared, 0)
    elif mode == "prod":
        element_gradient = _product_gradient(
            element_gradient, gather_by_segment, output, data, index, is_inside, axis, initial
        )
    return torch.where(is_inside, element_gradient, 0)


def _segments(limits: torch.Tensor, is_by_length: bool, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns the segment of each of `size` elements, and the length of that segment, both [*outer, size].

    `limits` are lengths or offsets. Elements before the first segment have the number -1, those after the last segment
    have the number of segments.
    """
    limits = limits.to(torch.int64).contiguous()
    positions = torch.arange(size, device=limits.device).expand([*limits.shape[:-1], size]).contiguous()
    ends = limits.cumsum(-1) if is_by_length else limits
    number = torch.searchsorted(ends, positions, right=True) - (0 if is_by_length else 1)
    lengths = limits if is_by_length else limits[..., 1:] - limits[..., :-1]
    return number, lengths.gather(-1, number.clamp(0, lengths.size(-1) - 1))


def _product_gradient(
    element_gradient: torch.Tensor, gather_by_segment: Callable[[torch.Tensor], torch.Tensor], output: torch.Tensor,
    data: torch.Tensor, index: torch.Tensor, is_inside: torch.Tensor, axis: int, initial: float | None,
) -> torch.Tensor:  # fmt: skip
    """Returns `element_gradient` times the product of the other elements of the segment.

    That product is the result divided by the element, unless the element is 0 or NaN. Then it is the product of the
    other elements that are neither 0 nor NaN, times 0 if another element is 0; it is NaN if another element is NaN.
    """
    is_zero, is_nan = data == 0, data.isnan()

    def count_others(flags: torch.Tensor) -> torch.Tensor:
        """Returns, for each element, the number of other elements of its segment for which `flags` is true."""
        counted = (flags & is_inside).to(data.dtype)
        return gather_by_segment(torch.zeros_like(output).scatter_add(axis, index, counted)) - counted

    factors = torch.where(is_zero | is_nan | ~is_inside, 1, data)
    start = torch.full_like(output, 1 if initial is None else initial)
    others = gather_by_segment(start.scatter_reduce(axis, index, factors, "prod"))
    others = torch.where(count_others(is_zero) > 0, others * 0, others)
    others = torch.where(count_others(is_nan) > 0, math.nan, others)
    return torch.where(is_zero | is_nan, element_gradient * others, element_gradient * gather_by_segment(output) / data)


# ---- embedding_bag ---------------------------------------------------------------------------------------------------


def embedding_bag(
    weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, scale_by_frequency: bool = False,
    mode: int = _SUM, sparse: bool = False, sample_weights: torch.Tensor | None = None,
    include_last_offset: bool = False, padding: int = -1,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """Returns the bags [bags, width], computed by the op for inference, and the values that the backward pass needs.

    These values are the bag of each index, the sizes of the bags (0 for `sum`), and for `max` the row of each maximum.
    They are 0 where eager's results are uninitialised memory.
    """
    if 0 in (*weight.shape, *indices.shape, *offsets.shape):
        return NotImplemented
    bags = aten._embedding_bag_forward_only(
        weight, indices, offsets, scale_by_frequency, mode, sparse, sample_weights, include_last_offset, padding
    )[0]
    bag, is_counted = _bags(offsets, indices), indices != padding
    sizes = offsets.new_zeros(bags.size(0))
    if mode == _SUM:
        return bags, bag.to(offsets.dtype), sizes, torch.zeros_like(sizes)
    sizes = sizes.index_add(0, bag, is_counted.to(offsets.dtype))
    if mode == _MEAN:
        return bags, bag.to(offsets.dtype), sizes, torch.zeros_like(sizes)
    rows, maxima = weight.index_select(0, indices), bags.index_select(0, bag)
    # A later row is chosen only if it is greater, so that a NaN is chosen if it is the first.
    is_chosen = ((rows == maxima) | maxima.isnan()) & is_counted.unsqueeze(1)
    end = indices.size(0)
    positions = torch.where(is_chosen, torch.arange(end, device=indices.device).unsqueeze(1), end)
    first = torch.full_like(bags, end, dtype=torch.int64)
    first = first.scatter_reduce(0, bag.unsqueeze(1).expand_as(positions), positions, "amin")
    chosen = indices[first.clamp(max=end - 1)]
    return bags, bag.to(offsets.dtype), sizes, torch.where(first < end, chosen, 0).to(offsets.dtype)


def _bags(offsets: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Returns the bag of each index, in int64.

    The forward pass has checked that `offsets` start at 0 and do not decrease.
    """
    positions = torch.arange(indices.size(0), device=indices.device)
    return torch.searchsorted(offsets.to(torch.int64), positions, right=True) - 1


def embedding_bag_backward(
    gradient: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, bag: torch.Tensor, bag_sizes: torch.Tensor,
    max_rows: torch.Tensor, rows: int, scale_by_frequency: bool, mode: int, sparse: bool,
    sample_weights: torch.Tensor | None, padding: int = -1,
) -> torch.Tensor:  # fmt: skip
    """Returns the gradient of the table [rows, width], for a `gradient` [bags, width].

    Calls for sparse gradients stay unchanged, and run in eager. So do calls with `scale_by_frequency`, which divide by
    the number of times that an index occurs: eager's kernel divides some gradients by the number of another index.
    """
    if sparse or scale_by_frequency or gradient.dtype in _HALVES or 0 in (*gradient.shape, *indices.shape):
        return NotImplemented
    zeros = gradient.new_zeros([rows, gradient.size(1)])
    if mode == _MAX:
        is_empty = (bag_sizes == 0).unsqueeze(1)
        index = torch.where(is_empty, 0, max_rows).to(torch.int64)
        return zeros.scatter_add(0, index, torch.where(is_empty, 0, gradient))
    bag = _bags(offsets, indices)
    scale = sample_weights if sample_weights is not None else torch.ones_like(bag, dtype=gradient.dtype)
    if mode == _MEAN:
        scale = scale / bag_sizes.index_select(0, bag).to(scale.dtype)
    terms = gradient.index_select(0, bag) * scale.unsqueeze(1)
    return zeros.index_add(0, indices, torch.where((indices != padding).unsqueeze(1), terms, 0))


def sample_weights_backward(
    gradient: torch.Tensor, weight: torch.Tensor, indices: torch.Tensor, offsets: torch.Tensor, bag: torch.Tensor,
    mode: int, padding: int = -1,
) -> torch.Tensor:  # fmt: skip
    """Returns the gradient of the sample weights [indices], for a `gradient` [bags, width]; 0 at `padding`."""
    if gradient.dtype in _HALVES or 0 in (*gradient.shape, *indices.shape):
        return NotImplemented
    products = gradient.index_select(0, _bags(offsets, indices)) * weight.index_select(0, indices)
    return torch.where(indices != padding, products.sum(1), 0)


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten._segment_reduce_backward.default: segment_reduce_backward,
    aten._embedding_bag_backward.default: embedding_bag_backward,
    aten._embedding_bag_per_sample_weights_backward.default: sample_weights_backward,
}
# For ops with an op class, which handles all calls for which these return `NotImplemented`.
CONDITIONAL_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {aten._embedding_bag.default: embedding_bag}
