"""Decompositions of ops with data-dependent result sizes: count, read the number, and compute with that size.

`graph_splitter` cuts a graph where a number is read. Both sides are compiled, the second one for any size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import _constrain_range_for_size, statically_known_true

aten = torch.ops.aten

# An integer, or a `torch.SymInt`.
Size = Any
# Maximum number of element comparisons to sort slices; larger inputs run in eager.
_MAX_COMPARISONS = 1 << 22


def _read_size(number: torch.Tensor, message: str = "") -> Size:
    """Returns the size in `number`, a 0-d int64 tensor.

    With a `message`, the program raises an error with this text for a negative number.
    """
    with _allow_number_reads(number):
        size: Any = number.item()
    if message:
        aten._assert_scalar.default(size >= 0, message)
    _constrain_range_for_size(size)
    return size


@contextmanager
def _allow_number_reads(tensor: torch.Tensor) -> Iterator[None]:
    """Lets tracing read numbers out of tensors inside the `with` block, even if the program's setting forbids it."""
    mode = detect_fake_mode(tensor)
    assert mode is not None
    before = mode.allow_scalar_outputs
    mode.allow_scalar_outputs = True
    try:
        yield
    finally:
        mode.allow_scalar_outputs = before


def _is_empty(x: torch.Tensor) -> bool:
    """True if `x` has no elements for all values of its symbolic sizes."""
    return bool(statically_known_true(x.numel() == 0))


def _count(mask: torch.Tensor) -> Size:
    """Returns the number of elements that are not 0."""
    return 0 if _is_empty(mask) else _read_size((mask != 0).sum())


def _memoized_count(mask: torch.Tensor) -> Size:
    """Returns the number of elements that are not 0, and stores it in `mask`, so that torch reuses its symbol."""
    count: Any = mask.nonzero_memo
    if count is None:
        count = mask.nonzero_memo = _count(mask)
    return count


def _true_positions(mask: torch.Tensor, count: Size) -> torch.Tensor:
    """Returns the positions of true elements of a mask, in row-major order, as [count]."""
    return aten.nonzero_static.default(mask.reshape(-1), size=count).squeeze(1)


def nonzero(x: torch.Tensor) -> torch.Tensor:
    """Returns the positions [count, rank] of nonzero elements, stored dim by dim, as in eager."""
    size = _memoized_count(x)
    return aten.nonzero_static.default(x != 0 if x.is_complex() else x, size=size).t().contiguous().t()


def masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Returns the elements of `x` at which the broadcast `mask` is true, as [count]."""
    x, mask = torch.broadcast_tensors(x, mask)
    return x.reshape(-1).index_select(0, _true_positions(mask, _count(mask)))


def index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """Returns `x` subscripted by one mask, such as `x[:, mask]`; calls with other subscripts stay unchanged."""
    subscripts = [(axis, subscript) for axis, subscript in enumerate(indices) if subscript is not None]
    if len(subscripts) != 1:
        return NotImplemented
    ((axis, mask),) = subscripts
    if not _is_mask(mask) or not mask.dim():
        return NotImplemented
    if not x.is_contiguous() and not _keeps_order(x, range(axis, axis + mask.dim())):
        return NotImplemented
    return x.flatten(axis, axis + mask.dim() - 1).index_select(axis, _true_positions(mask, _memoized_count(mask)))


def _keeps_order(x: torch.Tensor, masked_dims: range) -> bool:
    """True if `x`, indexed by a mask over `masked_dims`, is contiguous in eager.

    Eager lays out the result's dims in the order of the strides of the remaining dims of `x`.
    """
    strides = [stride for dim, stride in enumerate(x.stride()) if dim not in masked_dims]
    return all(statically_known_true(a >= b) for a, b in pairwise([*strides, 1]))


def index_put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Replaces masks among several subscripts by the positions of their true elements.

    The number of positions must broadcast with the other subscripts; otherwise the program raises an error. A call
    whose only subscript is a mask stays unchanged: the op class handles it.
    """
    subscripts = [item for item in indices if item is not None]
    if len(subscripts) < 2 or not any(map(_is_mask, subscripts)):
        return NotImplemented
    shapes = [item.shape for item in subscripts if not _is_mask(item)]
    length = torch.broadcast_shapes(*shapes)[-1:] if shapes else ()
    new_indices: list[torch.Tensor | None] = []
    n_positions = length[0] if length and length[0] != 1 else None
    for item in indices:
        new_indices += _mask_positions(item, n_positions) if _is_mask(item) else [item]
    return aten.index_put.default(x, new_indices, values, accumulate)


def _is_mask(subscript: torch.Tensor | None) -> bool:
    return subscript is not None and subscript.dtype in (torch.bool, torch.uint8)


def _mask_positions(mask: torch.Tensor, length: Size | None) -> list[torch.Tensor]:
    """Returns, for each dim of a mask, the positions of its true elements along that dim.

    If `length` is None, there is one position per true element. Otherwise there are `length` positions; the program
    raises an error unless the mask has `length` true elements, or one, whose position is repeated.
    """
    if length is None:
        return list(aten.nonzero_static.default(mask, size=_memoized_count(mask)).unbind(1))
    count = (mask != 0).sum()
    message = "shape mismatch: indexing tensors could not be broadcast together"
    aten._assert_async.msg((count == length) | (count == 1), message)
    positions = aten.nonzero_static.default(mask, size=length, fill_value=0)
    return list(torch.where(count == 1, positions[:1], positions).unbind(1))


def repeat_interleave(repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    """Returns each index i `repeats[i]` times, in order; the sum of `repeats` becomes a size read at run time."""
    if output_size is not None:
        return NotImplemented
    total = 0 if _is_empty(repeats) else _sum_of_counts(repeats)
    return aten.repeat_interleave.Tensor(repeats, output_size=total)


def _sum_of_counts(repeats: torch.Tensor) -> Size:
    """Returns the sum of `repeats` as a size; the program raises eager's error if one of them is negative."""
    total = torch.where((repeats < 0).any(), -1, repeats.sum())
    return _read_size(total, "repeats can not be negative")


def bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """Returns the number of occurrences of each integer, or the sum of their weights."""
    if _is_empty(x):
        return x.new_zeros([minlength], dtype=torch.int64)
    dtype = torch.int64
    if weights is not None:
        dtype = torch.float32 if weights.dtype == torch.float32 else torch.float64
    length = torch.where(x.min() < 0, -1, (x.max().to(torch.int64) + 1).clamp(min=minlength))
    size = _read_size(length, "bincount only supports 1-d non-negative integral inputs.")
    element_weights = x.new_ones([], dtype=dtype).expand(x.shape) if weights is None else weights.to(dtype)
    return x.new_zeros([size], dtype=dtype).scatter_add(0, x.to(torch.int64), element_weights)


def unique(
    x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, ...]:
    """Returns the distinct elements of `x` in order, the index of each element of `x` among them, and their counts."""
    if _is_empty(x):
        return _empty_result(x, x.shape if return_inverse else [0])
    if x.is_complex():
        return NotImplemented
    flat, order = x.reshape(-1).sort()
    starts, inverse, counts = _measure_runs(flat, _run_starts(flat), return_inverse, return_counts)
    if return_inverse:
        inverse = torch.zeros_like(inverse).scatter(0, order, inverse).reshape(x.shape)
    return flat.index_select(0, starts), inverse, counts


def _empty_result(
    x: torch.Tensor, inverse: Sequence[int], shape: Sequence[int] = (0,)
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the results of an op on an empty `x`: values of `shape`, an inverse of the shape `inverse`, no counts."""
    return x.new_empty(shape), x.new_empty(inverse, dtype=torch.int64), x.new_empty([0], dtype=torch.int64)


def _empty_slices(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
    """Like `_empty_result`, for slices of `x` along `dim`."""
    return _empty_result(x, [x.shape[dim]], [0 if i == dim % x.dim() else size for i, size in enumerate(x.shape)])


def unique_consecutive(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, ...]:
    """Like `unique`, but removes only equal neighbours, or equal neighbouring slices along a dim."""
    if _is_empty(x):
        if dim is not None:
            return _empty_slices(x, dim)
        return _empty_result(x, x.shape if return_inverse else [0])
    if x.is_complex() or (dim is not None and not x.dim()):
        return NotImplemented
    if dim is None:
        flat = x.reshape(-1)
        starts, inverse, counts = _measure_runs(flat, _run_starts(flat), return_inverse, return_counts)
        return flat.index_select(0, starts), inverse.reshape(x.shape) if return_inverse else inverse, counts
    slices = x.movedim(dim, 0).flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    # On CPU, eager returns the inverse and the counts even if they are not requested.
    starts, inverse, counts = _measure_runs(slices, _run_starts(slices), True, True)
    return x.index_select(dim, starts), inverse, counts


def unique_dim(
    x: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, ...]:
    """Like `unique`, for the slices along a dim, in lexicographic order."""
    if _is_empty(x):
        return _empty_slices(x, dim)
    if x.is_complex() or not x.dim():
        return NotImplemented
    rows = x.movedim(dim, 0).flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    if not statically_known_true(rows.numel() * rows.shape[0] <= _MAX_COMPARISONS):
        return NotImplemented
    order = _rank_rows(rows).sort(stable=True)[1]
    sorted_rows = rows.index_select(0, order)
    starts, inverse, counts = _measure_runs(sorted_rows, _run_starts(sorted_rows), True, True)
    inverse = torch.zeros_like(inverse).scatter(0, order, inverse)
    return x.index_select(dim, order.index_select(0, starts)), inverse, counts


def _rank_rows(rows: torch.Tensor) -> torch.Tensor:
    """Returns, for each of `rows` [rows, width], the number of lexicographically smaller ones; compares all pairs."""
    width, row, other_row = rows.shape[1], rows.unsqueeze(1), rows.unsqueeze(0)
    columns = torch.arange(width, device=rows.device)
    first_difference = torch.where(row != other_row, columns, width - 1).amin(-1, keepdim=True)
    return (other_row < row).gather(-1, first_difference).squeeze(-1).sum(1)


def _run_starts(x: torch.Tensor) -> torch.Tensor:
    """Returns a mask of the positions at which a run of equal elements, or of equal rows, starts."""
    differs = x[1:] != x[:-1]
    differs = differs.any(1) if x.dim() > 1 else differs
    return torch.cat([differs.new_ones([1]), differs])


def _measure_runs(
    x: torch.Tensor, is_start: torch.Tensor, return_inverse: bool, return_counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns the start of each run of `x`, the number of the run of each element, and the lengths of the runs.

    `is_start` is a mask of the positions at which runs start. The second and the third result are empty unless
    requested.
    """
    starts = _true_positions(is_start, _count(is_start))
    empty = is_start.new_empty([0], dtype=torch.int64)
    inverse = is_start.cumsum(0) - 1 if return_inverse else empty
    if not return_counts:
        return starts, inverse, empty
    ends = torch.cat([starts[1:], starts.new_full([1], x.shape[0])])
    return starts, inverse, ends - starts


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: nonzero,
    aten.masked_select.default: masked_select,
    aten.bincount.default: bincount,
    aten._unique2.default: unique,
    aten.unique_dim.default: unique_dim,
    aten.unique_consecutive.default: unique_consecutive,
}
# For ops with an op class, which handles all calls for which these return `NotImplemented`.
CONDITIONAL_DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: index,
    aten.index_put.default: index_put,
    aten.repeat_interleave.Tensor: repeat_interleave,
}


def keep_numbers_in_tensors(module: GraphModule) -> None:
    """Replaces each tensor made of a number that is read out of a first tensor by the first tensor, converted.

    Otherwise the graph would be cut where the number is read.
    """
    changed = False
    for node in list(module.graph.nodes):
        number: Any = node.args[0] if node.target is aten.scalar_tensor.default else None
        if getattr(number, "target", None) is not aten._local_scalar_dense.default:
            continue
        source, value = number.args[0], node.meta["val"]
        with module.graph.inserting_before(node):
            scalar = module.graph.call_function(aten.view.default, (source, []))
            cast = module.graph.call_function(aten._to_copy.default, (scalar,), {"dtype": value.dtype})
        with value.fake_mode:
            scalar.meta = node.meta | {"val": source.meta["val"].view([])}
        cast.meta = dict(node.meta)
        node.replace_all_uses_with(cast)
        module.graph.erase_node(node)
        changed = True
        if not number.users:
            module.graph.erase_node(number)
    if changed:
        module.recompile()
