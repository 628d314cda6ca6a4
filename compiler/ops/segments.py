"""Reductions of consecutive segments of a dim."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import product
from buddy.compiler.graph.types import TensorDType
from buddy.compiler.ops import scalar as s
from buddy.compiler.ops.loop_state import compare, minus, pick, plus
from buddy.compiler.ops.loops import element, for_each, index_of, index_position, insert, number, position
from buddy.compiler.ops.matrices.failures import results_or_eager
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.scalar import Scalar, cast
from buddy.compiler.ops.structured import empty, filled, reshape
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of

ops_registry = Registry()

Combine = Callable[[Scalar, Scalar], Scalar]
# How an element is combined with the previous result, and the initial value of a segment.
_MODES: dict[str, tuple[Combine, float]] = {
    "sum": (lambda old, new: old + new, 0),
    "mean": (lambda old, new: old + new, 0),
    "prod": (lambda old, new: old * new, 1),
    "max": (s.maximum, -math.inf),
    "min": (s.minimum, math.inf),
}
_FLAG = TensorDType.Int32


@ops_registry.lowering("SegmentReduceOp")
def segment_reduce(node: Op, symbol_table: SymbolTable) -> Any:
    """Reduces segments given by lengths or by offsets.

    Falls back to eager if lengths are negative or do not add up to the size of the dim.
    """
    data, meta, axis = node.args[0], node.tensor_meta, node.kwargs.get("axis", 0)
    shape, lengths, offsets = data.tensor_meta.shape, node.kwargs.get("lengths"), node.kwargs.get("offsets")
    if (lengths is None and offsets is None) or 0 in (*shape, *meta.shape):
        raise LoweringError("the segments are of an empty tensor, or given by indices")
    outer, inner = product(shape[:axis]), product(shape[axis + 1 :])
    count, dtype = meta.shape[axis], meta.dtype
    whole = reshape(value_of(data, symbol_table), [outer, shape[axis], inner], dtype)
    limits: Any = lengths if offsets is None else offsets
    ends = reshape(value_of(limits, symbol_table), [outer, limits.tensor_meta.shape[-1]], limits.tensor_meta.dtype)
    kind = limits.tensor_meta.dtype

    def bounds(at: list[Any], cursor: Any) -> tuple[Any, Any, Scalar]:
        """Returns start and end of a segment, and whether its length is invalid."""
        if offsets is not None:
            first, last = (element(ends, [at[0], plus(at[1], i)], kind) for i in (0, 1))
            return _clamp(first, shape[axis]), _clamp(last, shape[axis]), number(False, TensorDType.Bool)
        length = element(ends, at, kind)
        begin = pick(compare("eq", at[1], 0), 0, cursor)
        return begin, plus(begin, _clamp(length, shape[axis] + 1)), length.compare("lt", 0)

    def visit(at: list[Any], held: list[Any]) -> list[Any]:
        begin, end, wrong = bounds(at, held[1])
        if offsets is None:
            wrong |= compare("eq", at[1], count - 1) & compare("ne", end, shape[axis])
        last = pick(compare("slt", end, shape[axis]), end, shape[axis])
        found = _reduce_segment(node, held[0], whole, at, (begin, last))
        return [found, end, (Scalar(held[2], _FLAG) | cast(wrong, _FLAG)).value]

    start = [empty([outer, count, inner], dtype), position(0), number(0, _FLAG).value]
    found, _, faults = for_each([outer, count], start, visit)
    info = insert(faults, [position(0)], filled(0, [1], _FLAG))
    return results_or_eager(info, node, symbol_table, [reshape(found, meta.shape, dtype)])[0]


def _clamp(value: Scalar, size: int) -> Any:
    """Clamps a number to a position from 0 to `size`."""
    wide = cast(value, TensorDType.Int64)
    return index_position(s.minimum(s.maximum(wide, 0), size))


def _reduce_segment(node: Op, into: Any, whole: Any, at: list[Any], ends: tuple[Any, Any]) -> Any:
    """Returns `into` [outer, segments, inner] with the reduction of segment `at` of `whole`, from and up to `ends`."""
    dtype, mode, initial = node.tensor_meta.dtype, node.args[1], node.kwargs.get("initial")
    combine, neutral = _MODES[mode]
    inner = node.tensor_meta.shape[len(node.tensor_meta.shape) - _inner_rank(node) :]
    length = minus(ends[1], ends[0])
    begin = number(neutral if initial is None else initial, dtype)
    if mode == "mean" and initial is None:
        begin = s.select(compare("sgt", length, 0), begin, number(math.nan, dtype))

    def clear(k: list[Any], held: list[Any]) -> list[Any]:
        return [insert(begin, [*at, k[0]], held[0])]

    def take(step: list[Any], held: list[Any]) -> list[Any]:
        here, j = [*at, step[1]], plus(ends[0], step[0])
        new = combine(element(held[0], here, dtype), element(whole, [at[0], j, step[1]], dtype))
        return [insert(new, here, held[0])]

    def average(k: list[Any], held: list[Any]) -> list[Any]:
        x, many = element(held[0], [*at, k[0]], dtype), cast(index_of(length), dtype)
        return [insert(s.select(many > 0, x / s.maximum(many, 1), x), [*at, k[0]], held[0])]

    width = product(inner)
    (into,) = for_each([width], [into], clear)
    (into,) = for_each([length, width], [into], take)
    return for_each([width], [into], average)[0] if mode == "mean" else into


def _inner_rank(node: Op) -> int:
    """Returns the number of dims after the reduced one."""
    return len(node.args[0].tensor_meta.shape) - 1 - int(node.kwargs.get("axis", 0))
