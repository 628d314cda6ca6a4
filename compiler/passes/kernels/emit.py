"""Emits loop nests and vector accesses: index arithmetic that folds constants, parallel loops, masked tails."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from buddy.compiler.mlir.bindings import arith, ir, memref, scf, vector
from buddy.compiler.mlir.walk import LOOP_ANNOTATION
from buddy.compiler.support.target import BYTES_PER_NANOSECOND, FLOP_PER_NANOSECOND, MIN_PARALLEL_NANOSECONDS

Index = int | ir.Value  # an int if the value is known, else a value of type `index`
# The body of a loop: (index, carried values) -> the carried values for the next iteration.
Body = Callable[[Index, list[ir.Value]], Sequence[ir.Value]]


def estimate_nanoseconds(flop: float = 0, moved: float = 0) -> float:
    """Returns a rough time on one thread of a loop with `flop` operations that reads and writes `moved` bytes."""
    return max(flop / FLOP_PER_NANOSECOND, moved / BYTES_PER_NANOSECOND)


# A loop that carries at least this many values is not unrolled: they fill so many vector registers that LLVM, which
# mixes the steps of an unrolled loop, would keep some of them in memory. For Zen 4, LLVM unrolls loops up to 512 ops
# (its `LoopMicroOpBufferSize`).
_MIN_CARRIED_VALUES = 12
_NOT_UNROLLED = "#llvm.loop_annotation<unroll = <disable = true>>"


class KernelEmitter:
    """Emits ops at the current insertion point, and constants at the start of `entry`, where they dominate all uses.

    `in_parallel` means that the insertion point is inside a loop whose iterations threads share.
    """

    def __init__(self, entry: ir.Block, in_parallel: bool = False) -> None:
        self.entry = entry
        self._constants: dict[tuple[str, str], ir.Value] = {}
        self._in_parallel = in_parallel

    def constant(self, attribute: ir.Attribute) -> ir.Value:
        """Returns the value of `attribute` (a typed attribute), with one constant op per function."""
        key = (str(attribute), str(attribute.type))
        if key not in self._constants:
            with ir.InsertionPoint.at_block_begin(self.entry):
                self._constants[key] = arith.constant(attribute.type, attribute)
        return self._constants[key]

    def value(self, index: Index) -> ir.Value:
        """Returns `index` as an MLIR value."""
        if not isinstance(index, int):
            return index
        return self.constant(ir.IntegerAttr.get(ir.IndexType.get(), index))

    def add(self, left: Index, right: Index) -> Index:
        """Returns the sum, with an op only if an operand is unknown and none is 0."""
        if isinstance(left, int) and isinstance(right, int):
            return left + right
        if isinstance(left, int) and left == 0:
            return right
        if isinstance(right, int) and right == 0:
            return left
        return arith.addi(self.value(left), self.value(right))

    def mul(self, left: Index, factor: int) -> Index:
        """Returns the product, with an op only if `left` is unknown and `factor` is neither 0 nor 1."""
        if isinstance(left, int):
            return left * factor
        if factor in (0, 1):
            return left if factor else 0
        return arith.muli(left, self.value(factor))

    def subtract(self, left: Index, right: Index) -> Index:
        """Returns the difference, with an op only if an operand is unknown."""
        if isinstance(left, int) and isinstance(right, int):
            return left - right
        return arith.subi(self.value(left), self.value(right))

    def divide(self, number: Index, size: int) -> tuple[Index, Index]:
        """Returns quotient and remainder of `number`, which is not negative, and `size`."""
        if isinstance(number, int):
            return divmod(number, size)
        if size == 1:
            return number, 0
        return arith.divui(number, self.value(size)), arith.remui(number, self.value(size))

    def digits(self, number: Index, sizes: Sequence[int]) -> list[Index]:
        """Returns the indices along dims of `sizes` of element `number` in row-major order, as `unravel_index` does."""
        digits: list[Index] = []
        for size in reversed(sizes[1:]):
            number, digit = self.divide(number, size)
            digits.insert(0, digit)
        return [number, *digits]

    def minimum(self, left: Index, right: Index) -> Index:
        """Returns the smaller of two indices that are not negative, with an op only if one is unknown."""
        if isinstance(left, int) and isinstance(right, int):
            return min(left, right)
        return arith.minui(self.value(left), self.value(right))

    def dot(self, indices: Sequence[Index], strides: Sequence[int], start: Index = 0) -> Index:
        """Returns `start + sum(index * stride)`."""
        for index, stride in zip(indices, strides, strict=True):
            start = self.add(start, self.mul(index, stride))
        return start

    def loop(
        self, lower: Index, upper: Index, step: int, body: Body, carried: Sequence[ir.Value] = ()
    ) -> list[ir.Value]:
        """Emits `scf.for` around `body(index, carried) -> carried`; returns the carried values after the loop.

        For at most one iteration, the body is emitted without a loop, or not at all. LLVM does not unroll a loop that
        carries many values.
        """
        if isinstance(lower, int) and isinstance(upper, int) and upper - lower <= step:
            return list(body(lower, list(carried))) if upper > lower else list(carried)
        op = scf.ForOp(self.value(lower), self.value(upper), self.value(step), list(carried))
        if len(carried) >= _MIN_CARRIED_VALUES:
            op.attributes[LOOP_ANNOTATION] = ir.Attribute.parse(_NOT_UNROLLED)
        with ir.InsertionPoint(op.body):
            scf.yield_(list(body(op.induction_variable, list(op.inner_iter_args))))
        return list(op.results)

    def for_each(self, lower: Index, upper: Index, step: int, body: Callable[[Index], None]) -> None:
        """Emits `scf.for` around `body(index)`, as `loop` does, without carried values."""

        def emit_iteration(index: Index, _: list[ir.Value]) -> Sequence[ir.Value]:
            body(index)
            return ()

        self.loop(lower, upper, step, emit_iteration)

    def when(self, pairs: Sequence[tuple[Index, Index]], body: Callable[[], None]) -> None:
        """Emits `body()` for the case that the first of each pair is less than the second.

        Pairs of ints are compared now; a branch is emitted for the others.
        """
        dynamic = [pair for pair in pairs if not all(isinstance(index, int) for index in pair)]
        if any(left >= right for left, right in pairs if isinstance(left, int) and isinstance(right, int)):
            return
        if not dynamic:
            body()
            return
        tests = [arith.cmpi(arith.CmpIPredicate.ult, self.value(left), self.value(right)) for left, right in dynamic]
        branch = scf.IfOp(functools.reduce(arith.andi, tests))
        with ir.InsertionPoint(branch.then_block):
            body()
            scf.yield_([])

    def nest(self, sizes: Sequence[Index], body: Callable[[list[Index]], None]) -> None:
        """Emits loops from 0 over each of `sizes`, the last one innermost, around `body(indices)`."""

        def emit_loops(indices: list[Index]) -> None:
            if len(indices) == len(sizes):
                body(indices)
                return

            def emit_iteration(index: Index) -> None:
                emit_loops([*indices, index])

            self.for_each(0, sizes[len(indices)], 1, emit_iteration)

        emit_loops([])

    def is_worth_sharing(self, work: float) -> bool:
        """True if threads may share a loop at the insertion point, and its `work` in nanoseconds is worth a fork."""
        return not self._in_parallel and work >= MIN_PARALLEL_NANOSECONDS

    def parallel(self, sizes: Sequence[int], body: Callable[[list[Index]], None], work: float) -> None:
        """Emits loops over `sizes` around `body(indices)`: an `scf.parallel` if `is_worth_sharing(work)`, or a `nest`.

        `work` is the time of the whole loop on one thread in nanoseconds (see `estimate_nanoseconds`). The body must
        not write to memory that another iteration reads or writes; buffers that it allocates are private to an
        iteration. Threads get equal runs of iterations in row-major order. For equal work, use many iterations, or a
        multiple of the number of threads, each with some microseconds of work.
        """
        non_unit_dims = [i for i, size in enumerate(sizes) if size != 1]
        if not self.is_worth_sharing(work) or math.prod(sizes) <= 1:
            self.nest(sizes, body)
            return
        # The constants are emitted in the order in which `nest` emits them, so that both emit the same ops.
        zero, first_bound, one = self.value(0), self.value(sizes[non_unit_dims[0]]), self.value(1)
        bounds = [first_bound, *(self.value(sizes[i]) for i in non_unit_dims[1:])]
        op = scf.ParallelOp([], [zero] * len(non_unit_dims), bounds, [one] * len(non_unit_dims), [])
        block = op.regions[0].blocks.append(*[ir.IndexType.get()] * len(non_unit_dims))
        indices: list[Index] = [0] * len(sizes)
        for i, argument in zip(non_unit_dims, block.arguments, strict=True):
            indices[i] = argument
        self._in_parallel = True
        with ir.InsertionPoint(block):
            body(indices)
            scf.ReduceOp([], 0)
        self._in_parallel = False

    def parallel_blocks(
        self, sizes: Sequence[int], blocks: Sequence[int], body: Callable[[list[Index], list[int]], None], work: float
    ) -> None:
        """Emits `parallel` over blocks of `blocks[d]` elements per dim `d`, around `body(numbers, active)`.

        `numbers[d]` is the number of the block along `d`. `active[d]`, an int, is its number of elements: `blocks[d]`,
        or less in the last block of a dim that does not divide evenly. The body is emitted for each combination of
        `active`, and branches select the combination of an iteration.
        """
        counts = [ceil_div(size, block) for size, block in zip(sizes, blocks, strict=True)]
        if not self.is_worth_sharing(work) or math.prod(counts) <= 1:
            self._nested_blocks(sizes, blocks, body)
        else:
            self.parallel(counts, lambda numbers: self._emit_block(sizes, blocks, numbers, body, []), work)

    def _nested_blocks(
        self, sizes: Sequence[int], blocks: Sequence[int], body: Callable[[list[Index], list[int]], None]
    ) -> None:
        """Emits `parallel_blocks` as sequential loops: along each dim, over whole blocks, and then the partial one."""

        def emit_loops(numbers: list[Index], active: list[int]) -> None:
            dim = len(numbers)
            if dim == len(sizes):
                body(numbers, active)
            else:
                for_blocks(self, sizes[dim], blocks[dim], lambda n, count: emit_loops([*numbers, n], [*active, count]))

        emit_loops([], [])

    def _emit_block(
        self, sizes: Sequence[int], blocks: Sequence[int], numbers: list[Index],
        body: Callable[[list[Index], list[int]], None], active: list[int],
    ) -> None:  # fmt: skip
        """Emits `body(numbers, active)` for the block `numbers` of `parallel_blocks`, in branches by its size.

        `active` has the sizes of the first dims, whose branches have been emitted.
        """
        dim = len(active)
        if dim == len(sizes):
            body(numbers, active)
            return
        full_blocks, remainder = divmod(sizes[dim], blocks[dim])
        if not full_blocks or not remainder:
            self._emit_block(sizes, blocks, numbers, body, [*active, blocks[dim] if full_blocks else remainder])
            return
        is_full = arith.cmpi(arith.CmpIPredicate.ult, self.value(numbers[dim]), self.value(full_blocks))
        branch = scf.IfOp(is_full, has_else=True)
        cases = ((branch.then_block, numbers[dim], blocks[dim]), (branch.else_block, full_blocks, remainder))
        for block, number, size in cases:
            with ir.InsertionPoint(block):
                self._emit_block(sizes, blocks, [*numbers[:dim], number, *numbers[dim + 1 :]], body, [*active, size])
                scf.yield_([])

    def zero(self, type_: ir.Type) -> ir.Value:
        """Returns zero of a scalar or vector type."""
        return self.splat(type_, 0)

    def splat(self, type_: ir.Type, number: float) -> ir.Value:
        """Returns the constant `number` as a scalar or in all lanes of a vector."""
        element = element_type(type_)
        is_float = isinstance(element, ir.FloatType)
        scalar = ir.FloatAttr.get(element, number) if is_float else ir.IntegerAttr.get(element, int(number))
        if isinstance(type_, ir.VectorType):
            return self.constant(ir.DenseElementsAttr.get_splat(type_, scalar))
        return self.constant(scalar)

    def mask(self, lanes: int, active: int) -> ir.Value:
        """Returns a mask whose first `active` lanes are set."""
        bits = ",".join("true" if lane < active else "false" for lane in range(lanes))
        return self.constant(ir.Attribute.parse(f"dense<[{bits}]> : vector<{lanes}xi1>"))

    def load(self, flat: ir.Value, offset: Index, lanes: int, active: int | None = None, fill: float = 0) -> ir.Value:
        """Loads `lanes` elements of the 1-D memref `flat` from `offset` on; lanes from `active` on are `fill`."""
        type_ = ir.VectorType.get([lanes], flat.type.element_type)
        indices = [self.value(offset)]
        if active is None or active >= lanes:
            return vector.load(type_, flat, indices)
        return vector.maskedload(type_, flat, indices, self.mask(lanes, active), self.splat(type_, fill))

    def store(self, value: ir.Value, flat: ir.Value, offset: Index, active: int | None = None) -> None:
        """Stores the first `active` lanes (`None`: all) of `value` to the 1-D memref `flat` from `offset` on.

        A part of a vector is stored in pieces of powers of two, since a store with a mask of elements of 8 or 16 bits
        takes some 50 cycles on AMD's Zen 4, and is a store for each lane without AVX-512.
        """
        lanes = value.type.shape[0]
        if active is None or active >= lanes:
            vector.store(value, flat, [self.value(offset)])
            return
        start = 0
        while start < active:
            size = 1 << ((active - start).bit_length() - 1)
            piece = vector.extract_strided_slice(
                ir.VectorType.get([size], value.type.element_type), value, [start], [size], [1]
            )
            vector.store(piece, flat, [self.value(self.add(offset, start))])
            start += size

    def load_strided(
        self, flat: ir.Value, start: Index, index: Index, stride: int, lanes: int, active: int | None = None
    ) -> ir.Value:
        """Loads the elements `index`, `index + 1`, … of a sequence that begins at offset `start` of `flat`.

        Neighbouring elements of the sequence are `stride` (1, 2 or -1) apart.
        """
        if stride == 2:
            return self.load_every_other(flat, self.add(start, self.mul(index, 2)), lanes, active)
        if stride == -1:
            return self.load_reversed(flat, self.add(start, self.mul(index, -1)), lanes, active)
        return self.load(flat, self.add(start, index), lanes, active)

    def load_every_other(self, flat: ir.Value, offset: Index, lanes: int, active: int | None = None) -> ir.Value:
        """Loads `lanes` elements of the 1-D memref `flat` with a stride of 2, from `offset` on.

        Lanes from `active` on are zeros. The elements between the first and the last are read too, and no others.
        """
        span = 2 * (lanes if active is None else active) - 1
        first = self.load(flat, offset, lanes, span)
        if span > lanes:
            second = self.load(flat, self.add(offset, lanes), lanes, span - lanes)
        else:
            second = self.zero(first.type)
        return vector.shuffle(first, second, list(range(0, 2 * lanes, 2)))

    def load_reversed(self, flat: ir.Value, offset: Index, lanes: int, active: int | None = None) -> ir.Value:
        """Loads the element of the 1-D memref `flat` at `offset`, and those before it, the last one first.

        Lanes from `active` on are zeros; elements for them are not read.
        """
        count = min(lanes, lanes if active is None else active)
        ascending = self.load(flat, self.add(offset, 1 - count), lanes, active)
        return vector.shuffle(ascending, ascending, [(count - 1 - lane) % lanes for lane in range(lanes)])

    def store_every_other(self, value: ir.Value, flat: ir.Value, offset: Index, active: int | None = None) -> None:
        """Stores the first `active` lanes (`None`: all) of `value` with a stride of 2, from `offset` on.

        The elements between them are unchanged.
        """
        lanes = value.type.shape[0]
        span = 2 * (lanes if active is None else active) - 1
        for start in range(0, min(span, 2 * lanes), lanes):
            doubled = vector.shuffle(value, value, [(start + lane) // 2 for lane in range(lanes)])
            bits = ",".join("true" if lane % 2 == 0 and start + lane < span else "false" for lane in range(lanes))
            mask = self.constant(ir.Attribute.parse(f"dense<[{bits}]> : vector<{lanes}xi1>"))
            vector.maskedstore(flat, [self.value(self.add(offset, start))], mask, doubled)

    def load_scalar(self, flat: ir.Value, offset: Index) -> ir.Value:
        """Loads the element of the 1-D memref `flat` at `offset`."""
        return memref.load(flat, [self.value(offset)])

    def store_scalar(self, value: ir.Value, flat: ir.Value, offset: Index) -> None:
        """Stores one element into the 1-D memref `flat` at `offset`."""
        memref.store(value, flat, [self.value(offset)])


def reduce_lanes(value: ir.Value, join: Callable[[ir.Value, ir.Value], ir.Value]) -> ir.Value:
    """Reduces the lanes of a vector to a scalar: `join` combines the halves of the vector repeatedly.

    The number of lanes is a power of two.
    """
    lanes = value.type.shape[0]
    while lanes > 1:
        lanes //= 2
        half = ir.VectorType.get([lanes], value.type.element_type)
        value = join(*(vector.extract_strided_slice(half, value, [start], [lanes], [1]) for start in (0, lanes)))
    return vector.extract(value, [], [0])


def ceil_div(number: int, divisor: int) -> int:
    """Returns `number / divisor`, rounded up."""
    return -(-number // divisor)


def round_up(number: int, multiple: int) -> int:
    """Returns the least multiple of `multiple` that is not less than `number`."""
    return ceil_div(number, multiple) * multiple


def block_counts(size: int, block: int) -> list[tuple[int, int]]:
    """Returns (block size, count) of the whole blocks of `size` elements, and of the partial one after them."""
    full, remainder = divmod(size, block)
    return [pair for pair in ((block, full), (remainder, 1)) if pair[0] and pair[1]]


def for_blocks(e: KernelEmitter, size: int, block: int, body: Callable[[Index, int], None]) -> None:
    """Emits `body(number, active)` for each block of `size` elements.

    `active` is the number of elements in the block: `block`, or less in the last one.
    """
    first = 0
    for active, count in block_counts(size, block):

        def emit_block(number: Index, active: int = active) -> None:
            body(number, active)

        e.for_each(first, first + count, 1, emit_block)
        first += count


def with_element_type(type_: ir.Type, element: ir.Type) -> ir.Type:
    """Returns the scalar or vector type `type_` with elements of type `element`."""
    return ir.VectorType.get(list(type_.shape), element) if isinstance(type_, ir.VectorType) else element


def element_type(type_: ir.Type) -> ir.Type:
    """Returns the element type of a vector, or `type_` itself for a scalar."""
    return type_.element_type if isinstance(type_, ir.VectorType) else type_
