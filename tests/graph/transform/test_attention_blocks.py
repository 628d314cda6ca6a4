"""Which blocks of keys each block of rows meets: every score once, none above the diagonal's blocks."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from buddy.compiler.ops.attention_blocks import split_rows

SIZES = (1, 5, 8, 11, 16, 24, 27)


@pytest.mark.parametrize("causal", [False, True])
def test_each_score_that_counts_is_made_once_and_no_block_above_the_diagonal(causal: bool) -> None:
    for queries, keys in itertools.product(SIZES, SIZES):
        made = np.zeros((queries, keys), int)
        for rows in split_rows(queries, keys, 8, 8, causal):
            for i in range(rows.first, rows.end):
                row = slice(i * 8, i * 8 + rows.rows)
                full = i if rows.full is None else rows.full
                blocks = [(number, 8, False) for number in range(full)]
                if rows.tail:
                    number = i if rows.tail.index is None else rows.tail.index
                    blocks.append((number, rows.tail.keys, rows.tail.has_diagonal))
                for number, count, diagonal in blocks:
                    assert i * 8 + rows.rows <= queries
                    assert number * 8 + count <= keys
                    shape = (rows.rows, count)
                    made[row, number * 8 : number * 8 + count] += np.tri(*shape, dtype=int) if diagonal else 1
        expected = np.tri(queries, keys, dtype=int) if causal else np.ones((queries, keys), int)
        np.testing.assert_array_equal(made, expected, f"{queries} rows, {keys} keys")


def test_causal_blocks_are_square() -> None:
    with pytest.raises(ValueError, match="not square"):
        split_rows(16, 16, 8, 16, True)
