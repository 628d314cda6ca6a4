"""Selections and unstable sorts that use the same steps as PyTorch's kernels.

The algorithms are libstdc++'s `nth_element`, `partial_sort` and `sort` (GCC 13, bits/stl_algo.h and bits/stl_heap.h),
and ATen's quickselect (native/Sorting.cpp). Ranges include `first` and exclude `last`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops.loops import (
    LoopState,
    compare,
    element,
    half,
    index_of,
    index_position,
    insert,
    minus,
    pick,
    plus,
    position,
)
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.structured import filled

Entry = tuple[Scalar, Scalar]
# True if the first of two keys must come before the second.
Order = Callable[[Scalar, Scalar], Scalar]


class SortBuffer(LoopState):
    """Row `row` of two loop-carried tensors [rows, n]: keys of `dtype` and their positions (i64).

    Algorithms may append further tensors.
    """

    def __init__(self, tensors: Sequence[Any], row: Any, dtype: TensorDType, order: Order) -> None:
        super().__init__(tensors)
        self.row, self.dtype, self.order = row, dtype, order

    def get(self, i: Any) -> Entry:
        at = [self.row, position(i)]
        return element(self.tensors[0], at, self.dtype), element(self.tensors[1], at, TensorDType.Int64)

    def put(self, i: Any, entry: Entry) -> None:
        at = [self.row, position(i)]
        self.tensors[:2] = [insert(x, at, tensor) for x, tensor in zip(entry, self.tensors[:2], strict=True)]

    def swap(self, i: Any, j: Any) -> None:
        left, right = self.get(i), self.get(j)
        self.put(i, right)
        self.put(j, left)

    def before(self, i: Any, j: Any) -> Scalar:
        """True if the key at `i` must come before the key at `j`."""
        return self.order(self.get(i)[0], self.get(j)[0])


# libstdc++ uses insertion sort for ranges up to these lengths in `sort` and `nth_element`.
SHORT_SORT, SHORT_SELECTION = 16, 3


def nth_element(line: SortBuffer, nth: Any, length: int) -> None:
    """Moves the entry that belongs at `nth` in sorted order there, and no larger entry before it."""

    def long(first: Any, last: Any, depth: Any) -> Any:
        return compare("sgt", minus(last, first), SHORT_SELECTION) & compare("ne", depth, 0), [first, last, depth]

    def narrow(first: Any, last: Any, depth: Any) -> list[Any]:
        cut = _partition(line, first, last)
        right = compare("sle", cut, nth)
        return [pick(right, cut, first), pick(right, last, cut), minus(depth, 1)]

    first, last, _ = line.repeat([0, length, _depth(length)], long, narrow)

    def by_heap() -> None:
        heap_select(line, first, plus(nth, 1), last)
        line.swap(first, nth)

    unfinished = compare("sgt", minus(last, first), SHORT_SELECTION)
    line.choose(unfinished, by_heap, lambda: insertion_sort(line, first, last))


def _depth(length: int) -> int:
    """Returns the number of partitions after which libstdc++ uses a heap: 2 * floor(log2(length))."""
    return 2 * (length.bit_length() - 1)


def _partition(line: SortBuffer, first: Any, last: Any) -> Any:
    """Partitions around the median of three entries, which moves to `first`. Returns the start of the second part."""
    low, middle, high = plus(first, 1), plus(first, half(minus(last, first))), minus(last, 1)
    ab, bc, ac = line.before(low, middle), line.before(middle, high), line.before(low, high)
    rising = pick(bc, middle, pick(ac, high, low))
    line.swap(first, pick(ab, rising, pick(ac, low, pick(bc, high, middle))))

    def meet(left: Any, right: Any) -> Any:
        left = _skip(line, left, 1, lambda i: line.before(i, first))
        right = _skip(line, minus(right, 1), -1, lambda i: line.before(first, i))
        return compare("slt", left, right), [left, right]

    def exchange(left: Any, right: Any) -> list[Any]:
        line.swap(left, right)
        return [plus(left, 1), right]

    return line.repeat([low, last], meet, exchange)[0]


def _skip(line: SortBuffer, start: Any, step: int, while_: Any) -> Any:
    """Returns the first position from `start` on, in steps of `step`, where `while_` does not hold."""
    return line.repeat([start], lambda i: (while_(i), [i]), lambda i: [plus(i, step)])[0]


def sort(line: SortBuffer, length: int) -> None:
    """Sorts the first `length` entries; a third tensor of the buffer is a stack of ranges that are not yet split."""
    if length > SHORT_SORT:
        line.tensors.append(filled(0, [_depth(length) + 2, 3], TensorDType.Int64))
        _push(line, 0, (0, length, _depth(length)))
        line.repeat([1], lambda size: (compare("sgt", size, 0), [size]), lambda size: [_split(line, minus(size, 1))])
        line.tensors.pop()
    insertion_sort(line, 0, length)


def _split(line: SortBuffer, size: Any) -> Any:
    """Pops the range at `size` off the stack and splits it until it is short; pushes the right parts.

    Returns the size of the stack.
    """

    def long(first: Any, last: Any, depth: Any, size: Any) -> Any:
        return compare("sgt", minus(last, first), SHORT_SORT) & compare("ne", depth, 0), [first, last, depth, size]

    def split(first: Any, last: Any, depth: Any, size: Any) -> list[Any]:
        cut, left = _partition(line, first, last), minus(depth, 1)
        _push(line, size, (cut, last, left))
        return [first, cut, left, plus(size, 1)]

    start = [index_position(element(line.tensors[2], [size, position(i)], TensorDType.Int64)) for i in range(3)]
    first, last, _, size = line.repeat([*start, size], long, split)
    length = minus(last, first)

    def by_heap() -> None:
        heap_select(line, first, last, last)
        _sort_heap(line, first, length)

    line.choose(compare("sgt", length, SHORT_SORT), by_heap)
    return size


def _push(line: SortBuffer, size: Any, values: Sequence[Any]) -> None:
    for i, value in enumerate(values):
        line.tensors[2] = insert(index_of(position(value)), [position(size), position(i)], line.tensors[2])


def quick_select(line: SortBuffer, k: int, length: int) -> None:
    """Moves the entry that belongs at `k` in sorted order there, as ATen's `quick_select_template` does."""

    def long(left: Any, right: Any) -> Any:
        return compare("sgt", right, plus(left, 1)), [left, right]

    def narrow(left: Any, right: Any) -> list[Any]:
        second = plus(left, 1)
        line.swap(plus(left, half(minus(right, left))), second)
        for i, j in ((second, right), (left, right), (second, left)):
            line.choose(line.before(j, i), partial(line.swap, i, j))
        i, j = _partition_from_both_ends(line, left, second, right)
        line.swap(left, j)
        return [pick(compare("sle", j, k), i, left), pick(compare("sge", j, k), minus(j, 1), right)]

    left, right = line.repeat([0, length - 1], long, narrow)
    pair = compare("eq", right, plus(left, 1))
    line.choose(pair & line.before(pick(pair, right, left), left), lambda: line.swap(left, right))


def _partition_from_both_ends(line: SortBuffer, pivot: Any, low: Any, high: Any) -> list[Any]:
    """Exchanges entries on the wrong side of the pivot, from both ends; returns where the two scans meet."""

    def scan(i: Any, j: Any) -> Any:
        i = _skip(line, plus(i, 1), 1, lambda at: line.before(at, pivot))
        j = _skip(line, minus(j, 1), -1, lambda at: line.before(pivot, at))
        return compare("sge", j, i), [i, j]

    def exchange(i: Any, j: Any) -> list[Any]:
        line.swap(i, j)
        return [i, j]

    return line.repeat([low, high], scan, exchange)


def insertion_sort(line: SortBuffer, first: Any, last: Any) -> None:
    def settle(i: Any) -> None:
        moved = line.get(i)

        def behind(j: Any) -> Any:
            # No entry before `first` is read: at `first`, the position is clamped, and `inside` ends the loop.
            previous = pick(compare("sgt", j, first), minus(j, 1), first)
            inside = compare("sgt", j, first)
            return line.order(moved[0], line.get(previous)[0]) & inside, [j]

        def shift(j: Any) -> list[Any]:
            line.put(j, line.get(minus(j, 1)))
            return [minus(j, 1)]

        line.put(line.repeat([i], behind, shift)[0], moved)

    line.each(first, last, settle)


def partial_sort(line: SortBuffer, middle: Any, length: Any) -> None:
    """Moves the first `middle` entries in sorted order to the front, sorted; the order of the others is the heap's."""
    heap_select(line, 0, middle, length)
    _sort_heap(line, 0, middle)


def _sort_heap(line: SortBuffer, first: Any, length: Any) -> None:
    def pop(i: Any) -> None:
        left = minus(length, i)
        _pop_heap(line, first, left, plus(first, left))

    line.each(1, length, pop)


def heap_select(line: SortBuffer, first: Any, middle: Any, last: Any) -> None:
    length = minus(middle, first)
    parents = half(length)

    def settle(i: Any) -> None:
        parent = minus(minus(parents, 1), i)
        _adjust_heap(line, first, parent, length, line.get(plus(first, parent)))

    line.each(0, parents, settle)
    line.each(middle, last, lambda i: line.choose(line.before(i, first), lambda: _pop_heap(line, first, length, i)))


def _pop_heap(line: SortBuffer, first: Any, length: Any, to: Any) -> None:
    """Moves the top of a heap of `length` entries to `to`, and the entry there into the heap."""
    moved = line.get(to)
    line.put(to, line.get(first))
    _adjust_heap(line, first, 0, length, moved)


def _adjust_heap(line: SortBuffer, first: Any, top: Any, length: Any, moved: Entry) -> None:
    """Sifts the hole at `top` down to a leaf, then sifts `moved` up from there."""

    def has_two(hole: Any) -> Any:
        return compare("slt", hole, half(minus(length, 1))), [hole]

    def pull(hole: Any) -> list[Any]:
        right = plus(plus(hole, hole), 2)
        left = minus(right, 1)
        child = pick(line.before(plus(first, right), plus(first, left)), left, right)
        line.put(plus(first, hole), line.get(plus(first, child)))
        return [child]

    (hole,) = line.repeat([top], has_two, pull)
    only = plus(plus(hole, hole), 1)

    def has_one(hole: Any, child: Any) -> Any:
        return compare("eq", plus(child, 1), length), [hole, child]

    def pull_one(hole: Any, child: Any) -> list[Any]:
        line.put(plus(first, hole), line.get(plus(first, child)))
        return [child, plus(plus(child, child), 1)]

    hole, _ = line.repeat([hole, only], has_one, pull_one)

    def rises(hole: Any) -> Any:
        above = pick(compare("sgt", hole, top), half(minus(hole, 1)), top)
        return line.order(line.get(plus(first, above))[0], moved[0]) & compare("sgt", hole, top), [hole]

    def sink(hole: Any) -> list[Any]:
        parent = half(minus(hole, 1))
        line.put(plus(first, hole), line.get(plus(first, parent)))
        return [parent]

    (hole,) = line.repeat([hole], rises, sink)
    line.put(plus(first, hole), moved)
