"""Chooses the blocking of a contraction for a target: the register block, the panels of B, the blocks of K."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.contraction import Contraction, byte_width
from buddy.compiler.passes.kernels.dot_instructions import (
    INSTRUCTIONS,
    TILE_ROW_BYTES,
    TILE_ROWS,
    WORD_BYTES,
    DotInstruction,
)
from buddy.compiler.passes.kernels.emit import block_counts, ceil_div, round_up
from buddy.compiler.support.target import CACHE_WAYS, FMA_LATENCY, L2_VECTORS_PER_CYCLE, Target

# Where a kernel reads B: in place ("direct"); from one panel that it packs when needed ("panel"); from panels that were
# packed before its call ("packed"); in place along K, without register blocks ("dot"); in place as one stream of rows
# ("stream").
BSource = Literal["direct", "panel", "packed", "dot", "stream"]

# Vectors of columns in a register block.
_MAX_VECTORS = 8

# With at most this many rows, reading B takes most of the time. As one stream, B is read at memory bandwidth.
_FEW_ROWS = 4
# Rows of B that are read at the same time. Measured on a Zen 4 with 1, 2, 4, 8 and 16 rows, in memory and in caches:
# one row takes up to 1.7 times as long, since C is loaded and stored for each row; 16 rows are not faster than 8.
_STREAMED_ROWS = 8
# Rows of B with at least this many columns are divided among threads, into at most this many pieces of half as many
# columns at least.
_MIN_DIVIDED_ROW, _MAX_ROW_PIECES = 16384, 4
# Iterations that a kernel's outer loop should have, so that up to 16 threads get nearly equal shares.
_MIN_ITERATIONS = 32
_MIN_ITERATION_FLOP = 1 << 20  # an iteration should have at least this much work
# The minimum rows of C that should use a copied panel of B, and the minimum columns that should use copied rows of A:
# copying a vector takes as long as about five multiply-adds.
_MIN_PACKED_ROWS, _MIN_PACKED_COLUMNS = 96, 64
# The minimum size of an A that is copied because it is read across its rows, relative to the L2 cache. Measured on a
# Zen 4 with 1 MiB of L2, as G operations/s in place and copied: 512x64 (rows x steps of K) 104, 86; 1024x1024 106,
# 88; 3072x512 105, 97; 4096x512 102, 99; 8192x256 90, 97; 50257x256 73, 94.
_MIN_PACKED_A_PER_L2 = 8
# The minimum steps of the last of several loops of K for which sums are stored after each of its blocks.
_MIN_INNER_DEPTH = 512
# The minimum rows of C, some blocks of rows, for which sums of B's columns are computed before the blocks.
_MIN_ROWS_OF_SHARED_SUMS = 24
# Half vectors leave fewer lanes without a column. They are used if their estimated time is less than this share of the
# time of whole vectors.
_MAX_SHARE_OF_HALVES = 0.85
# The next five are estimates without a measurement.
# The minimum rows of C in an iteration that packs its panel of B. More rows use each copied element more often; fewer
# rows give more iterations, which threads share.
_MIN_ROWS_OF_PANEL = 256
# The least limit of the steps of K per block. Longer blocks load and store the sums less often; shorter ones make
# panels that fit into a smaller cache.
_MIN_DEPTH_LIMIT = 256
# The maximum steps of K with which B is read in place. With fewer steps, a packed panel of B is used for too few
# multiply-adds to pay for its copy; with more steps, rows of B that lie far apart evict each other from the caches.
_MAX_DEPTH_IN_PLACE = 256
# The share of the L2 cache that a panel of B fills. A larger share makes blocks of K longer, whose sums are stored less
# often; a smaller share leaves more space for rows of A and C, which the panel would evict.
_PANEL_SHARE_OF_L2 = 0.6
# The maximum size of a B that is read in place, relative to the L2 cache. What exceeds L2 is read from the L3 cache,
# more slowly than from a packed panel; a copy to panels costs a load and a store per vector.
_MAX_B_PER_L2 = 2.5
# The minimum vectors of columns of C for which A is copied as wider elements.
_MIN_COPIED_COLUMNS = 4


@dataclass(frozen=True)
class GemmBlocking:
    """How a kernel computes C: `rows` x `vectors * lanes` elements stay in registers over `depth` steps of K.

    If B is read as a stream, `depth` of its rows are read at once instead, over `vectors * lanes` columns.
    """

    rows: int
    vectors: int
    lanes: int
    depth: int
    b_source: BSource
    chunk: int = 0  # rows of C in an iteration of the outer loop, which threads share; 0: all rows
    packs_a: bool = False  # the kernel copies the rows of A of a chunk, and multiplies them with `strip` columns of B
    strip: int = 0
    dot: str = ""  # the instruction that multiplies groups of narrow elements, with B in panels; "": multiply-adds
    copies_a: bool = False  # the kernel copies all of A first, with rows contiguous along K
    fixed_point: bool = False  # rows of f32 are converted to bytes, as in `gemm.fixed_point`
    prefetches: bool = False  # the fixed-point kernel prefetches B
    # An instruction that needs the sums of B's columns gets them once per iteration, not once per block of rows.
    shares_column_sums: bool = False

    @property
    def instruction(self) -> DotInstruction | None:
        """Returns the instruction that `dot` names, or `None`."""
        return INSTRUCTIONS.get(self.dot)

    @property
    def group(self) -> int:
        """Returns the number of steps of K that one step of the kernel computes."""
        return self.instruction.group if self.instruction else 1

    @property
    def depth_multiple(self) -> int:
        """Returns the number that divides the steps of K in a panel."""
        if self.instruction and self.instruction.on_tiles:
            return self.instruction.group * TILE_ROW_BYTES // WORD_BYTES
        return self.group

    @property
    def columns(self) -> int:
        """Returns the number of columns of C in a register block."""
        return self.vectors * self.lanes

    def blocks_k(self, contraction: Contraction) -> bool:
        """True if K is processed in blocks of `depth` along its last loop, and for each step of its other loops."""
        if self.b_source in ("dot", "stream") or not contraction.k:
            return False
        if len(contraction.k) > 1:
            return self.b_source == "panel" and not self.dot and self.depth <= contraction.k[-1].size
        return self.depth < contraction.k[0].size

    def describe(self) -> str:
        """Returns the text of a remark, such as "8x32 register block, panel B"."""
        if self.b_source == "dot":
            return f"dot products in vectors of {self.lanes}"
        if self.b_source == "stream":
            return f"rows of B streamed in vectors of {self.lanes}"
        notes = [
            f"{self.rows}x{self.columns} register block",
            f"{self.b_source} B",
            "fixed-point A" if self.fixed_point else "",
            "packed A" if self.packs_a else "",
            "copied A" if self.copies_a else "",
            self.dot,
        ]
        return ", ".join(note for note in notes if note)


@dataclass(frozen=True)
class RequestedBlocking:
    """Requested register block: rows, vectors of columns, steps of K; 0 if not requested."""

    rows: int = 0
    vectors: int = 0
    depth: int = 0


def choose_gemm_blocking(
    contraction: Contraction,
    target: Target,
    b_source: BSource | None = None,
    requested: RequestedBlocking = RequestedBlocking(),
) -> GemmBlocking:
    """Returns the blocking with the least estimated time; if `b_source` is given, of those that read B there.

    A `requested` register block is used as far as C has enough rows and columns. Raises `UnsupportedError` if it
    exceeds the registers of `target`.
    """
    width = byte_width(contraction.element)
    lanes = target.lanes(width)
    if instruction := dot_instruction(contraction, target):
        return _dot_blocking(contraction, instruction, target, b_source or "panel", requested)
    if b_source is None and reads_in_place(contraction):
        return GemmBlocking(1, 1, lanes, max(1, contraction.depth), "dot")
    if b_source is None and _fits_streaming(contraction, lanes):
        return _streaming_blocking(contraction, lanes)
    m, n, registers = contraction.m.size, contraction.n.size, target.vector_registers
    max_rows = requested.rows or _rows_in_l1(contraction, lanes, target)
    rows, vectors = _register_block(m, n, lanes, registers, requested, max_rows=max_rows)
    if b_source is None and _packs_a(contraction, rows, lanes, target.l2):
        return _packed_a_blocking(contraction, rows, vectors, lanes, target, requested.depth)
    b_source = b_source or _choose_b_source(contraction, rows, target.l2)
    depth = _choose_depth(contraction, vectors * lanes * width, target.l2, requested.depth)
    chunk = _choose_chunk(contraction, rows, vectors * lanes, b_source)
    return GemmBlocking(rows, vectors, lanes, depth, b_source, chunk, copies_a=_widens_rows(contraction, lanes))


def _rows_in_l1(contraction: Contraction, lanes: int, target: Target) -> int:
    """Returns how many rows of A have a cache line each in the L1 cache, in addition to rows of B.

    A block of more rows reads each element of A from L2. Copied rows, and columns of A, are contiguous.
    """
    c = contraction
    if len(c.k) != 1 or c.k[0].strides[0] != 1 or _widens_rows(c, lanes):
        return c.m.size
    return max(FMA_LATENCY, target.lines_in_l1(c.m.strides[0] * byte_width(c.input_elements[0])))


def _widens_rows(contraction: Contraction, lanes: int) -> bool:
    """True if A is copied as wider elements: multiplied by many columns, each element would be widened many times."""
    c = contraction
    is_narrow = byte_width(c.input_elements[0]) < byte_width(c.element)
    return is_narrow and len(c.k) == 1 and c.n.size >= _MIN_COPIED_COLUMNS * lanes and c.m.size > _FEW_ROWS


def dot_instruction(contraction: Contraction, target: Target) -> DotInstruction | None:
    """Returns the fastest instruction of `target` for products of narrow elements, or `None` if none fits.

    Few rows use no such instruction, since reading B takes most of their time.
    """
    c = contraction
    if len(c.k) != 1 or c.m.size <= _FEW_ROWS or c.n.size == 0 or c.depth == 0:
        return None
    for name in target.dot_instructions:
        if INSTRUCTIONS[name].multiplies(c.input_elements, c.element, c.unsigned):
            return INSTRUCTIONS[name]
    return None


def _dot_blocking(
    contraction: Contraction,
    instruction: DotInstruction,
    target: Target,
    b_source: BSource,
    requested: RequestedBlocking,
) -> GemmBlocking:
    """Returns the blocking of a kernel that multiplies by `instruction`."""
    lanes, m, n = target.lanes(WORD_BYTES), contraction.m, contraction.n
    depth, shares_sums = contraction.depth, False
    if instruction.on_tiles:
        rows, vectors, lanes = 2 * TILE_ROWS, 2, TILE_ROW_BYTES // WORD_BYTES
        multiple = instruction.group * lanes
        # Tiles read 16 whole rows of A.
        copies_a = contraction.k[0].strides[0] != 1 or depth % multiple != 0 or m.size < TILE_ROWS
    else:
        # Besides the sums, a row of B and an element of A, the sums of B's columns may take registers, see
        # `dot_instructions.OFFSET`.
        needs_offset = instruction.needs_offset(contraction.unsigned)
        registers = target.vector_registers - (0 if instruction.adds else 1)
        shares_sums = needs_offset and m.size >= _MIN_ROWS_OF_SHARED_SUMS
        reserved = 2 if needs_offset and not shares_sums else 1
        rows, vectors = _register_block(m.size, n.size, lanes, registers, requested, reserved)
        if instruction.has_vectors_of(lanes // 2) and not requested.vectors:
            half = _register_block(m.size, n.size, lanes // 2, registers, requested, reserved)
            # Two instructions on half a vector take as long as one on a whole vector.
            time = _cost(m.size, n.size, lanes, rows, vectors)
            time_of_halves = _cost(m.size, n.size, lanes // 2, *half) / 2
            if time_of_halves < _MAX_SHARE_OF_HALVES * time:
                lanes, (rows, vectors) = lanes // 2, half
        copies_a = contraction.k[0].strides[0] != 1 or instruction.widens or needs_offset
        if b_source == "packed":
            row_bytes = vectors * lanes * byte_width(contraction.input_elements[1])
            depth = _choose_depth(contraction, row_bytes, target.l2, requested.depth)
            depth = round_up(depth, instruction.group)
    chunk = _choose_chunk(contraction, rows, vectors * lanes, b_source)
    return GemmBlocking(
        rows, vectors, lanes, depth, b_source, chunk, dot=instruction.name, copies_a=copies_a,
        shares_column_sums=shares_sums,
    )  # fmt: skip


def reads_in_place(contraction: Contraction) -> bool:
    """True if dot products read B in place as fast as from panels, so that packing B would only cost time and memory.

    This is the case for few rows and operands that are contiguous along K.
    """
    k, n = contraction.k, contraction.n
    is_contiguous = len(k) == 1 and k[0].strides[0] == k[0].strides[1] == 1
    return is_contiguous and contraction.m.size <= _FEW_ROWS and (n.size == 1 or n.strides[1] != 1)


def _fits_streaming(contraction: Contraction, lanes: int) -> bool:
    """True if C has few rows, and the rows of B are contiguous and too long for sums in registers."""
    n = contraction.n
    has_few_rows = contraction.m.size <= _FEW_ROWS and len(contraction.k) == 1
    return has_few_rows and n.strides[1] == 1 and n.size > _MAX_VECTORS * lanes


def _streaming_blocking(contraction: Contraction, lanes: int) -> GemmBlocking:
    """Returns a blocking that reads several rows of B at once; C, which stays in cache, is updated once for all.

    Only very long rows are shared between threads: several threads read short pieces more slowly than one thread reads
    whole rows.
    """
    size, rows = contraction.n.size, max(1, contraction.m.size)
    columns = size if size < _MIN_DIVIDED_ROW else max(_MIN_DIVIDED_ROW // 2, ceil_div(size, _MAX_ROW_PIECES))
    return GemmBlocking(rows, ceil_div(columns, lanes), lanes, _STREAMED_ROWS, "stream")


def _choose_chunk(contraction: Contraction, rows: int, columns: int, b_source: BSource) -> int:
    """Returns the rows of C per iteration: all, or a multiple of `rows` with enough iterations for threads.

    A register block has `rows` x `columns` elements.
    """
    m = contraction.m.size
    # Iterations of the loop over columns and of the outer loops, which threads share too.
    other_iterations = ceil_div(contraction.n.size, columns) * math.prod(loop.size for loop in contraction.outer)
    blocks = ceil_div(m, rows)
    min_rows = ceil_div(_MIN_ITERATION_FLOP, max(1, 2 * contraction.depth * columns))
    min_rows = max(min_rows, _MIN_ROWS_OF_PANEL if b_source == "panel" else 1)
    chunks = min(ceil_div(_MIN_ITERATIONS, max(1, other_iterations)), max(1, m // min_rows))
    if chunks <= 1:
        return max(1, blocks) * rows
    equal_chunks = [count for count in range(chunks, 2 * chunks) if blocks % count == 0 and m // count >= min_rows]
    return ceil_div(blocks, equal_chunks[0] if equal_chunks else chunks) * rows


def crosses_rows_of_a(contraction: Contraction) -> bool:
    """True if each step of K reads another row of A, as in the gradient of a weight (dY^T X)."""
    k, m = contraction.k, contraction.m
    return len(k) == 1 and m.strides[0] == 1 and k[0].strides[0] >= m.size


def _packs_a(contraction: Contraction, rows: int, lanes: int, l2: int) -> bool:
    """True if a copy of A pays: A is read across its rows, is large, and is multiplied with enough columns.

    The few elements that a register block reads of a row lie alone in a cache line, which has to stay in a cache until
    the next blocks read the others.
    """
    c = contraction
    is_large = c.m.size * c.depth * byte_width(c.input_elements[0]) >= _MIN_PACKED_A_PER_L2 * l2
    has_rows = c.m.size >= 2 * rows and c.n.size >= 4 * lanes and c.n.strides[1] == 1
    return crosses_rows_of_a(c) and is_large and has_rows


def _packed_a_blocking(
    contraction: Contraction, rows: int, vectors: int, lanes: int, target: Target, requested_depth: int
) -> GemmBlocking:
    """Returns a blocking in which a panel of B fills half of the L1 cache, and the copied rows of A half of L2.

    This is the scheme of K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34
    (2008), except that panels of B are copied again for each chunk of rows: the copy then needs no barrier.
    """
    width, columns = byte_width(contraction.element), vectors * lanes
    limit = requested_depth or max(_MIN_DEPTH_LIMIT, target.l1 // 2 // (columns * width))
    depth = ceil_div(contraction.depth, ceil_div(contraction.depth, limit))
    blocks, panels = ceil_div(contraction.m.size, rows), ceil_div(contraction.n.size, columns)
    outer = max(1, math.prod(loop.size for loop in contraction.outer))
    max_blocks, min_blocks = max(1, target.l2 // 2 // (depth * width * rows)), ceil_div(_MIN_PACKED_ROWS, rows)
    chunks = max(ceil_div(blocks, max_blocks), min(ceil_div(_MIN_ITERATIONS, outer), blocks // min_blocks), 1)
    strips = min(ceil_div(_MIN_ITERATIONS, outer * chunks), contraction.n.size // _MIN_PACKED_COLUMNS, panels)
    chunk, strip = ceil_div(blocks, chunks) * rows, ceil_div(panels, max(1, strips)) * columns
    return GemmBlocking(rows, vectors, lanes, depth, "panel", chunk, packs_a=True, strip=strip)


def _register_block(
    m: int, n: int, lanes: int, registers: int, requested: RequestedBlocking, rows_of_b: int = 1, max_rows: int = 0
) -> tuple[int, int]:
    """Returns rows and vectors of the register block with the least cost.

    `rows_of_b` is the number of rows of vectors that are live in addition to the sums; a block has at most `max_rows`
    rows (0: as many as registers). Raises `UnsupportedError` if the requested block does not fit into the registers.
    """
    # A single row needs only as many sums as hide the latency of a multiply-add, and narrow panels are shared more
    # evenly.
    max_vectors = _MAX_VECTORS if m > 1 else FMA_LATENCY
    candidates = [
        (rows, vectors)
        for vectors in _sizes(min(max_vectors, max(1, ceil_div(n, lanes))), requested.vectors)
        for rows in _sizes(max(1, min(m, max_rows or registers)), requested.rows)
        if (rows + rows_of_b) * vectors + 1 <= registers  # sums, a row of B, a broadcast element of A
    ]
    if not candidates:
        raise UnsupportedError(f"{requested.rows} rows of {requested.vectors} vectors exceed {registers} registers")
    return min(candidates, key=lambda block: (_cost(m, n, lanes, *block), -block[0] * block[1]))


def _sizes(maximum: int, requested: int) -> range:
    """Returns the sizes to choose from: all up to `maximum`, or only `requested` (0: none), limited to `maximum`."""
    return range(min(requested, maximum), min(requested, maximum) + 1) if requested else range(1, maximum + 1)


def _cost(m: int, n: int, lanes: int, rows: int, vectors: int) -> float:
    """Returns the cycles per step of K for all of C, including remainder blocks."""
    return sum(
        row_count * column_count * block_cycles(row_size, column_size)
        for row_size, row_count in block_counts(m, rows)
        for column_size, column_count in block_counts(ceil_div(n, lanes), vectors)
    )


def block_cycles(rows: int, vectors: int) -> float:
    """Returns the cycles per step of K for one block: the maximum of multiply-adds, loads and accumulator latency."""
    # The last term is an estimate of the overhead per load; it prefers blocks with fewer loads.
    return max(rows * vectors, vectors / L2_VECTORS_PER_CYCLE, FMA_LATENCY) + 0.05 * (rows + 2 * vectors)


def _choose_b_source(contraction: Contraction, rows: int, l2: int) -> BSource:
    """Returns where B is read: from a packed panel if its columns are not contiguous, or if it does not stay in cache.

    With few rows of C, or a short K, packing B costs more than it saves.
    """
    if contraction.n.size > 1 and contraction.n.strides[1] != 1:
        return "panel"
    has_little_reuse = contraction.m.size <= 2 * rows or contraction.depth <= _MAX_DEPTH_IN_PLACE
    return "direct" if has_little_reuse or _stays_in_l2(contraction, l2) else "panel"


def _stays_in_l2(contraction: Contraction, l2: int) -> bool:
    """True if the columns of a row-major B that a block reads stay in the L2 cache during the loop over rows of C.

    Rows of B with a distance of a power of two share few sets of the cache.
    """
    if len(contraction.k) != 1:
        return False
    width = byte_width(contraction.input_elements[1])
    way_bytes = max(1, l2 // CACHE_WAYS)
    row_distance = contraction.k[0].strides[1] * width
    max_rows = CACHE_WAYS * way_bytes // math.gcd(way_bytes, max(1, row_distance))
    return contraction.depth <= max_rows and contraction.depth * contraction.n.size * width <= _MAX_B_PER_L2 * l2


def _choose_depth(contraction: Contraction, row_bytes: int, l2: int, requested: int) -> int:
    """Returns the steps of K per block: K in equal blocks that are not longer than a limit.

    The limit is the requested number, or the number of steps with which a panel of B, `row_bytes` bytes for each step,
    fills its share of the L2 cache. Of several loops of K, the last one is split, if it is long.
    """
    if len(contraction.k) != 1 and (not contraction.k or contraction.k[-1].size < _MIN_INNER_DEPTH):
        return max(1, contraction.depth)
    size = contraction.k[-1].size
    limit = requested or max(_MIN_DEPTH_LIMIT, int(_PANEL_SHARE_OF_L2 * l2) // row_bytes)
    blocks = max(1, ceil_div(size, limit))
    return max(1, ceil_div(size, blocks))
