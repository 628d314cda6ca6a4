"""Checks of indices and other data that eager rejects, and bounds on all accesses.

Compiled code checks indices before use, and eager raises the error for an index that is out of range. The check does
not protect memory, because compiled code cannot leave a loop early: each index is also limited to its dim by one
unsigned minimum, without branches, so no access is out of bounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.operations import ArangeOp, FullOp, ScalarTensorOp
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.func import call_eager_for_errors
from buddy.compiler.ops.loops import Extent, LoopState, element, index_position, position
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of


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


_FLAG = TensorDType.Int32
# Whether the checks are emitted; the recipe decides.
_checks_enabled = ContextVar("checking", default=True)


@contextmanager
def value_checks(wanted: bool) -> Iterator[None]:
    """Enables or disables the checks of this module while lowering."""
    token = _checks_enabled.set(wanted)
    try:
        yield
    finally:
        _checks_enabled.reset(token)


def fall_back_if_outside(
    node: Op,
    symbol_table: SymbolTable,
    indices: Sequence[tuple[Op, Extent]],
    wraps: bool = False,
    read: Callable[[Scalar], Scalar] = lambda x: x,
) -> None:
    """Falls back to eager for `node` if an element of an index tensor is out of range for its dim size in `indices`.

    With `wraps`, negative indices count from the end; `read` converts an element to an index from 0. Index tensors that
    do not depend on inputs are created by PyTorch's decompositions and are not checked.
    """
    if not _checks_enabled.get():
        return
    checked = [
        (op, size) for op, size in indices if 0 not in op.tensor_meta.shape and depends_on_inputs(op, symbol_table)
    ]
    for op, size in checked:
        flag = element(_outside(value_of(op, symbol_table), op.tensor_meta.dtype, size, wraps, read), [], _FLAG)
        fall_back_if(node, symbol_table, flag.compare("ne", 0), "an index is out of range")


def fall_back_if(node: Op, symbol_table: SymbolTable, wrong: Scalar, condition: str) -> None:
    """Falls back to eager for the error of `node` if `wrong`, a bool, is true; `condition` says when that is so."""
    if not _checks_enabled.get():
        return
    LoopState([]).choose(wrong, lambda: call_eager_for_errors(node, symbol_table, condition))


def _outside(value: Any, dtype: TensorDType, size: Extent, wraps: bool, read: Callable[[Scalar], Scalar]) -> Any:
    """Returns a zero-dimensional tensor: 1 if an index is out of range, by one unsigned comparison, else 0."""
    shape = st.shape_of(value)

    def body(x: Scalar, found: Scalar) -> Scalar:
        at, length = index_position(read(x)), position(size)
        at, count = (arith.addi(at, length), arith.addi(length, length)) if wraps else (at, length)
        outside = arith.cmpi(arith.CmpIPredicate.uge, at, count)
        return found | cast(Scalar(outside, TensorDType.Bool), _FLAG)

    return st.reduce([(value, dtype)], shape, list(range(len(shape))), False, 0, _FLAG, body)


def depends_on_inputs(index: Op, symbol_table: SymbolTable) -> bool:
    """True if a tensor depends on arguments of the function, and not only on constants and positions."""
    pending, seen = [index], set[Op]()
    while pending:
        op = pending.pop()
        value = symbol_table.get((op.name, 0))
        if value is None or isinstance(value.owner, ir.Block):
            return True
        if not op.parents and not isinstance(op, (ArangeOp, FullOp, ScalarTensorOp)):
            return True
        seen.add(op)
        pending += [parent for parent in op.parents if parent not in seen]
    return False


ops_registry = Registry()


@ops_registry.lowering("AssertOp")
def check(node: Op, symbol_table: SymbolTable) -> list[Any]:
    meta = node.args[0].tensor_meta
    if math.prod(meta.shape) != 1:
        raise LoweringError(f"the condition has shape {list(meta.shape)}, not one element")
    holds = element(value_of(node.args[0], symbol_table), [position(0) for _ in meta.shape], meta.dtype)
    fall_back_if(node, symbol_table, holds.compare("eq", 0), "the assertion does not hold")
    return [None]
