"""Kernels for few rows of f32 and weights of 8 or 4 bits, which are read once: products of bytes, exact sums.

A row of activations becomes 24-bit fixed point with one scale, as three signed bytes (digits):
    x = scale * (65536 * high + 256 * mid + low)
A product of a digit and a weight is one of bytes, and sums of 32 bits are exact, so that weights need no conversion.
The error of an activation is at most 2^-24 of the largest magnitude in its row, which is that of a sum in f32. Weights
are stored as unsigned integers, larger by an offset: what this adds to a sum, the offset times the sum of the row's
digits (a "correction"), is subtracted again.

A row of activations with infinity or NaN has NaN in all of its results.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from buddy.compiler.mlir.bindings import arith, func, ir, llvm, memref, vector
from buddy.compiler.passes.kernels.access import Loop, UnsupportedError, layout_of, loop_sizes, loops_of, merge_loops
from buddy.compiler.passes.kernels.blocking import GemmBlocking
from buddy.compiler.passes.kernels.calls import kernel_body
from buddy.compiler.passes.kernels.contraction import Contraction, emit_add, indexing_maps, is_pair
from buddy.compiler.passes.kernels.dot_instructions import VPDPBUSD, VPMADDWD, WORD_BYTES, as_elements, as_words
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, reduce_lanes, round_up
from buddy.compiler.passes.kernels.epilogue import KernelResults, ResultSpec
from buddy.compiler.passes.kernels.gemm.few_rows import GemmKernel
from buddy.compiler.passes.kernels.packing import ALIGNMENT, Panels
from buddy.compiler.support.target import CACHE_LINE, Target

# With at most this many rows of activations, the time is that of reading the weights.
MAX_ROWS = 4
# Sums of products of bytes with 255 fit into 32 bits up to this many.
_MAX_DEPTH = 1 << 15
# The digits of an activation. The largest one becomes `_LARGEST`: what three signed bytes hold, less a margin for
# rounding.
_DIGITS = 3
_LARGEST = 127 * (1 << 16) + 127 * (1 << 8) + 127 - 128
# Smaller magnitudes count as zero: their inverse overflows.
_SMALLEST = 1e-30
# The sums of two products of a digit and an unsigned 4-bit integer, each at most 2 * 15 * 128, that fit into 16 bits
# when they are added.
_STEPS_IN_16_BITS = 8
# Bytes from a load of weights to the ones that are prefetched: processors prefetch within a page of 4 KiB.
_PREFETCH_BYTES = 2048

_MULTIPLY_BYTES = {32: "llvm.x86.avx2.pmadd.ub.sw", 64: "llvm.x86.avx512.pmaddubs.w.512"}
_ADD_PAIRS = {32: "llvm.x86.avx2.pmadd.wd", 64: "llvm.x86.avx512.pmaddw.d.512"}


@dataclass(frozen=True)
class BytePanels:
    """The packing of integers of `bits` (8 or 4) as unsigned integers, larger by half of their range.

    A word has the integers of one column for 4 steps of K, a byte each. With 4 bits, two words share one: the first has
    the low halves of its bytes, the second the high halves. `panels` are those of 8 bits, in groups of words.
    """

    panels: Panels
    bits: int
    element: str = ""

    @property
    def shape(self) -> tuple[int, ...]:
        *outer, steps, columns, group = self.panels.shape
        return (*outer, steps * self.bits // 8, columns, group)

    def emit_packing(self, e: KernelEmitter, source: ir.Value, target: ir.Value) -> None:
        """Emits the packing from the flat `source` to the flat `target`. A row of a panel has one word per column."""
        panels, byte = self.panels, target.type.element_type
        row_bytes, rows = panels.columns * WORD_BYTES, panels.count * panels.depth // WORD_BYTES
        lanes = panels.lanes * WORD_BYTES
        type_ = ir.VectorType.get([lanes], byte)
        if self.bits == 8:
            panels.emit_packing(e, source, target)

            def add_offset(start: Index) -> None:
                # A signed byte with its highest bit inverted, read as unsigned, is larger by 128.
                e.store(arith.xori(e.load(target, start, lanes), e.splat(type_, -128)), target, start)

            e.for_each(0, rows * row_bytes, lanes, add_offset)
            return
        unpacked = memref.alloc(ir.MemRefType.get([rows * row_bytes], byte), [], [], alignment=ALIGNMENT)
        panels.emit_packing(e, source, unpacked)
        offset, four = e.splat(type_, 8), e.splat(type_, 4)

        def pack_rows(pair: Index) -> None:
            for column in range(0, row_bytes, lanes):
                starts = [e.add(e.mul(pair, 2 * row_bytes), i * row_bytes + column) for i in range(2)]
                low, high = (arith.addi(e.load(unpacked, start, lanes), offset) for start in starts)
                low = arith.andi(low, e.splat(type_, 15))
                e.store(arith.ori(low, arith.shli(high, four)), target, e.add(e.mul(pair, row_bytes), column))

        e.for_each(0, rows // 2, 1, pack_rows)
        memref.dealloc(unpacked)


def packing_of(contraction: Contraction, blocking: GemmBlocking, bits: int) -> BytePanels:
    """Returns the packing of the weights that the kernel of `contraction` reads."""
    c, (k,) = contraction, contraction.k
    extents = (c.n.size, c.n.strides[1]), ((k.size, k.strides[1]),)
    return BytePanels(
        Panels((), *extents, blocking.columns, blocking.lanes, group=WORD_BYTES, multiple=WORD_BYTES), bits
    )


def fixed_point_blocking(contraction: Contraction, target: Target, bits: int = 8) -> GemmBlocking | None:
    """Returns the blocking for few rows of f32 and integers of `bits`; `None` if plain conversions are as fast."""
    c = contraction
    is_supported = c.input_elements == ("f32", "i8") and c.element == "f32" and not c.unsigned[1]
    has_few_rows = 0 < c.m.size <= MAX_ROWS and not c.outer and len(c.k) == 1 and c.n.size > 0
    if not (is_supported and has_few_rows) or not 0 < c.depth <= _MAX_DEPTH or c.k[0].strides[0] != 1:
        return None
    if VPDPBUSD.name in target.dot_instructions:
        instruction = VPDPBUSD.name
    elif bits == 4 and VPMADDWD.name in target.dot_instructions:
        instruction = "vpmaddubsw"
    else:
        return None
    # All sums stay in registers: one for each digit, row and vector, beside weights and digits.
    sums = target.vector_registers * 3 // 8 if instruction == VPDPBUSD.name else target.vector_registers // 2
    lanes = target.lanes(WORD_BYTES)
    vectors = max(1, min(4, sums // (_DIGITS * c.m.size), ceil_div(c.n.size, lanes)))
    return GemmBlocking(
        c.m.size, vectors, lanes, c.depth, "packed", dot=instruction, fixed_point=True,
        prefetches=target.prefetches_streams,
    )  # fmt: skip


class FixedPointRows(GemmKernel):
    """Reads panels of bytes once, and multiplies them with the digits of all rows of A.

    `scales`, a flat memref, has a factor for each group of `group_size` weights along K, in panels like the weights;
    the weights then have 4 bits.
    """

    def __init__(
        self, e: KernelEmitter, a: ir.Value, b: ir.Value, results: KernelResults, contraction: Contraction,
        blocking: GemmBlocking, scales: Any = None, group_size: int = 0,
    ) -> None:  # fmt: skip
        super().__init__(e, a, b, results, contraction, blocking)
        self.scales, self.bits = scales, 4 if group_size else 8
        self.group_size = group_size or round_up(contraction.depth, WORD_BYTES)
        self.groups = ceil_div(contraction.depth, self.group_size)
        self.i32 = ir.IntegerType.get_signless(32)
        self.i8 = ir.IntegerType.get_signless(8)
        self.int_vector = ir.VectorType.get([self.lanes], self.i32)
        # Bytes from one digit of a row to the next one: conversions store whole vectors.
        self.digit_bytes = round_up(contraction.depth, self.lanes) + CACHE_LINE

    def emit(self) -> None:
        """Emits the conversion of A, and then the products with each panel, which threads share."""
        rows = self.c.m.size
        # Of each row: the digits, the corrections of the sums of each digit and group, and the scale.
        self.digits = self._allocate(rows * _DIGITS * self.digit_bytes, self.i8)
        self.corrections = self._allocate(rows * self.groups * _DIGITS, self.i32)
        self.factors = self._allocate(rows, self.element)

        def convert_row(row: Index) -> None:
            self._convert_row(row)

        self.e.for_each(0, rows, 1, convert_row)
        self.e.parallel_blocks([self.c.n.size], [self.block.columns], self._emit_columns, self.work)
        for buffer in (self.digits, self.corrections, self.factors):
            memref.dealloc(buffer)

    @property
    def work(self) -> float:
        return super().work * self.bits / 8

    def _allocate(self, size: int, element: ir.Type) -> ir.Value:
        return memref.alloc(ir.MemRefType.get([size], element), [], [], alignment=ALIGNMENT)

    # ---- activations -------------------------------------------------------------------------------------------------

    def _convert_row(self, row: Index) -> None:
        """Emits the conversion of a row of A to digits; stores its scale, and the sums of digits times the offset."""
        e, start = self.e, self.e.mul(row, self.c.m.strides[0])
        largest_bits = self._largest_bits(start)
        largest = arith.bitcast(self.element, largest_bits)
        infinity = e.constant(ir.IntegerAttr.get(self.i32, 0x7F800000))
        is_finite = arith.cmpi(arith.CmpIPredicate.ult, largest_bits, infinity)
        is_large = arith.cmpf(arith.CmpFPredicate.OGT, largest, e.splat(self.element, _SMALLEST))
        limit = e.splat(self.element, _LARGEST)
        inverse = arith.select(is_large, arith.divf(limit, largest), e.zero(self.element))
        e.store_scalar(arith.divf(largest, limit), self.factors, row)
        inverse = vector.broadcast(self.vector, inverse)
        group_size = min(self.group_size, self.c.depth)

        def convert_group(group: Index) -> None:
            first = e.mul(group, group_size)

            def convert(k: Index, sums: list[ir.Value], active: int | None = None) -> Sequence[ir.Value]:
                step = e.add(first, k)
                numbers = e.load(self.a, e.add(start, step), self.lanes, active)
                numbers = arith.select(is_finite, arith.mulf(numbers, inverse), self.zero())
                digits = self._digits_of(self._rounded(numbers))
                for digit, value in enumerate(digits):
                    byte = arith.trunci(ir.VectorType.get([self.lanes], self.i8), value)
                    e.store(byte, self.digits, e.add(self._digit_row(row, digit), step))
                return [arith.addi(total, value) for total, value in zip(sums, digits, strict=True)]

            end = group_size // self.lanes * self.lanes
            sums = e.loop(0, end, self.lanes, convert, [e.zero(self.int_vector)] * _DIGITS)
            if end < group_size:
                sums = list(convert(end, sums, group_size - end))
            offset = e.constant(ir.IntegerAttr.get(self.i32, 1 << (self.bits - 1)))
            for digit, total in enumerate(sums):
                correction = arith.muli(reduce_lanes(total, emit_add), offset)
                e.store_scalar(correction, self.corrections, e.add(self._correction_start(row, group), digit))

        e.for_each(0, self.groups, 1, convert_group)

    def _largest_bits(self, start: Index) -> ir.Value:
        """Returns the bits of the largest magnitude of a row, as an integer: those of NaN are the largest."""
        e, depth, lanes = self.e, self.c.depth, self.lanes
        mask = e.splat(self.int_vector, 0x7FFFFFFF)

        def add_vector(k: Index, largest: list[ir.Value], active: int | None = None) -> Sequence[ir.Value]:
            bits = vector.bitcast(self.int_vector, e.load(self.a, e.add(start, k), lanes, active))
            return [arith.maxsi(largest[0], arith.andi(bits, mask))]

        end = depth // lanes * lanes
        largest = e.loop(0, end, lanes, add_vector, [e.zero(self.int_vector)])
        if end < depth:
            largest = list(add_vector(end, largest, depth - end))
        return reduce_lanes(largest[0], arith.maxsi)

    def _rounded(self, numbers: ir.Value) -> ir.Value:
        """Returns a vector of floats rounded to integers: half of one, with the sign of the number, is added first."""
        e = self.e
        sign = arith.andi(vector.bitcast(self.int_vector, numbers), e.splat(self.int_vector, -(1 << 31)))
        half = arith.ori(sign, vector.bitcast(self.int_vector, e.splat(self.vector, 0.5)))
        return arith.fptosi(self.int_vector, arith.addf(numbers, vector.bitcast(self.vector, half)))

    def _digits_of(self, numbers: ir.Value) -> list[ir.Value]:
        """Returns the digits of a vector of integers, the highest ones first."""
        shift_24, shift_8 = (self.e.splat(self.int_vector, count) for count in (24, 8))
        digits = list[ir.Value]()
        for _ in range(_DIGITS - 1):
            digits.insert(0, arith.shrsi(arith.shli(numbers, shift_24), shift_24))
            numbers = arith.shrsi(arith.subi(numbers, digits[0]), shift_8)
        return [numbers, *digits]

    def _digit_row(self, row: Index, digit: int) -> Index:
        """Returns the offset in `digits` of one digit of a row's activations."""
        return self.e.add(self.e.mul(row, _DIGITS * self.digit_bytes), digit * self.digit_bytes)

    def _correction_start(self, row: Index, group: Index) -> Index:
        """Returns the offset in `corrections` of the numbers for a row and a group: one for each digit."""
        return self.e.add(self.e.mul(row, self.groups * _DIGITS), self.e.mul(group, _DIGITS))

    # ---- products ----------------------------------------------------------------------------------------------------

    def _emit_columns(self, numbers: list[Index], active: list[int]) -> None:
        """Emits the results of all rows for the columns of one panel: group by group of K, one if there are no scales.

        `sums` are exact, in integers: for each row, vector of columns and digit. `totals` are floats, in units of the
        row's scale: for each row and vector.
        """
        e, rows, vectors, columns = self.e, self.c.m.size, self.block.vectors, self.block.columns
        (panel,) = numbers
        row_bytes = columns * WORD_BYTES
        words_per_word = 8 // self.bits  # words of 8-bit integers in a word of the panel
        steps = self.group_size // WORD_BYTES // words_per_word  # rows of the panel in a group
        panel_start = e.mul(panel, self.groups * steps * row_bytes)
        scale_start = e.mul(panel, self.groups * columns)

        def add_group(group: Index, totals: list[ir.Value]) -> list[ir.Value]:
            first_step = e.mul(group, steps)
            sums = self._group_sums(panel_start, first_step, steps)
            scales: list[ir.Value | None] = [None] * vectors
            if self.scales is not None:
                start = e.add(scale_start, e.mul(group, columns))
                scales = [e.load(self.scales, e.add(start, i * self.lanes), self.lanes) for i in range(vectors)]
            new_totals = []
            for number, total in enumerate(totals):
                row, i = divmod(number, vectors)
                value = self._float_sums(row, group, sums[number * _DIGITS : (number + 1) * _DIGITS])
                scale = scales[i]
                new_totals.append(arith.addf(total, value) if scale is None else vector.fma(value, scale, total))
            return new_totals

        totals = e.loop(0, self.groups, 1, add_group, [self.zero()] * (rows * vectors))
        start = self.result_offsets([], 0, e.mul(panel, columns))
        for row in range(rows):
            factor = vector.broadcast(self.vector, e.load_scalar(self.factors, row))
            offsets = self.results.advance(start, self.m_loop, row)
            for i in range(ceil_div(active[0], self.lanes)):
                column, remaining = i * self.lanes, active[0] - i * self.lanes
                total = arith.mulf(totals[row * vectors + i], factor)
                if self.results.has_initial_sums:
                    total = emit_add(self.results.initial(offsets, column, remaining), total)
                self.results.finish(total, offsets, column, remaining)

    def _float_sums(self, row: int, group: Index, sums: Sequence[ir.Value]) -> ir.Value:
        """Returns the sums of a group, as floats in units of the row's scale, from those of its digits."""
        e, start = self.e, self._correction_start(row, group)
        values = []
        for digit, total in enumerate(sums):
            correction = e.load_scalar(self.corrections, e.add(start, digit))
            exact = arith.subi(total, vector.broadcast(self.int_vector, correction))
            values.append(arith.sitofp(self.vector, exact))
        high, mid, low = values
        return vector.fma(high, e.splat(self.vector, 65536), vector.fma(mid, e.splat(self.vector, 256), low))

    def _group_sums(self, panel_start: Index, first_step: Index, steps: int) -> list[ir.Value]:
        """Returns the sums of the products of a group: by row, vector and digit."""
        zeros = [self.e.zero(self.int_vector)] * (self.c.m.size * self.block.vectors * _DIGITS)
        chunk, add_steps = 1, self._add_by_dots
        if self.block.dot != VPDPBUSD.name:
            # Each row of the panel has two words of a column, whose products are added in 16 bits.
            chunk = next(rows for rows in range(_STEPS_IN_16_BITS // 2, 0, -1) if steps % rows == 0)
            add_steps = self._add_by_pairs

        def emit_chunk(step: Index, sums: list[ir.Value]) -> list[ir.Value]:
            panel_row = self.e.add(first_step, step)
            if self.block.prefetches:
                self._prefetch(panel_start, panel_row, chunk)
            return add_steps(panel_start, panel_row, chunk, sums)

        return self.e.loop(0, steps, chunk, emit_chunk, zeros)

    def _prefetch(self, panel_start: Index, step: Index, count: int) -> None:
        """Prefetches as many weights as `count` steps read."""
        row_bytes = self.block.columns * WORD_BYTES
        offset = self.e.add(panel_start, self.e.mul(step, row_bytes))
        for start in range(0, count * row_bytes, CACHE_LINE):
            memref.prefetch(self.b, [self.e.value(self.e.add(offset, _PREFETCH_BYTES + start))], False, 3, True)

    def _weights(self, panel_start: Index, step: Index, vector_number: int) -> list[ir.Value]:
        """Returns the unsigned weights of one row of the panel: a vector of words, or two of them for 4 bits."""
        e, width = self.e, self.lanes * WORD_BYTES
        row = e.add(panel_start, e.mul(step, self.block.columns * WORD_BYTES))
        loaded = e.load(self.b, e.add(row, vector_number * width), width)
        if self.bits == 8:
            return [loaded]
        mask = e.splat(loaded.type, 15)
        shifted = arith.shrui(as_words(loaded, WORD_BYTES), e.splat(self.int_vector, 4))
        return [arith.andi(loaded, mask), arith.andi(as_elements(shifted, self.i8), mask)]

    def _broadcast_digits(self, row: int, digit: int, word: Index) -> ir.Value:
        """Returns four digits of a row, from step 4 * `word` of K on, in all lanes."""
        e = self.e
        offset = e.add(self._digit_row(row, digit), e.mul(word, WORD_BYTES))
        loaded = as_words(e.load(self.digits, offset, WORD_BYTES), WORD_BYTES)
        return as_elements(vector.broadcast(self.int_vector, vector.extract(loaded, [], [0])), self.i8)

    def _add_by_dots(self, panel_start: Index, step: Index, count: int, sums: list[ir.Value]) -> list[ir.Value]:
        """Returns `sums` plus the products of one row of the panel, by instructions that add four products each."""
        assert count == 1
        e, vectors = self.e, self.block.vectors
        weights = [self._weights(panel_start, step, i) for i in range(vectors)]
        new_sums = list(sums)
        for half in range(8 // self.bits):
            word = e.add(e.mul(step, 8 // self.bits), half)
            for row in range(self.c.m.size):
                for digit in range(_DIGITS):
                    digits = self._broadcast_digits(row, digit, word)
                    for i in range(vectors):
                        number = (row * vectors + i) * _DIGITS + digit
                        new_sums[number] = VPDPBUSD.emit(new_sums[number], weights[i][half], digits)
        return new_sums

    def _add_by_pairs(self, panel_start: Index, step: Index, count: int, sums: list[ir.Value]) -> list[ir.Value]:
        """Returns `sums` plus the products of `count` rows of the panel, which are added in 16 bits first."""
        e, vectors, width = self.e, self.block.vectors, self.lanes * WORD_BYTES
        pairs = ir.VectorType.get([2 * self.lanes], ir.IntegerType.get_signless(16))
        narrow_sums: list[ir.Value | None] = [None] * len(sums)
        for number_of_row in range(count):
            row_step = e.add(step, number_of_row)
            weights = [self._weights(panel_start, row_step, i) for i in range(vectors)]
            for half in range(2):
                word = e.add(e.mul(row_step, 2), half)
                for row in range(self.c.m.size):
                    for digit in range(_DIGITS):
                        digits = self._broadcast_digits(row, digit, word)
                        for i in range(vectors):
                            number = (row * vectors + i) * _DIGITS + digit
                            operands = [weights[i][half], digits]
                            product = llvm.call_intrinsic(pairs, _MULTIPLY_BYTES[width], operands, [], [])
                            narrow = narrow_sums[number]
                            narrow_sums[number] = product if narrow is None else arith.addi(narrow, product)
        ones, name = e.splat(pairs, 1), _ADD_PAIRS[width]
        wide = [llvm.call_intrinsic(self.int_vector, name, [value, ones], [], []) for value in narrow_sums]
        return [arith.addi(total, value) for total, value in zip(sums, wide, strict=True)]


# ---- scales of groups ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GroupedProduct:
    """A product of rows of f32 with 4-bit weights, which have a scale for each group along K and column.

    `contraction` is that of the rows (A) with the weights (B), over `groups` groups of `group_size` steps of K.
    `group_stride` and `column_stride` are the strides of the scales along groups and columns; `result_strides` are
    those of the result along rows and columns.
    """

    contraction: Contraction
    group_size: int
    groups: int
    group_stride: int
    column_stride: int
    result_strides: tuple[int, int]

    def scale_panels(self, blocking: GemmBlocking) -> Panels:
        """Returns the packing of the scales."""
        extents = (self.contraction.n.size, self.column_stride), ((self.groups, self.group_stride),)
        return Panels((), *extents, blocking.columns, blocking.lanes)


_GROUPED_BODY = ["arith.trunci", "arith.sitofp", "arith.mulf", "arith.mulf", "arith.addf", "linalg.yield"]


def is_grouped_product(op: ir.Operation) -> bool:
    """True if `op` adds products of f32, 4-bit integers in the low bits of bytes, and scales, as in `ops.precision`."""
    if op.name != "linalg.generic" or len(op.operands) != 4:
        return False
    if [str(value.type.element_type) for value in op.operands] != ["f32", "i8", "f32", "f32"]:
        return False
    block = op.regions[0].blocks[0]
    body = [inner.operation for inner in block.operations]
    if [inner.name for inner in body] != _GROUPED_BODY or str(body[0].result.type) != "i4":
        return False
    truncated, converted, weight, product, total, terminator = body
    activation, byte, scale, init = block.arguments
    return (
        truncated.operands[0] == byte
        and converted.operands[0] == truncated.result
        and is_pair(weight.operands, converted.result, scale)
        and is_pair(product.operands, activation, weight.result)
        and is_pair(total.operands, init, product.result)
        and terminator.operands[0] == total.result
    )


def analyse_grouped(op: ir.Operation) -> GroupedProduct:
    """Returns the product that `op` (on memrefs) computes. Raises `UnsupportedError` with the reason if none fits."""
    maps, layouts = indexing_maps(op), [layout_of(value.type) for value in op.operands]
    sizes = loop_sizes(maps[0].n_dims, maps, layouts)
    result_loops = {e.position for e in maps[3].results if isinstance(e, ir.AffineDimExpr)}
    loops = loops_of(sizes, [d not in result_loops for d in range(len(sizes))], maps, layouts)
    by_use = {use: [loop for loop in merge_loops(loops) if loop.used == use] for use in {loop.used for loop in loops}}
    # Which of rows, weights, scales and result a loop indexes.
    roles = {
        "rows": (True, False, False, True), "columns": (False, True, True, True),
        "groups": (True, True, True, False), "steps": (True, True, False, False),
    }  # fmt: skip
    if set(by_use) - set(roles.values()) or any(len(same_use) > 1 for same_use in by_use.values()):
        raise UnsupportedError("its loops are not rows, columns, groups and steps")
    rows, columns, groups, steps = (
        next(iter(by_use.get(use, [])), Loop(1, (0, 0, 0, 0), False, (), use)) for use in roles.values()
    )
    x_step, w_step = steps.strides[:2]
    if groups.size > 1 and groups.strides[:2] != (steps.size * x_step, steps.size * w_step):
        raise UnsupportedError("its groups are not contiguous")

    def loop_of(loop: Loop, is_reduction: bool = False) -> Loop:
        """Returns `loop` of the contraction: without the stride of the scales."""
        (x, w, _, result), (in_x, in_w, _, in_result) = loop.strides, loop.used
        return Loop(loop.size, (x, w, result), is_reduction, loop.dims, (in_x, in_w, in_result))

    k = replace(loop_of(steps, is_reduction=True), size=steps.size * groups.size)
    contraction = Contraction("f32", (), loop_of(rows), loop_of(columns), (k,), False, ("f32", "i8"), "f32")
    result_strides = rows.strides[3], columns.strides[3]
    return GroupedProduct(contraction, steps.size, groups.size, groups.strides[2], columns.strides[2], result_strides)


def grouped_function(
    name: str, types: Sequence[ir.Type], grouped: GroupedProduct, blocking: GemmBlocking, spec: ResultSpec
) -> func.FuncOp:
    """Emits a private function (rows, packed weights, packed scales, result); callers pass memrefs of `types`."""
    with kernel_body(name, types) as (function, e, operands):
        a, b, scales, *buffers = operands
        results = KernelResults(e, spec, buffers, blocking.lanes, ir.F32Type.get())
        FixedPointRows(e, a, b, results, grouped.contraction, blocking, scales, grouped.group_size).emit()
    return function
