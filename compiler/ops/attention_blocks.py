"""Computes which blocks of keys each block of query rows attends to. Plain numbers, no MLIR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class KeyTail:
    """A partial or diagonal block of keys: its number of keys, and whether the diagonal passes through it.

    `number` is its position among the blocks of keys; `None` means that of the block of rows.
    """

    number: int | None
    keys: int
    diagonal: bool


@dataclass(frozen=True)
class RowBlocks:
    """Blocks `first <= i < end` of `rows` query rows each; block `i` starts at row `i * block`.

    Each block attends to the full blocks of keys `0 .. full - 1`, where a `full` of `None` means `i`, and to `tail`.
    """

    first: int
    end: int
    rows: int
    full: int | None
    tail: KeyTail | None


def rows_of(queries: int, keys: int, block: int, key_block: int, causal: bool) -> tuple[RowBlocks, ...]:
    """Splits `queries` rows by `keys` columns into blocks; a causal row `i` attends to columns `0 .. i`.

    Raises `ValueError` if causal blocks are not square: the diagonal must pass through their corners.
    """
    if causal and block != key_block:
        raise ValueError(f"causal blocks of {block} rows by {key_block} keys are not square")
    if causal:
        return tuple(_causal(queries, keys, block))
    full, rest = divmod(keys, key_block)
    tail = KeyTail(full, rest, False) if rest else None
    return tuple(RowBlocks(first, end, rows, full, tail) for first, end, rows in _blocks(queries, block))


def _blocks(size: int, block: int) -> Iterator[tuple[int, int, int]]:
    """Yields (first block, end, rows in each) for the full blocks, then for the remainder."""
    full, rest = divmod(size, block)
    if full:
        yield 0, full, block
    if rest:
        yield full, full + 1, rest


def _causal(queries: int, keys: int, block: int) -> Iterator[RowBlocks]:
    """Yields rows with a full diagonal block, then those with a partial one, then those below the diagonal."""
    full, rest = divmod(keys, block)
    for first, end, rows in _blocks(queries, block):
        on = min(end, full)
        if first < on:
            yield RowBlocks(first, on, rows, None, KeyTail(None, rows, True))
        if first <= full < end and rest:
            yield RowBlocks(full, full + 1, rows, full, KeyTail(full, min(rows, rest), True))
        below = max(first, full + bool(rest))
        if below < end:
            yield RowBlocks(below, end, rows, full, KeyTail(full, rest, False) if rest else None)
