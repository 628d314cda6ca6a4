"""Clamps indices to their dim, so that no access is out of bounds for any data.

Eager rejects an index that is out of range; compiled programs check their indices before use (`ranges`). That check
alone does not protect memory: compiled code cannot leave a loop early, and continues after eager has raised. One
unsigned minimum per index does, without branches in the loop.
"""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops.loops import Extent, index_position, position
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import LoweringError


def within(index: Scalar, size: Extent, wraps: bool = False) -> Any:
    """Returns a data-dependent index as a position in a dim of `size`.

    With `wraps`, negative indices count from the end. An index out of range becomes the last position: one unsigned
    comparison covers both sides. Raises `LoweringError` for a dim of size 0, which has no valid position.
    """
    if isinstance(size, int) and size == 0:
        raise LoweringError("the indexed dim is empty, which eager rejects")
    at, length = index_position(index), position(size)
    if wraps:
        negative = arith.cmpi(arith.CmpIPredicate.slt, at, position(0))
        at = arith.select(negative, arith.addi(at, length), at)
    return arith.minui(at, arith.subi(length, position(1)))
