"""Falls back to eager if an algorithm fails on the data; eager then raises its error, or returns a result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import structured as st
from buddy.compiler.ops.func import eager_call
from buddy.compiler.ops.loop_state import LoopState
from buddy.compiler.ops.loops import element, for_each, insert, number
from buddy.compiler.ops.matrices.stack import INT32, as_stack, meta_of
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar
from buddy.compiler.ops.utils import SymbolTable

ops_registry = Registry()


def results_or_eager(info: Any, node: Op, symbol_table: SymbolTable, results: Sequence[Any] = ()) -> list[Any]:
    """Returns `results`, or eager's results if an element of `info` [count] (i32) is not 0.

    Results that no node reads may be `None`.
    """
    state = LoopState([value for value in results if value is not None])

    def call_eager() -> None:
        found = enumerate(eager_call(node, symbol_table)[: len(results)])
        kept = [(piece, meta_of(node, i).dtype) for i, piece in found if results[i] is not None]
        pairs = zip(state.tensors, kept, strict=True)
        state.tensors = [_copy_into(value, result, dtype) for value, (result, dtype) in pairs]

    state.choose(_any_failed(info), call_eager)
    made = iter(state.tensors)
    metas = [meta_of(node, i) for i in range(len(results))]
    return [
        st.empty(m.shape, m.dtype) if value is None else next(made) for m, value in zip(metas, results, strict=True)
    ]


def _any_failed(info: Any) -> Scalar:
    def visit(at: list[Any], state: list[Any]) -> list[Any]:
        return [(Scalar(state[0], INT32) | element(info, at, INT32)).value]

    (found,) = for_each(st.shape_of(info), [number(0, INT32).value], visit)
    return Scalar(found, INT32).compare("ne", 0)


def _copy_into(value: Any, result: Any, dtype: TensorDType) -> Any:
    """Copies the elements of `result` into the memory of `value` one by one.

    Both branches must yield the same buffer, and an insertion of the whole slice would be folded to `result` itself.
    """

    def visit(at: list[Any], state: list[Any]) -> list[Any]:
        return [insert(element(result, at, dtype), at, state[0])]

    return for_each(st.shape_of(value), [value], visit)[0]


@ops_registry.lowering("CheckErrorsOp")
def check_errors(node: Op, symbol_table: SymbolTable) -> list[Any]:
    results_or_eager(as_stack(node.args[0], symbol_table, rank=0), node, symbol_table)
    return [None]
