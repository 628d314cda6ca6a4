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

# A number, or a torch symbol.
Size = Any
# Maximum number of element comparisons to sort slices; larger inputs run in eager.
_MOST_COMPARED = 1 << 22


def _read_size(number: torch.Tensor, refusal: str = "") -> Size:
    """The size in `number`, an int64 without dims. If it is negative, the program raises `refusal`."""
    with _capture_numbers(number):
        size: Any = number.item()
    if refusal:
        aten._assert_scalar.default(size >= 0, refusal)
    _constrain_range_for_size(size)
    return size


@contextmanager
def _capture_numbers(tensor: torch.Tensor) -> Iterator[None]:
    """Captures numbers that are read out of tensors inside, whatever the program's own setting is."""
    mode = detect_fake_mode(tensor)
    assert mode is not None
    before, mode.allow_scalar_outputs = mode.allow_scalar_outputs, True
    try:
        yield
    finally:
        mode.allow_scalar_outputs = before


def _is_empty(x: torch.Tensor) -> bool:
    return bool(statically_known_true(x.numel() == 0))


def _count(mask: torch.Tensor) -> Size:
    """The number of elements that are not 0."""
    return 0 if _is_empty(mask) else _read_size((mask != 0).sum())


def _count_once(mask: torch.Tensor) -> Size:
    """The count of a tensor that may be requested twice: torch treats both as the same number."""
    known: Any = mask.nonzero_memo
    if known is None:
        known = mask.nonzero_memo = _count(mask)
    return known


def _true_positions(mask: torch.Tensor, count: Size) -> torch.Tensor:
    """The positions of true elements of a mask, in row-major order, as [count]."""
    return aten.nonzero_static.default(mask.reshape(-1), size=count).squeeze(1)


def nonzero(x: torch.Tensor) -> torch.Tensor:
    """The positions [count, rank] of nonzero elements, stored dim by dim, as in eager."""
    size = _count_once(x)
    return aten.nonzero_static.default(x != 0 if x.is_complex() else x, size=size).t().contiguous().t()


def masked_select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    x, mask = torch.broadcast_tensors(x, mask)
    return x.reshape(-1).index_select(0, _true_positions(mask, _count(mask)))


def index(x: torch.Tensor, indices: Sequence[torch.Tensor | None]) -> torch.Tensor:
    """`x[:, mask]`; all other subscripts are left unchanged."""
    found = [(axis, given) for axis, given in enumerate(indices) if given is not None]
    if len(found) != 1 or found[0][1].dtype not in (torch.bool, torch.uint8) or not found[0][1].dim():
        return NotImplemented
    ((axis, mask),) = found
    if not x.is_contiguous() and not _keeps_order(x, range(axis, axis + mask.dim())):
        return NotImplemented
    return x.flatten(axis, axis + mask.dim() - 1).index_select(axis, _true_positions(mask, _count_once(mask)))


def _keeps_order(x: torch.Tensor, masked: range) -> bool:
    """Whether `x` by a mask of the dims `masked` is contiguous in eager: it has its dims in the order of the strides of
    the operand's other dims.
    """
    strides = [stride for dim, stride in enumerate(x.stride()) if dim not in masked]
    return all(statically_known_true(a >= b) for a, b in pairwise([*strides, 1]))


def index_put(
    x: torch.Tensor, indices: Sequence[torch.Tensor | None], values: torch.Tensor, accumulate: bool = False
) -> torch.Tensor:
    """Replaces masks among other subscripts by the positions of their true elements.

    The number of positions must broadcast with the other subscripts; otherwise the program raises. The op class
    handles a mask that is the only subscript.
    """
    given = [item for item in indices if item is not None]
    if len(given) < 2 or not any(map(_is_mask, given)):
        return NotImplemented
    others = [item.shape for item in given if not _is_mask(item)]
    length = torch.broadcast_shapes(*others)[-1:] if others else ()
    found: list[torch.Tensor | None] = []
    for item in indices:
        found += _columns(item, length[0] if length and length[0] != 1 else None) if _is_mask(item) else [item]
    return aten.index_put.default(x, found, values, accumulate)


def _is_mask(subscript: torch.Tensor | None) -> bool:
    return subscript is not None and subscript.dtype in (torch.bool, torch.uint8)


def _columns(mask: torch.Tensor, length: Size | None) -> list[torch.Tensor]:
    """For each dim of a mask the positions of its true elements: `length` of them, or their own count."""
    if length is None:
        return list(aten.nonzero_static.default(mask, size=_count_once(mask)).unbind(1))
    count = (mask != 0).sum()
    message = "shape mismatch: indexing tensors could not be broadcast together"
    aten._assert_async.msg((count == length) | (count == 1), message)
    places = aten.nonzero_static.default(mask, size=length, fill_value=0)
    return list(torch.where(count == 1, places[:1], places).unbind(1))


def repeat_interleave(repeats: torch.Tensor, output_size: int | None = None) -> torch.Tensor:
    if output_size is not None:
        return NotImplemented
    total = 0 if _is_empty(repeats) else _sum_of_counts(repeats)
    return aten.repeat_interleave.Tensor(repeats, output_size=total)


def _sum_of_counts(repeats: torch.Tensor) -> Size:
    total = torch.where((repeats < 0).any(), -1, repeats.sum())
    return _read_size(total, "repeats can not be negative")


def bincount(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> torch.Tensor:
    """The number of occurrences of each integer, or the sum of their weights."""
    kind = torch.int64 if weights is None else torch.float32 if weights.dtype == torch.float32 else torch.float64
    if _is_empty(x):
        return x.new_zeros([minlength], dtype=torch.int64)
    length = torch.where(x.min() < 0, -1, (x.max().to(torch.int64) + 1).clamp(min=minlength))
    size = _read_size(length, "bincount only supports 1-d non-negative integral inputs.")
    given = x.new_ones([], dtype=kind).expand(x.shape) if weights is None else weights.to(kind)
    return x.new_zeros([size], dtype=kind).scatter_add(0, x.to(torch.int64), given)


def unique(
    x: torch.Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, ...]:
    """The distinct elements of `x`, sorted; for each element its index there; the counts."""
    if _is_empty(x):
        return _empty_result(x, x.shape if return_inverse else [0])
    if x.is_complex():
        return NotImplemented
    line, order = x.reshape(-1).sort()
    values, inverse, counts = _number_runs(line, _run_starts(line), return_inverse, return_counts)
    if return_inverse:
        inverse = torch.zeros_like(inverse).scatter(0, order, inverse).reshape(x.shape)
    return line.index_select(0, values), inverse, counts


def _empty_result(
    x: torch.Tensor, inverse: Sequence[int], shape: Sequence[int] = (0,)
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return x.new_empty(shape), x.new_empty(inverse, dtype=torch.int64), x.new_empty([0], dtype=torch.int64)


def _empty_slices(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, ...]:
    return _empty_result(x, [x.shape[dim]], [0 if i == dim % x.dim() else size for i, size in enumerate(x.shape)])


def unique_consecutive(
    x: torch.Tensor, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[torch.Tensor, ...]:
    """`unique` of equal neighbours, or of equal neighbouring slices along a dim."""
    if _is_empty(x):
        return _empty_result(x, x.shape if return_inverse else [0]) if dim is None else _empty_slices(x, dim)
    if x.is_complex() or (dim is not None and not x.dim()):
        return NotImplemented
    if dim is None:
        line = x.reshape(-1)
        values, inverse, counts = _number_runs(line, _run_starts(line), return_inverse, return_counts)
        return line.index_select(0, values), inverse.reshape(x.shape) if return_inverse else inverse, counts
    slices = x.movedim(dim, 0).flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    # On CPU, eager returns the inverse and the counts even if they are not requested.
    values, inverse, counts = _number_runs(slices, _run_starts(slices), True, True)
    return x.index_select(dim, values), inverse, counts


def unique_dim(
    x: torch.Tensor, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[torch.Tensor, ...]:
    """`unique` of the slices along a dim, in lexicographic order."""
    if _is_empty(x):
        return _empty_slices(x, dim)
    if x.is_complex() or not x.dim():
        return NotImplemented
    rows = x.movedim(dim, 0).flatten(1) if x.dim() > 1 else x.unsqueeze(1)
    if not statically_known_true(rows.numel() * rows.shape[0] <= _MOST_COMPARED):
        return NotImplemented
    order = _sorted_positions(rows).sort(stable=True)[1]
    line = rows.index_select(0, order)
    values, inverse, counts = _number_runs(line, _run_starts(line), True, True)
    inverse = torch.zeros_like(inverse).scatter(0, order, inverse)
    return x.index_select(dim, order.index_select(0, values)), inverse, counts


def _sorted_positions(rows: torch.Tensor) -> torch.Tensor:
    """For each row, the number of rows before it: all pairs are compared."""
    width, here, there = rows.shape[1], rows.unsqueeze(1), rows.unsqueeze(0)
    columns = torch.arange(width, device=rows.device)
    first = torch.where(here != there, columns, width - 1).amin(-1, keepdim=True)
    return (there < here).gather(-1, first).squeeze(-1).sum(1)


def _run_starts(x: torch.Tensor) -> torch.Tensor:
    """A mask of the positions at which a run of equal elements, or of equal rows, starts."""
    differs = x[1:] != x[:-1]
    differs = differs.any(1) if x.dim() > 1 else differs
    return torch.cat([differs.new_ones([1]), differs])


def _number_runs(
    x: torch.Tensor, begins: torch.Tensor, return_inverse: bool, return_counts: bool
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The positions at which the runs of `x` start, the number of the run of each element, and the run lengths."""
    first = _true_positions(begins, _count(begins))
    none = begins.new_empty([0], dtype=torch.int64)
    inverse = begins.cumsum(0) - 1 if return_inverse else none
    if not return_counts:
        return first, inverse, none
    ends = torch.cat([first[1:], first.new_full([1], x.shape[0])])
    return first, inverse, ends - first


DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    aten.nonzero.default: nonzero,
    aten.masked_select.default: masked_select,
    aten.bincount.default: bincount,
    aten._unique2.default: unique,
    aten.unique_dim.default: unique_dim,
    aten.unique_consecutive.default: unique_consecutive,
}
# For ops with a class; the rules return `NotImplemented` for all calls with results of known sizes.
BESIDE_CLASSES: dict[Any, Callable[..., Any]] = {
    aten.index.Tensor: index,
    aten.index_put.default: index_put,
    aten.repeat_interleave.Tensor: repeat_interleave,
}


def keep_numbers_in_tensors(module: GraphModule) -> None:
    """Replaces a tensor that is made from a number, if the number was read out of a tensor, by that tensor."""
    changed = False
    for node in list(module.graph.nodes):
        read: Any = node.args[0] if node.target is aten.scalar_tensor.default else None
        if getattr(read, "target", None) is not aten._local_scalar_dense.default:
            continue
        source, value = read.args[0], node.meta["val"]
        with module.graph.inserting_before(node):
            single = module.graph.call_function(aten.view.default, (source, []))
            made = module.graph.call_function(aten._to_copy.default, (single,), {"dtype": value.dtype})
        with value.fake_mode:
            single.meta = node.meta | {"val": source.meta["val"].view([])}
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        module.graph.erase_node(node)
        changed = True
        if not read.users:
            module.graph.erase_node(read)
    if changed:
        module.recompile()
