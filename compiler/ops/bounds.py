"""Indices kept within their dim: nothing outside a tensor is ever read or written, whatever the data.

Eager refuses an index out of range, and so do programs that look through their indices first (`ranges`). That look is
no guard: compiled code has no way out of the middle of a loop, and goes on after eager has raised. One unsigned minimum
per index keeps memory safe and the loop free of branches.
"""

from __future__ import annotations

from typing import Any

from buddy.compiler.mlir.bindings import arith
from buddy.compiler.ops.loops import Extent, index_position, position
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import LoweringError


def within(index: Scalar, size: Extent, wraps: bool = False) -> Any:
    """A data-dependent index as a position in a dim of `size`, counted from the end where it `wraps` and is negative.

    One that is out of range becomes the last position: a comparison of unsigned numbers sees both sides at once.
    Raises `LoweringError` for a dim without elements, in which no position is right.
    """
    if isinstance(size, int) and size == 0:
        raise LoweringError("an index into a dim without elements, which eager refuses")
    at, length = index_position(index), position(size)
    if wraps:
        negative = arith.cmpi(arith.CmpIPredicate.slt, at, position(0))
        at = arith.select(negative, arith.addi(at, length), at)
    return arith.minui(at, arith.subi(length, position(1)))
