"""Convolution of narrow elements as a matrix product of patches, which are copied, by packed weights.

A patch has the elements of the image that one output position reads, in the order of the weights. Patches of a chunk of
positions stay in the cache; they have the element type in which the product multiplies, so that instructions for narrow
elements, tiles and plain multiply-adds all read rows that are contiguous along K.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.passes.kernels.access import Loop, row_major_strides, subrange
from buddy.compiler.passes.kernels.blocking import GemmBlocking, choose_gemm_blocking
from buddy.compiler.passes.kernels.contraction import Contraction, byte_width
from buddy.compiler.passes.kernels.conv.shape import BLOCKS_TO_SHARE, Convolution
from buddy.compiler.passes.kernels.dot_instructions import TILE_ROWS
from buddy.compiler.passes.kernels.emit import Index, KernelEmitter, ceil_div, estimate_nanoseconds, round_up
from buddy.compiler.passes.kernels.epilogue import FinishedVector, KernelResults, ResultOffsets
from buddy.compiler.passes.kernels.gemm.dot import DotGemm, TileGemm
from buddy.compiler.passes.kernels.gemm.kernel import BlockedGemm
from buddy.compiler.passes.kernels.packing import ALIGNMENT, Panels
from buddy.compiler.support.target import CACHE_LINE, Target

# The share of the L2 cache for the patches of a chunk; the rest is for a panel of weights, the image and the results.
_L2_SHARE_OF_PATCHES = 0.5
# The least blocks of rows in a chunk, for which a panel of weights is read once.
_MIN_BLOCKS = 8
# Rows of patches with a distance of a multiple of this share few sets of the L1 cache.
_ALIASING_BYTES = 1024
# Products by tiles in the time of a multiply-add: per cycle, 512 of bfloat16, or 32 multiply-adds (two vectors of 16).
_TILE_RATE = 16
# A run of elements that is contiguous in the image is copied without a loop if it has at most this many vectors.
_MAX_UNROLLED_VECTORS = 16


@dataclass(frozen=True)
class PatchBlocking:
    """`positions` patches (a chunk) are copied, and then multiplied in blocks of `gemm`, which reads packed weights."""

    positions: int
    gemm: GemmBlocking

    @property
    def lanes(self) -> int:
        return self.gemm.lanes

    @property
    def products_per_step(self) -> int:
        """Returns the products of a lane in the time of a multiply-add of floats."""
        return _TILE_RATE if _on_tiles(self.gemm) else self.gemm.group

    def element(self, conv: Convolution) -> str:
        """Returns the element type of patches."""
        return self.gemm.instruction.element if self.gemm.instruction else conv.element

    def weight_element(self, conv: Convolution) -> str:
        """Returns the element type of packed weights: instructions widen them, if at all, when they are loaded."""
        return conv.input_element if self.gemm.instruction else conv.element

    def depth(self, conv: Convolution) -> int:
        """Returns the elements of a patch, with the zeros at its end."""
        return round_up(conv.depth, self.gemm.depth_multiple)

    def pitch(self, conv: Convolution) -> int:
        """Returns the elements from the start of a patch to the start of the next one."""
        depth, width = self.depth(conv), byte_width(self.element(conv))
        return depth + CACHE_LINE // width if depth * width % _ALIASING_BYTES == 0 else depth

    def describe(self) -> str:
        return f"{self.positions} patches, {self.gemm.rows}x{self.gemm.columns} register block" + (
            f", {self.gemm.dot}" if self.gemm.dot else ""
        )


def count_positions(conv: Convolution) -> int:
    """Returns the number of output positions of one group."""
    return math.prod(loop.size for loop in _position_loops(conv))


def _position_loops(conv: Convolution) -> tuple[Loop, ...]:
    return (*conv.images, conv.lines, conv.pixels)


def choose_patches(conv: Convolution, target: Target) -> PatchBlocking:
    """Returns the blocking of the product on `target`, and the chunk whose patches fill half of the L2 cache.

    Three or more chunks are rounded up to a multiple of `BLOCKS_TO_SHARE`, for threads.
    """
    total = count_positions(conv)
    gemm = choose_gemm_blocking(_product(conv, total, conv.depth, conv.depth), target, "packed")
    blocking = PatchBlocking(total, gemm)
    # The chunk is one iteration of the outer loop, and its patches need no other copy. Zeros at the end of a patch are
    # steps of K too.
    depth = gemm.depth if gemm.depth < conv.depth else blocking.depth(conv)
    gemm = replace(gemm, chunk=0, copies_a=False, depth=depth)
    blocking = replace(blocking, gemm=gemm)
    patch_bytes = blocking.pitch(conv) * byte_width(blocking.element(conv))
    smallest_chunk = _MIN_BLOCKS * gemm.rows if not _on_tiles(gemm) else 2 * gemm.rows
    largest_chunk = max(smallest_chunk, int(_L2_SHARE_OF_PATCHES * target.l2) // patch_bytes)
    chunks = ceil_div(total, largest_chunk)
    if chunks > 2:
        chunks = min(round_up(chunks, BLOCKS_TO_SHARE), max(chunks, total // smallest_chunk))
    positions = ceil_div(total, chunks * gemm.rows) * gemm.rows
    return replace(blocking, positions=min(positions, total))


def _on_tiles(gemm: GemmBlocking) -> bool:
    """True if the product is one of tiles of AMX."""
    return gemm.instruction is not None and gemm.instruction.on_tiles


def _product(conv: Convolution, rows: int, depth: int, pitch: int, element: str = "") -> Contraction:
    """Returns the product of `rows` patches, `pitch` elements apart, by the weights of one group, over `depth` steps.

    Factors have elements of type `element`, or else those of the convolution.
    """
    m = Loop(rows, (pitch, 0, 0), False, (0,), (True, False, True))
    n = replace(conv.n, dims=(1,), strides=(0, 1, conv.n.strides[2]), used=(False, True, True))
    k = Loop(depth, (1, 0, 0), True, (2,), (True, True, False))
    element = element or conv.input_element
    return Contraction(conv.element, (), m, n, (k,), False, (element, element), conv.element, conv.unsigned)


def patch_panels(conv: Convolution, blocking: PatchBlocking) -> Panels:
    """Returns the packing of the weights: [group..., panel, k / g, column, k % g].

    g is the number of products that the instruction adds to a sum, and 1 without an instruction.
    """
    gemm = blocking.gemm
    outer = tuple((loop.size, loop.strides[1]) for loop in conv.groups)
    ks = tuple((loop.size, loop.strides[1]) for loop in conv.k)
    return Panels(
        outer, (conv.n.size, conv.n.strides[1]), ks, gemm.columns, gemm.lanes, conv.unsigned[1], gemm.group,
        gemm.depth_multiple, blocking.weight_element(conv),
    )  # fmt: skip


class PositionResults(KernelResults):
    """The results of a chunk of positions, as rows that a product finishes; offsets begin with the number of the row.

    The distance between rows is not constant: an epilogue, for example, may write to the inside of a padded image. A
    row is therefore located when it is loaded or stored.
    """

    def __init__(self, results: KernelResults, conv: Convolution, group: Sequence[Index], first: Index) -> None:
        element = results.vector.element_type
        super().__init__(results.e, results.spec, results.flats, results.lanes, element, results.in_pairs)
        self._first, self._sizes = first, [loop.size for loop in _position_loops(conv)]
        self._group_loops = len(conv.groups)
        self._group_offsets = super().origin
        for loop, index in enumerate(group):
            self._group_offsets = super().advance(self._group_offsets, loop, index)

    @property
    def origin(self) -> ResultOffsets:
        return (self._first, *self._group_offsets)

    def advance(self, position: ResultOffsets, loop: int, index: Index) -> ResultOffsets:
        """Returns the offsets `index` rows (loop 0) or columns (loop 1) after `position`."""
        row, *offsets = position
        if loop == 0:
            return (self.e.add(row, index), *offsets)
        return (row, *super().advance(tuple(offsets), self._group_loops + len(self._sizes), index))

    def initial(self, position: ResultOffsets, column: int, active: int) -> ir.Value:
        return super().initial(self._locate(position), column, active)

    def finish(self, sums: ir.Value, position: ResultOffsets, column: int, active: int) -> None:
        super().finish(sums, self._locate(position), column, active)

    def finish_pair(self, first: FinishedVector, second: FinishedVector) -> None:
        def located(vector: FinishedVector) -> FinishedVector:
            sums, position, column, active = vector
            return sums, self._locate(position), column, active

        super().finish_pair(located(first), located(second))

    def _locate(self, position: ResultOffsets) -> ResultOffsets:
        """Returns the offsets in the buffers of the results of the row at `position`."""
        row, *group_offsets = position
        offsets = tuple(group_offsets)
        for loop, index in enumerate(self.e.digits(row, self._sizes), self._group_loops):
            offsets = super().advance(offsets, loop, index)
        return offsets


class PatchGemm:
    """Emits one convolution of the flat image `a` by the flat weights `b`, packed by `patch_panels`."""

    def __init__(
        self,
        e: KernelEmitter,
        a: ir.Value,
        b: ir.Value,
        results: KernelResults,
        conv: Convolution,
        blocking: PatchBlocking,
    ) -> None:
        self.e, self.a, self.b, self.results, self.conv, self.block = e, a, b, results, conv, blocking
        self.panels = patch_panels(conv, blocking)
        self.depth, self.pitch = blocking.depth(conv), blocking.pitch(conv)

    def emit(self) -> None:
        """Emits the chunks of all groups, which threads share."""
        e, conv, total = self.e, self.conv, count_positions(self.conv)
        sizes = [*(loop.size for loop in conv.groups), total]
        blocks = [*(1 for _ in conv.groups), self.block.positions]
        chunks = math.prod(sizes[:-1]) * ceil_div(total, self.block.positions)
        # With few chunks, threads share the copies and then the panels of each.
        work = estimate_nanoseconds(flop=conv.flops) if chunks >= BLOCKS_TO_SHARE else 0
        e.parallel_blocks(sizes, blocks, self._emit_chunk, work)

    def _emit_chunk(self, numbers: list[Index], active: list[int]) -> None:
        """Emits the positions of one chunk of one group."""
        e, conv, (*group, chunk) = self.e, self.conv, numbers
        rows, first = active[-1], e.mul(chunk, self.block.positions)
        element = ir.Type.parse(self.block.element(conv))
        size = max(TILE_ROWS, rows) * self.pitch  # tiles read `TILE_ROWS` rows even if fewer exist
        buffer = memref.alloc(ir.MemRefType.get([size], element), [], [], alignment=ALIGNMENT)
        start, weights = e.dot(group, [loop.strides[0] for loop in conv.groups]), self.b
        if group:
            elements = self.panels.count * self.panels.panel_elements
            weights = subrange(self.b, e.value(e.dot(group, self.panels.outer_strides)), elements)
        factor = "" if self.block.gemm.instruction else conv.element
        product = _product(conv, rows, self.depth, self.pitch, factor)
        results = PositionResults(self.results, conv, group, first)
        kernel = self._kernel_class(e, buffer, weights, results, product, self.block.gemm)

        def copy_patch(row: list[Index]) -> None:
            self._copy_patch(kernel, start, e.add(first, row[0]), buffer, e.mul(row[0], self.pitch))

        moved_bytes = 2 * rows * self.pitch * byte_width(self.block.element(conv))
        e.parallel([rows], copy_patch, estimate_nanoseconds(moved=moved_bytes))
        kernel.emit()
        memref.dealloc(buffer)

    @property
    def _kernel_class(self) -> type[BlockedGemm]:
        if _on_tiles(self.block.gemm):
            return TileGemm
        return DotGemm if self.block.gemm.instruction else BlockedGemm

    # ---- patches -----------------------------------------------------------------------------------------------------

    def _copy_patch(
        self, kernel: BlockedGemm, start: Index, position: Index, target: ir.Value, target_start: Index
    ) -> None:
        """Copies the patch of `position` from the image to `target`, in runs that are contiguous in the image.

        `start` is the offset of the group in the image, `target_start` that of the patch in `target`. Zeros follow the
        runs.
        """
        e = self.e
        positions = _position_loops(self.conv)
        indices = e.digits(position, [loop.size for loop in positions])
        start = e.dot(indices, [loop.strides[0] for loop in positions], start)
        # Without a reduction, a patch has one element.
        *outer, inner = self.conv.merged_k or (Loop(1, (1, 0, 0), True, (), (True, True, False)),)
        run = inner.size
        if inner.strides[0] != 1:
            outer, run = [*outer, inner], 1
        steps = row_major_strides([loop.size for loop in outer], run)

        def copy_run(indices: list[Index]) -> None:
            source = e.dot(indices, [loop.strides[0] for loop in outer], start)
            self._copy_run(kernel, source, target, e.dot(indices, steps, target_start), run)

        e.nest([loop.size for loop in outer], copy_run)
        filled = self.conv.depth
        while filled < self.depth:
            size = self._vector_size(self.depth - filled)
            zeros = e.zero(ir.VectorType.get([size], target.type.element_type))
            e.store(zeros, target, e.add(target_start, filled))
            filled += size

    def _copy_run(self, kernel: BlockedGemm, source: Index, target: ir.Value, target_start: Index, run: int) -> None:
        """Copies `run` contiguous elements in vectors, of which the last may overlap the one before it."""
        e, widest = self.e, self._vector_size(run)

        def copy(offset: Index, size: int) -> None:
            value = kernel.convert_a(e.load(self.a, e.add(source, offset), size))
            e.store(value, target, e.add(target_start, offset))

        def copy_widest(offset: Index) -> None:
            copy(offset, widest)

        end = run // widest * widest
        if end // widest > _MAX_UNROLLED_VECTORS:
            e.for_each(0, end, widest, copy_widest)
        else:
            for offset in range(0, end, widest):
                copy(offset, widest)
        if end < run:
            # The smallest power of two that covers the rest is at most `widest`, and therefore at most `run`.
            size = 1 << (run - end - 1).bit_length()
            copy(run - size, size)

    def _vector_size(self, elements: int) -> int:
        """Returns the largest power of two up to `elements`, and up to the elements of a vector of patches."""
        lanes = self.block.lanes * byte_width(self.conv.element) // byte_width(self.block.element(self.conv))
        return min(lanes, 1 << (elements.bit_length() - 1))
