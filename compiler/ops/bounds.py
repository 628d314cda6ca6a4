"""Checks for indices and other data that eager rejects, and clamps indices so that no access is out of bounds.

Compiled code checks indices before it uses them. If one is out of range, it calls eager, which raises the error. The
check does not protect memory, because compiled code cannot leave a loop early. Therefore each index is also clamped to
its dim by one unsigned minimum, without a branch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

from buddy.compiler.graph.node import Op
from buddy.compiler.graph.operations import ArangeOp, FullOp, ScalarTensorOp
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.func import call_eager_for_errors
from buddy.compiler.ops.loops import Extent, LoopState, element, position, scalar_to_index
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of


def clamp_index(index: Scalar, size: Extent, wraps: bool = False) -> ir.Value:
    """Returns a data-dependent index as a valid position in a dim of `size`.

    With `wraps`, negative indices count from the end. An index out of range, below or above, becomes the last position.
    Raises `LoweringError` for a dim of size 0, which has no valid position.
    """
    if isinstance(size, int) and size == 0:
        raise LoweringError("the indexed dim is empty, which eager rejects")
    signed_index, length = scalar_to_index(index), position(size)
    if wraps:
        negative = arith.cmpi(arith.CmpIPredicate.slt, signed_index, position(0))
        signed_index = arith.select(negative, arith.addi(signed_index, length), signed_index)
    return arith.minui(signed_index, arith.subi(length, position(1)))


# The element type of the tensor that says whether an index is out of range.
_FLAG_TYPE = TensorDType.Int32
# Whether to emit checks, which an option of the recipe decides.
_checks_enabled = ContextVar("_checks_enabled", default=True)


@contextmanager
def value_checks(enabled: bool) -> Iterator[None]:
    """Enables or disables the checks of this module for lowerings in the `with` block."""
    token = _checks_enabled.set(enabled)
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
    """Emits a check that falls back to eager for `node` if an index is out of range.

    `indices` are index tensors, each with the size of the dim that it indexes. With `wraps`, negative indices count
    from the end. `read` converts an element to an index from 0. Index tensors that do not depend on inputs come from
    PyTorch's decompositions, and are not checked.
    """
    if not _checks_enabled.get():
        return
    checked = [
        (op, size) for op, size in indices if 0 not in op.tensor_meta.shape and depends_on_inputs(op, symbol_table)
    ]
    for op, size in checked:
        flag_tensor = _out_of_range_flag(value_of(op, symbol_table), op.tensor_meta.dtype, size, wraps, read)
        flag = element(flag_tensor, [], _FLAG_TYPE)
        fall_back_if(node, symbol_table, flag.compare("ne", 0), "an index is out of range")


def fall_back_if(node: Op, symbol_table: SymbolTable, invalid: Scalar, condition: str) -> None:
    """Emits a check that falls back to eager for the error of `node` if `invalid`, a bool, is true.

    `condition` says in words when `invalid` is true.
    """
    if not _checks_enabled.get():
        return
    LoopState([]).branch(invalid, lambda: call_eager_for_errors(node, symbol_table, condition))


def _out_of_range_flag(
    value: ir.Value, dtype: TensorDType, size: Extent, wraps: bool, read: Callable[[Scalar], Scalar]
) -> ir.Value:
    """Returns a zero-dimensional tensor: 1 if an index in `value` is out of range for `size`, else 0."""
    shape = st.shape_of(value)

    def body(x: Scalar, flag: Scalar) -> Scalar:
        index, length = scalar_to_index(read(x)), position(size)
        end = length
        if wraps:
            # Valid wrapping indices are -length .. length - 1; adding the length makes them 0 .. 2 * length - 1.
            index, end = arith.addi(index, length), arith.addi(length, length)
        # An unsigned comparison: a negative index is a large number.
        is_outside = arith.cmpi(arith.CmpIPredicate.uge, index, end)
        return flag | cast(Scalar(is_outside, TensorDType.Bool), _FLAG_TYPE)

    return st.reduce([(value, dtype)], shape, list(range(len(shape))), False, 0, _FLAG_TYPE, body)


def depends_on_inputs(index: Op, symbol_table: SymbolTable) -> bool:
    """True if a tensor depends on arguments of the function, and not only on constants and `arange`."""
    pending, seen = [index], set[Op]()
    while pending:
        op = pending.pop()
        value = symbol_table.get((op.name, 0))
        # A value that a block owns is an argument of the function.
        if value is None or isinstance(value.owner, ir.Block):
            return True
        if not op.parents and not isinstance(op, (ArangeOp, FullOp, ScalarTensorOp)):
            return True
        seen.add(op)
        pending += [parent for parent in op.parents if parent not in seen]
    return False


ops_registry = Registry()


@ops_registry.lowering("AssertOp")
def check_assertion(node: Op, symbol_table: SymbolTable) -> list[ir.Value | None]:
    """Emits a check that falls back to eager, which raises, if the condition is false. Returns no value."""
    meta = node.args[0].tensor_meta
    if math.prod(meta.shape) != 1:
        raise LoweringError(f"the condition has shape {list(meta.shape)}, not one element")
    condition = element(value_of(node.args[0], symbol_table), [position(0) for _ in meta.shape], meta.dtype)
    fall_back_if(node, symbol_table, condition.compare("eq", 0), "the assertion does not hold")
    return [None]
