"""Computes which blocks of keys each block of query rows attends to, as plain numbers; does not import MLIR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

# Query rows per block. With this many rows, the products take far longer than packing a block of keys.
BLOCK_ROWS = 128
# Rows and keys per block of causal attention. Larger blocks compute more unused scores above the diagonal.
CAUSAL_BLOCK_SIZE = 64
# Scores per tile: 64 KiB of f32, which stay in the L2 cache between the products and the softmax.
TILE_SCORES = 128 * 128


def block_sizes(rows: int, causal: bool) -> tuple[int, int]:
    """Returns the number of query rows and of keys per block, for `rows` query rows."""
    if causal:
        return CAUSAL_BLOCK_SIZE, CAUSAL_BLOCK_SIZE
    return BLOCK_ROWS, TILE_SCORES // min(BLOCK_ROWS, rows)


@dataclass(frozen=True)
class KeyTail:
    """The last block of keys that a block of rows attends to, if it is partial or contains the diagonal.

    It has `keys` keys. `index` is its index among the blocks of keys, or `None` if that is the index of the block of
    rows.
    """

    index: int | None
    keys: int
    has_diagonal: bool


@dataclass(frozen=True)
class RowBlocks:
    """The blocks `i` of query rows with `first <= i < end`; block `i` starts at row `i * block`.

    `block` is the argument of `split_rows`. Each block has `rows` rows, fewer than `block` for the remainder. Block `i`
    attends completely to the first `full` blocks of keys, or to the first `i` if `full` is `None`, and to `tail`.
    """

    first: int
    end: int
    rows: int
    full: int | None
    tail: KeyTail | None


def split_rows(queries: int, keys: int, block: int, key_block: int, causal: bool) -> tuple[RowBlocks, ...]:
    """Splits scores of `queries` rows by `keys` columns into blocks of `block` rows by `key_block` columns.

    With `causal`, row `i` attends to columns `0 .. i` only.

    Raises `ValueError` if `causal` blocks are not square: the diagonal must pass through their corners.
    """
    if causal and block != key_block:
        raise ValueError(f"causal blocks of {block} rows by {key_block} keys are not square")
    if causal:
        return tuple(_causal_blocks(queries, keys, block))
    full, remainder = divmod(keys, key_block)
    tail = KeyTail(full, remainder, has_diagonal=False) if remainder else None
    return tuple(RowBlocks(first, end, rows, full, tail) for first, end, rows in _blocks(queries, block))


def _blocks(size: int, block: int) -> Iterator[tuple[int, int, int]]:
    """Yields (first block, end block, rows per block) for the full blocks, then for the remainder."""
    full, remainder = divmod(size, block)
    if full:
        yield 0, full, block
    if remainder:
        yield full, full + 1, remainder


def _causal_blocks(queries: int, keys: int, block: int) -> Iterator[RowBlocks]:
    """Yields the blocks of rows with a full diagonal block, then with a partial one, then below the diagonal."""
    full, remainder = divmod(keys, block)
    for first, end, rows in _blocks(queries, block):
        diagonal_end = min(end, full)
        if first < diagonal_end:
            yield RowBlocks(first, diagonal_end, rows, None, KeyTail(None, rows, has_diagonal=True))
        if first <= full < end and remainder:
            yield RowBlocks(full, full + 1, rows, full, KeyTail(full, min(rows, remainder), has_diagonal=True))
        below_diagonal = max(first, full + bool(remainder))
        if below_diagonal < end:
            tail = KeyTail(full, remainder, has_diagonal=False) if remainder else None
            yield RowBlocks(below_diagonal, end, rows, full, tail)
