"""Chooses the blocking of a contraction for a target: the register block, the panels of B, the blocks of K."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from buddy.compiler.passes.kernels.access import UnsupportedError
from buddy.compiler.passes.kernels.contraction import Contraction, bytes_of
from buddy.compiler.passes.kernels.emit import split
from buddy.compiler.support.target import CACHE_WAYS, FMA_LATENCY, L2_VECTORS_PER_CYCLE, Target

Source = Literal["direct", "panel", "packed", "dot", "stream"]

MAX_VECTORS = 8

# With up to so many rows, the time is that of reading B, which has memory bandwidth if B is read as one stream.
FEW_ROWS = 4
# Rows of B that are read at the same time. Measured on a Zen 4 with 1, 2, 4, 8 and 16 rows, in memory and in caches:
# one row takes up to 1.7 times as long, since C is loaded and stored for each row; 16 rows are not faster than 8.
_STREAMS = 8
# Iterations that a kernel's outer loop should have, so that up to 16 threads get nearly equal shares.
SHARES = 32
_SHARE_FLOP = 1 << 20  # least work per share
# Least rows and columns of C for which copies of a panel of B, and of rows of A, should be used: copying a vector takes
# as long as some five multiply-adds.
_PACKED_ROWS, _PACKED_COLUMNS = 96, 64


@dataclass(frozen=True)
class GemmBlocking:
    """`rows` x `vectors * lanes` elements of C stay in registers over `depth` steps of K.

    `source` says where B is read: in place ("direct"), from one panel that is packed when needed ("panel"), from panels
    that were packed before the call ("packed"), in place along K ("dot", without register blocks), or in place as one
    stream of rows ("stream", `depth` at once, over `vectors * lanes` columns). Threads share `chunk` rows at a time (0:
    all rows). With `packs_a`, the kernel copies these rows of A, too, before it multiplies them with the panels of
    `strip` columns of B.
    """

    rows: int
    vectors: int
    lanes: int
    depth: int
    source: Source
    chunk: int = 0
    packs_a: bool = False
    strip: int = 0

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def blocks_k(self, contraction: Contraction) -> bool:
        """True if K is processed in blocks of `depth`."""
        blocked = self.source not in ("dot", "stream") and len(contraction.k) == 1
        return blocked and self.depth < contraction.k[0].size

    def describe(self) -> str:
        if self.source == "dot":
            return f"dot products in vectors of {self.lanes}"
        if self.source == "stream":
            return f"rows of B streamed in vectors of {self.lanes}"
        return f"{self.rows}x{self.columns} register block, {self.source} B" + ", packed A" * self.packs_a


@dataclass(frozen=True)
class BlockingInputs:
    """Requested register block: rows, vectors of columns, steps of K; 0 if not requested."""

    rows: int = 0
    vectors: int = 0
    depth: int = 0


def choose(
    contraction: Contraction, target: Target, source: Source | None = None, wanted: BlockingInputs = BlockingInputs()
) -> GemmBlocking:
    """Returns the blocking with the least estimated time; `source` fixes where B is read.

    A `wanted` register block is used as far as C has enough rows and columns. Raises `UnsupportedError` if it exceeds
    the registers of `target`.
    """
    width = bytes_of(contraction.element)
    lanes = target.lanes(width)
    if source is None and fits_dot_products(contraction):
        return GemmBlocking(1, 1, lanes, max(1, contraction.depth), "dot")
    if source is None and _streams(contraction, lanes):
        return _stream(contraction, lanes)
    rows, vectors = _register_block(contraction.m.size, contraction.n.size, lanes, target.vector_registers, wanted)
    if source is None and _crosses_rows_of_a(contraction, rows, lanes):
        return _with_packed_a(contraction, rows, vectors, lanes, target, wanted.depth)
    where = source or _source(contraction, rows, target.l2)
    depth = _depth(contraction, vectors * lanes * width, target.l2, wanted.depth)
    return GemmBlocking(rows, vectors, lanes, depth, where, _chunk(contraction, rows, vectors * lanes, where))


def reads_in_place(contraction: Contraction) -> bool:
    """True if B is read as fast in place as from panels, so that packing a parameter would only cost memory."""
    return fits_dot_products(contraction)


def fits_dot_products(contraction: Contraction) -> bool:
    """True for few rows and factors that are contiguous along K, for which packing B costs more time than it saves."""
    k, n = contraction.k, contraction.n
    contiguous = len(k) == 1 and k[0].strides[0] == k[0].strides[1] == 1
    return contiguous and contraction.m.size <= FEW_ROWS and (n.size == 1 or n.strides[1] != 1)


def _streams(contraction: Contraction, lanes: int) -> bool:
    """True for few rows, and rows of B that are too long for sums in registers."""
    n = contraction.n
    few = contraction.m.size <= FEW_ROWS and len(contraction.k) == 1
    return few and n.strides[1] == 1 and n.size > MAX_VECTORS * lanes


def _stream(contraction: Contraction, lanes: int) -> GemmBlocking:
    """Reads several rows of B at once, so that C, which stays in cache, is read and written once for all of them.

    Only very long rows are shared between threads: several threads read short pieces more slowly than one thread reads
    whole rows.
    """
    size, rows = contraction.n.size, max(1, contraction.m.size)
    columns = size if size < 16384 else max(8192, -(-size // 4))
    return GemmBlocking(rows, -(-columns // lanes), lanes, _STREAMS, "stream")


def _chunk(contraction: Contraction, rows: int, columns: int, source: Source) -> int:
    """Returns the rows of C per iteration: all, or a multiple of `rows` with enough iterations for threads."""
    m, tiles = contraction.m.size, -(-contraction.n.size // columns)
    for loop in contraction.outer:
        tiles *= loop.size
    blocks = -(-m // rows)
    # A panel that is packed in the loop should be used for some hundred rows.
    least = max(-(-_SHARE_FLOP // max(1, 2 * contraction.depth * columns)), 256 if source == "panel" else 1)
    pieces = min(-(-SHARES // max(1, tiles)), max(1, m // least))
    if pieces <= 1:
        return max(1, blocks) * rows
    even = [count for count in range(pieces, 2 * pieces) if blocks % count == 0 and m // count >= least]
    return -(-blocks // (even[0] if even else pieces)) * rows


def _crosses_rows_of_a(contraction: Contraction, rows: int, lanes: int) -> bool:
    """True if each step of K reads another row of a large A, as in the gradient of a weight (dY^T X).

    The few elements that a register block reads of such a row lie alone in a cache line, and rows with a distance of a
    large power of two compete for few sets of the cache. Copying A pays if it is multiplied with enough columns.
    """
    k, m, n = contraction.k, contraction.m, contraction.n
    crosses = len(k) == 1 and m.strides[0] == 1 and k[0].strides[0] >= m.size
    return crosses and n.strides[1] == 1 and m.size >= 2 * rows and n.size >= 4 * lanes and contraction.depth >= 32


def _with_packed_a(
    contraction: Contraction, rows: int, vectors: int, lanes: int, target: Target, wanted_depth: int
) -> GemmBlocking:
    """Blocks K so that a panel of B fills half of the L1 cache, and rows so that their copy fills half of the L2 cache.

    This is the scheme of K. Goto and R. van de Geijn, "Anatomy of high-performance matrix multiplication", ACM TOMS 34
    (2008), except that panels of B are copied again for each chunk of rows: the copy then needs no barrier.
    """
    width = bytes_of(contraction.element)
    limit = wanted_depth or max(256, target.l1 // 2 // (vectors * lanes * width))
    depth = -(-contraction.depth // -(-contraction.depth // limit))
    blocks, outer = -(-contraction.m.size // rows), math.prod(loop.size for loop in contraction.outer)
    most, least = max(1, target.l2 // 2 // (depth * width * rows)), -(-_PACKED_ROWS // rows)
    pieces = max(-(-blocks // most), min(-(-SHARES // max(1, outer)), blocks // least), 1)
    columns = vectors * lanes
    panels = -(-contraction.n.size // columns)
    strips = max(1, min(-(-SHARES // max(1, outer * pieces)), contraction.n.size // _PACKED_COLUMNS, panels))
    chunk, strip = -(-blocks // pieces) * rows, -(-panels // strips) * columns
    return GemmBlocking(rows, vectors, lanes, depth, "panel", chunk, packs_a=True, strip=strip)


def _register_block(m: int, n: int, lanes: int, registers: int, wanted: BlockingInputs) -> tuple[int, int]:
    # A single row needs no more sums than hide the latency, and narrow panels are shared more evenly.
    widest = MAX_VECTORS if m > 1 else FMA_LATENCY
    candidates = [
        (rows, vectors)
        for vectors in _sizes(min(widest, max(1, -(-n // lanes))), wanted.vectors)
        for rows in _sizes(max(1, min(m, registers)), wanted.rows)
        if rows * vectors + vectors + 1 <= registers
    ]
    if not candidates:
        raise UnsupportedError(f"{wanted.rows} rows of {wanted.vectors} vectors exceed {registers} registers")
    return min(candidates, key=lambda block: (_cost(m, n, lanes, *block), -block[0] * block[1]))


def _sizes(most: int, wanted: int) -> range:
    """Returns the sizes to choose from: the requested one, or all up to `most`."""
    return range(min(wanted, most), min(wanted, most) + 1) if wanted else range(1, most + 1)


def _cost(m: int, n: int, lanes: int, rows: int, vectors: int) -> float:
    """Returns the cycles per step of K for all of C, including remainder blocks."""
    return sum(
        row_count * column_count * block_cycles(row_size, column_size)
        for row_size, row_count in split(m, rows)
        for column_size, column_count in split(-(-n // lanes), vectors)
    )


def block_cycles(rows: int, vectors: int) -> float:
    """Returns the cycles per step of K for one block: the most of multiply-adds, loads and accumulator latency."""
    return max(rows * vectors, vectors / L2_VECTORS_PER_CYCLE, FMA_LATENCY) + 0.05 * (rows + 2 * vectors)


def _source(contraction: Contraction, rows: int, l2: int) -> Source:
    """Chooses where B is read; it is packed if its columns are not contiguous, or if it does not stay in cache."""
    if contraction.n.size > 1 and contraction.n.strides[1] != 1:
        return "panel"
    few = contraction.m.size <= 2 * rows or contraction.depth <= 256
    return "direct" if few or _stays(contraction, l2) else "panel"


def _stays(contraction: Contraction, l2: int) -> bool:
    """True if a column of blocks of a row-major B stays in the L2 cache during the loop over rows of C.

    All of B may be several times as large, because of the L3 cache; but rows with a distance of a power of two share
    few sets of the cache.
    """
    if len(contraction.k) != 1:
        return False
    width = bytes_of(contraction.factor_element)
    period = max(1, l2 // CACHE_WAYS)
    apart = contraction.k[0].strides[1] * width
    room = CACHE_WAYS * period // math.gcd(period, max(1, apart))
    return contraction.depth <= room and contraction.depth * contraction.n.size * width <= 2.5 * l2


def _depth(contraction: Contraction, row_bytes: int, l2: int, wanted: int) -> int:
    """Returns the requested steps of K, or those for which a panel of B fills 60 % of the L2 cache."""
    if len(contraction.k) != 1:
        return max(1, contraction.depth)
    size = contraction.k[0].size
    limit = wanted or max(256, int(0.6 * l2) // row_bytes)
    blocks = max(1, -(-size // limit))
    return max(1, -(-size // blocks))
