"""How a contraction is blocked for a target: the register block, the panels of B, the blocks of K."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from buddy.compiler.kernels.contraction import Contraction
from buddy.compiler.kernels.dot import fits as fits_dot_products
from buddy.compiler.kernels.emit import split
from buddy.compiler.target import Target

Source = Literal["direct", "panel", "packed", "dot"]

# Results of a fused multiply-add are ready after about this many cycles at one vector instruction per cycle.
FMA_LATENCY = 4
MAX_VECTORS = 8


@dataclass(frozen=True)
class Blocking:
    """`rows` x `vectors * lanes` elements of C stay in registers over `depth` steps of K.

    `source` says where B is read: in place ("direct"), from one panel that is packed when needed ("panel"), from
    panels that were packed before the call ("packed"), or in place along K ("dot", without register blocks).
    """

    rows: int
    vectors: int
    lanes: int
    depth: int
    source: Source

    @property
    def columns(self) -> int:
        return self.vectors * self.lanes

    def describe(self) -> str:
        if self.source == "dot":
            return f"dot products in vectors of {self.lanes}"
        return f"{self.rows}x{self.columns} register block, {self.source} B"


def choose(contraction: Contraction, target: Target, source: Source | None = None) -> Blocking:
    """The blocking with the least estimated time; `source` fixes where B is read."""
    element = 4 if contraction.element == "f32" else 8
    lanes = target.lanes(element)
    rows, vectors = _register_block(contraction.m.size, contraction.n.size, lanes, target.vector_registers)
    if source is None and fits_dot_products(contraction):
        return Blocking(1, 1, lanes, max(1, contraction.depth), "dot")
    where = source or _source(contraction, rows)
    depth = _depth(contraction, vectors * lanes * element, target.l2)
    return Blocking(rows, vectors, lanes, depth, where)


def _register_block(m: int, n: int, lanes: int, registers: int) -> tuple[int, int]:
    candidates = [
        (rows, vectors)
        for vectors in range(1, min(MAX_VECTORS, max(1, -(-n // lanes))) + 1)
        for rows in range(1, max(1, min(m, registers)) + 1)
        if rows * vectors + vectors + 1 <= registers
    ]
    return min(candidates, key=lambda block: (_cost(m, n, lanes, *block), -block[0] * block[1]))


def _cost(m: int, n: int, lanes: int, rows: int, vectors: int) -> float:
    """Cycles per step of K for all of C, counting remainder blocks."""
    return sum(
        row_count * column_count * _block_cycles(row_size, column_size)
        for row_size, row_count in split(m, rows)
        for column_size, column_count in split(-(-n // lanes), vectors)
    )


def _block_cycles(rows: int, vectors: int) -> float:
    """Cycles per step of K for one block: multiply-adds, or loads, or the latency of the accumulators."""
    return max(rows * vectors, rows * 0.5 + vectors, FMA_LATENCY) + 0.05 * (rows + 2 * vectors)


def _source(contraction: Contraction, rows: int) -> Source:
    """B is packed where its columns are not contiguous, or where enough rows of C use a packed panel again."""
    if contraction.n.size > 1 and contraction.n.strides[1] != 1:
        return "panel"
    return "direct" if contraction.m.size <= 2 * rows or contraction.depth <= 256 else "panel"


def _depth(contraction: Contraction, row_bytes: int, l2: int) -> int:
    """Steps of K after which a panel of B fills 60 % of the second-level cache."""
    if len(contraction.k) != 1:
        return max(1, contraction.depth)
    size = contraction.k[0].size
    limit = max(256, int(0.6 * l2) // row_bytes)
    blocks = max(1, -(-size // limit))
    return max(1, -(-size // blocks))
