"""Which blocks of keys each block of query rows meets. Plain numbers, no MLIR."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Tail:
    """The block of keys that is not a full one below the diagonal: how many keys, and whether it lies on the diagonal.

    `number` is its place among the blocks of keys; `None` stands for the place of the block of rows.
    """

    number: int | None
    keys: int
    diagonal: bool


@dataclass(frozen=True)
class Rows:
    """Blocks `first <= i < end` of `rows` query rows each; block `i` starts at row `i * block`.

    Each meets `tail`, if there is one, and the full blocks of keys `0 .. full - 1`, where `None` stands for `i`.
    """

    first: int
    end: int
    rows: int
    full: int | None
    tail: Tail | None


def rows_of(queries: int, keys: int, block: int, key_block: int, causal: bool) -> tuple[Rows, ...]:
    """The blocks of `queries` rows by `keys` columns; a causal row `i` meets columns `0 .. i` and no others.

    Raises `ValueError` when causal blocks are not square: only then does the diagonal pass through their corners.
    """
    if causal and block != key_block:
        raise ValueError(f"causal blocks of {block} rows by {key_block} keys are not square")
    if causal:
        return tuple(_causal(queries, keys, block))
    full, rest = divmod(keys, key_block)
    tail = Tail(full, rest, False) if rest else None
    return tuple(Rows(first, end, rows, full, tail) for first, end, rows in _blocks(queries, block))


def _blocks(size: int, block: int) -> Iterator[tuple[int, int, int]]:
    """(first block, end, rows in each): the full blocks, then what is left."""
    full, rest = divmod(size, block)
    if full:
        yield 0, full, block
    if rest:
        yield full, full + 1, rest


def _causal(queries: int, keys: int, block: int) -> Iterator[Rows]:
    """Rows whose diagonal block is a full one, those that meet the rest of the keys on the diagonal, those below."""
    full, rest = divmod(keys, block)
    for first, end, rows in _blocks(queries, block):
        on = min(end, full)
        if first < on:
            yield Rows(first, on, rows, None, Tail(None, rows, True))
        if first <= full < end and rest:
            yield Rows(full, full + 1, rows, full, Tail(full, min(rows, rest), True))
        below = max(first, full + bool(rest))
        if below < end:
            yield Rows(below, end, rows, full, Tail(full, rest, False) if rest else None)
