"""Indices out of range and other values that eager refuses: they are looked through first, and where one is wrong,
eager is asked.

What reads and writes by them stays inside its tensors anyhow (`bounds`), so that nothing depends on the look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.operations import ArangeOp, FullOp, ScalarTensorOp
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.mlir.bindings import arith, ir
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.carried import Carried
from buddy.compiler.ops.func import ask_eager
from buddy.compiler.ops.loops import Extent, element, index_position, position
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.utils import SymbolTable, value_of

_FLAG = TensorDType.Int32
# Whether values that eager refuses are looked for; a recipe says so for all that is lowered under it.
_checking = ContextVar("checking", default=True)


@contextmanager
def value_checks(wanted: bool) -> Iterator[None]:
    """Lower with the checks of this module, or without them."""
    token = _checking.set(wanted)
    try:
        yield
    finally:
        _checking.reset(token)


def refuse_outside(
    node: Op,
    symbol_table: SymbolTable,
    indices: Sequence[tuple[Op, Extent]],
    wraps: bool = False,
    read: Callable[[Scalar], Scalar] = lambda x: x,
) -> None:
    """Ask eager for `node` where an element of an index tensor is outside the dim of the size beside it.

    Where they may `wrap`, negative ones count from the end; `read` makes the index, from 0, of an element. Indices that
    no input tells are PyTorch's own, and right.
    """
    if not _checking.get():
        return
    told = [(op, size) for op, size in indices if 0 not in op.tensor_meta.shape and is_data(op, symbol_table)]
    for op, size in told:
        flag = element(_outside(value_of(op, symbol_table), op.tensor_meta.dtype, size, wraps, read), [], _FLAG)
        refuse_where(node, symbol_table, flag.compare("ne", 0))


def refuse_where(node: Op, symbol_table: SymbolTable, wrong: Scalar) -> None:
    """Ask eager for `node` where `wrong`, a bool, holds."""
    if not _checking.get():
        return
    Carried([]).choose(wrong, lambda: ask_eager(node, symbol_table))


def _outside(value: Any, dtype: TensorDType, size: Extent, wraps: bool, read: Callable[[Scalar], Scalar]) -> Any:
    """A tensor without dims: 1 where some index is outside. As unsigned numbers both ends are one comparison."""
    shape = st.shape_of(value)

    def body(x: Scalar, found: Scalar) -> Scalar:
        at, length = index_position(read(x)), position(size)
        at, count = (arith.addi(at, length), arith.addi(length, length)) if wraps else (at, length)
        outside = arith.cmpi(arith.CmpIPredicate.uge, at, count)
        return found | cast(Scalar(outside, TensorDType.Bool), _FLAG)

    return st.reduce([(value, dtype)], shape, list(range(len(shape))), False, 0, _FLAG, body)


def is_data(index: Op, symbol_table: SymbolTable) -> bool:
    """Whether a tensor is made of what comes from outside of the function, and not of numbers and positions alone."""
    waiting, seen = [index], set[Op]()
    while waiting:
        op = waiting.pop()
        value = symbol_table.get((op.name, 0))
        if value is None or isinstance(value.owner, ir.Block):
            return True
        if not op.parents and not isinstance(op, (ArangeOp, FullOp, ScalarTensorOp)):
            return True
        seen.add(op)
        waiting += [parent for parent in op.parents if parent not in seen]
    return False
