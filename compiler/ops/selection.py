"""Emits selections and unstable sorts with the same steps as PyTorch's kernels, so that equal keys get the same order.

The algorithms are libstdc++'s `nth_element`, `partial_sort` and `sort` (GCC 13, bits/stl_algo.h and bits/stl_heap.h),
and ATen's quickselect (native/Sorting.cpp). Ranges include `first` and exclude `last`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.ops.loops import (
    Extent,
    LoopState,
    compare,
    element,
    half,
    index_to_scalar,
    insert,
    minus,
    pick,
    plus,
    position,
    scalar_to_index,
)
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.structured import filled

# A key and its original position.
Entry = tuple[Scalar, Scalar]
# Maps two keys to a condition: whether the first must come before the second.
Order = Callable[[Scalar, Scalar], Scalar]


class SortBuffer(LoopState):
    """A row of keys to sort, with their original positions.

    It is row `row` of two loop-carried tensors [rows, n]: the keys, of `dtype`, and the positions, of i64. Algorithms
    may append further tensors.
    """

    def __init__(self, tensors: Sequence[ir.Value], row: ir.Value, dtype: TensorDType, comes_before: Order) -> None:
        super().__init__(tensors)
        self.row, self.dtype, self.comes_before = row, dtype, comes_before

    def get(self, i: Extent) -> Entry:
        """Returns the key at position `i` of the row, and its original position."""
        indices = [self.row, position(i)]
        return element(self.tensors[0], indices, self.dtype), element(self.tensors[1], indices, TensorDType.Int64)

    def put(self, i: Extent, entry: Entry) -> None:
        indices = [self.row, position(i)]
        self.tensors[:2] = [insert(x, indices, tensor) for x, tensor in zip(entry, self.tensors[:2], strict=True)]

    def swap(self, i: Extent, j: Extent) -> None:
        left, right = self.get(i), self.get(j)
        self.put(i, right)
        self.put(j, left)

    def is_before(self, i: Extent, j: Extent) -> Scalar:
        """True if the key at `i` must come before the key at `j`."""
        return self.comes_before(self.get(i)[0], self.get(j)[0])


# Up to these lengths of a range, libstdc++ uses insertion sort in `sort` and in `nth_element`.
MAX_INSERTION_SORT, MAX_INSERTION_SELECTION = 16, 3


def nth_element(buffer: SortBuffer, nth: Extent, length: int) -> None:
    """Moves entry `nth` of the sorted order to position `nth`, and all entries that must come before it to its left."""

    def is_long(first: Extent, last: Extent, depth: Extent) -> tuple[Scalar, list[Extent]]:
        condition = compare("sgt", minus(last, first), MAX_INSERTION_SELECTION) & compare("ne", depth, 0)
        return condition, [first, last, depth]

    def narrow(first: ir.Value, last: ir.Value, depth: ir.Value) -> list[ir.Value]:
        cut = _partition(buffer, first, last)
        in_second_part = compare("sle", cut, nth)
        return [pick(in_second_part, cut, first), pick(in_second_part, last, cut), minus(depth, 1)]

    first, last, _ = buffer.while_loop([0, length, _max_depth(length)], is_long, narrow)

    def select_by_heap() -> None:
        heap_select(buffer, first, plus(nth, 1), last)
        buffer.swap(first, nth)

    is_still_long = compare("sgt", minus(last, first), MAX_INSERTION_SELECTION)
    buffer.branch(is_still_long, select_by_heap, lambda: insertion_sort(buffer, first, last))


def _max_depth(length: int) -> int:
    """Returns the number of partitions after which libstdc++ uses a heap: 2 * floor(log2(length))."""
    return 2 * (length.bit_length() - 1)


def _partition(buffer: SortBuffer, first: Extent, last: Extent) -> ir.Value:
    """Partitions around the median of three entries, which moves to `first`. Returns the start of the second part."""
    low, middle, high = plus(first, 1), plus(first, half(minus(last, first))), minus(last, 1)
    # Whether a comes before b, and so on, with a, b, c at the positions `low`, `middle`, `high`.
    ab, bc, ac = buffer.is_before(low, middle), buffer.is_before(middle, high), buffer.is_before(low, high)
    median_if_ab = pick(bc, middle, pick(ac, high, low))
    buffer.swap(first, pick(ab, median_if_ab, pick(ac, low, pick(bc, high, middle))))

    def scan(left: Extent, right: Extent) -> tuple[Scalar, list[ir.Value]]:
        left = _skip_while(buffer, left, 1, lambda i: buffer.is_before(i, first))
        right = _skip_while(buffer, minus(right, 1), -1, lambda i: buffer.is_before(first, i))
        return compare("slt", left, right), [left, right]

    def exchange(left: ir.Value, right: ir.Value) -> list[ir.Value]:
        buffer.swap(left, right)
        return [plus(left, 1), right]

    return buffer.while_loop([low, last], scan, exchange)[0]


def _skip_while(buffer: SortBuffer, start: Extent, step: int, condition: Callable[[ir.Value], Scalar]) -> ir.Value:
    """Returns the first position from `start` on, in steps of `step`, for which `condition` is false."""
    return buffer.while_loop([start], lambda i: (condition(i), [i]), lambda i: [plus(i, step)])[0]


def sort(buffer: SortBuffer, length: int) -> None:
    """Sorts the first `length` entries.

    For long rows, `buffer.tensors[2]` is a stack of the ranges that are not split yet, while the loop runs.
    """
    if length > MAX_INSERTION_SORT:
        buffer.tensors.append(filled(0, [_max_depth(length) + 2, 3], TensorDType.Int64))
        _push(buffer, 0, (0, length, _max_depth(length)))
        buffer.while_loop(
            [1], lambda size: (compare("sgt", size, 0), [size]), lambda size: [_split(buffer, minus(size, 1))]
        )
        buffer.tensors.pop()
    insertion_sort(buffer, 0, length)


def _split(buffer: SortBuffer, size: ir.Value) -> ir.Value:
    """Pops the last range off the stack, which has `size` ranges below it, and splits the range until it is short.

    Pushes the right parts. Returns the new number of ranges on the stack.
    """

    def is_long(first: Extent, last: Extent, depth: Extent, size: Extent) -> tuple[Scalar, list[Extent]]:
        condition = compare("sgt", minus(last, first), MAX_INSERTION_SORT) & compare("ne", depth, 0)
        return condition, [first, last, depth, size]

    def split(first: ir.Value, last: ir.Value, depth: ir.Value, size: ir.Value) -> list[ir.Value]:
        cut, remaining_depth = _partition(buffer, first, last), minus(depth, 1)
        _push(buffer, size, (cut, last, remaining_depth))
        return [first, cut, remaining_depth, plus(size, 1)]

    popped = [scalar_to_index(element(buffer.tensors[2], [size, position(i)], TensorDType.Int64)) for i in range(3)]
    first, last, _, size = buffer.while_loop([*popped, size], is_long, split)
    length = minus(last, first)

    def sort_by_heap() -> None:
        heap_select(buffer, first, last, last)
        _sort_heap(buffer, first, length)

    buffer.branch(compare("sgt", length, MAX_INSERTION_SORT), sort_by_heap)
    return size


def _push(buffer: SortBuffer, size: Extent, values: Sequence[Extent]) -> None:
    """Writes a range, as (first, last, remaining depth), to the stack of `size` ranges."""
    for i, value in enumerate(values):
        buffer.tensors[2] = insert(index_to_scalar(position(value)), [position(size), position(i)], buffer.tensors[2])


def quick_select(buffer: SortBuffer, k: int, length: int) -> None:
    """Moves entry `k` of the sorted order to position `k`, as ATen's `quick_select_template` does."""

    def is_long(left: Extent, right: Extent) -> tuple[Scalar, list[Extent]]:
        return compare("sgt", right, plus(left, 1)), [left, right]

    def narrow(left: ir.Value, right: ir.Value) -> list[ir.Value]:
        second = plus(left, 1)
        buffer.swap(plus(left, half(minus(right, left))), second)
        for i, j in ((second, right), (left, right), (second, left)):
            buffer.branch(buffer.is_before(j, i), partial(buffer.swap, i, j))
        i, j = _partition_from_both_ends(buffer, left, second, right)
        buffer.swap(left, j)
        return [pick(compare("sle", j, k), i, left), pick(compare("sge", j, k), minus(j, 1), right)]

    left, right = buffer.while_loop([0, length - 1], is_long, narrow)
    is_pair = compare("eq", right, plus(left, 1))
    buffer.branch(is_pair & buffer.is_before(pick(is_pair, right, left), left), lambda: buffer.swap(left, right))


def _partition_from_both_ends(buffer: SortBuffer, pivot: Extent, low: Extent, high: Extent) -> list[ir.Value]:
    """Exchanges entries on the wrong side of the pivot, from both ends. Returns the positions where both scans end."""

    def scan(i: ir.Value, j: ir.Value) -> tuple[Scalar, list[ir.Value]]:
        i = _skip_while(buffer, plus(i, 1), 1, lambda k: buffer.is_before(k, pivot))
        j = _skip_while(buffer, minus(j, 1), -1, lambda k: buffer.is_before(pivot, k))
        return compare("sge", j, i), [i, j]

    def exchange(i: ir.Value, j: ir.Value) -> list[ir.Value]:
        buffer.swap(i, j)
        return [i, j]

    return buffer.while_loop([low, high], scan, exchange)


def insertion_sort(buffer: SortBuffer, first: Extent, last: Extent) -> None:
    """Sorts the entries `first` to `last` - 1."""

    def insert_entry(i: Extent) -> None:
        """Inserts entry `i` into the sorted entries before it."""
        entry = buffer.get(i)

        def is_before_previous(j: Extent) -> tuple[Scalar, list[Extent]]:
            # No entry before `first` is read: at `first`, the position is clamped, and `has_previous` ends the loop.
            has_previous = compare("sgt", j, first)
            previous = pick(has_previous, minus(j, 1), first)
            return buffer.comes_before(entry[0], buffer.get(previous)[0]) & has_previous, [j]

        def shift(j: ir.Value) -> list[ir.Value]:
            buffer.put(j, buffer.get(minus(j, 1)))
            return [minus(j, 1)]

        buffer.put(buffer.while_loop([i], is_before_previous, shift)[0], entry)

    buffer.each(first, last, insert_entry)


def partial_sort(buffer: SortBuffer, middle: Extent, length: Extent) -> None:
    """Moves the first `middle` entries of the sorted order to the front, sorted. The other entries have any order."""
    heap_select(buffer, 0, middle, length)
    _sort_heap(buffer, 0, middle)


def _sort_heap(buffer: SortBuffer, first: Extent, length: Extent) -> None:
    """Sorts a heap of `length` entries that starts at `first`."""

    def pop(i: Extent) -> None:
        remaining = minus(length, i)
        _pop_heap(buffer, first, remaining, plus(first, remaining))

    buffer.each(1, length, pop)


def heap_select(buffer: SortBuffer, first: Extent, middle: Extent, last: Extent) -> None:
    """Moves those of the entries `first` to `last` - 1 that come first to the start of the range, as a heap.

    The heap ends before position `middle`.
    """
    length = minus(middle, first)
    parents = half(length)

    def sift_parent(i: Extent) -> None:
        parent = minus(minus(parents, 1), i)
        _adjust_heap(buffer, first, parent, length, buffer.get(plus(first, parent)))

    buffer.each(0, parents, sift_parent)
    buffer.each(
        middle, last, lambda i: buffer.branch(buffer.is_before(i, first), lambda: _pop_heap(buffer, first, length, i))
    )


def _pop_heap(buffer: SortBuffer, first: Extent, length: Extent, to: Extent) -> None:
    """Moves the top of a heap of `length` entries to position `to`, and the entry at `to` into the heap."""
    entry = buffer.get(to)
    buffer.put(to, buffer.get(first))
    _adjust_heap(buffer, first, 0, length, entry)


def _adjust_heap(buffer: SortBuffer, first: Extent, top: Extent, length: Extent, entry: Entry) -> None:
    """Moves the hole at `top` down to a leaf, then moves `entry` up from that leaf.

    Positions are relative to `first`.
    """

    def has_two_children(hole: Extent) -> tuple[Scalar, list[Extent]]:
        return compare("slt", hole, half(minus(length, 1))), [hole]

    def move_down(hole: ir.Value) -> list[ir.Value]:
        right = plus(plus(hole, hole), 2)
        left = minus(right, 1)
        child = pick(buffer.is_before(plus(first, right), plus(first, left)), left, right)
        buffer.put(plus(first, hole), buffer.get(plus(first, child)))
        return [child]

    (hole,) = buffer.while_loop([top], has_two_children, move_down)
    only_child = plus(plus(hole, hole), 1)

    def has_one_child(hole: Extent, child: Extent) -> tuple[Scalar, list[Extent]]:
        return compare("eq", plus(child, 1), length), [hole, child]

    def move_to_child(hole: ir.Value, child: ir.Value) -> list[ir.Value]:
        buffer.put(plus(first, hole), buffer.get(plus(first, child)))
        return [child, plus(plus(child, child), 1)]

    hole, _ = buffer.while_loop([hole, only_child], has_one_child, move_to_child)

    def parent_is_before(hole: Extent) -> tuple[Scalar, list[Extent]]:
        parent = pick(compare("sgt", hole, top), half(minus(hole, 1)), top)
        return buffer.comes_before(buffer.get(plus(first, parent))[0], entry[0]) & compare("sgt", hole, top), [hole]

    def move_up(hole: ir.Value) -> list[ir.Value]:
        parent = half(minus(hole, 1))
        buffer.put(plus(first, hole), buffer.get(plus(first, parent)))
        return [parent]

    (hole,) = buffer.while_loop([hole], parent_is_before, move_up)
    buffer.put(plus(first, hole), entry)
