"""Assertions on data. If one fails, the node runs in eager, which raises."""

from __future__ import annotations

import math
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.ops.loops import element, position
from buddy.compiler.ops.ranges import refuse_where
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of

ops_registry = Registry()


@ops_registry.lowering("AssertOp")
def check(node: Op, symbol_table: SymbolTable) -> list[Any]:
    meta = node.args[0].tensor_meta
    if math.prod(meta.shape) != 1:
        raise LoweringError(f"a condition of shape {list(meta.shape)} instead of one element")
    holds = element(value_of(node.args[0], symbol_table), [position(0) for _ in meta.shape], meta.dtype)
    refuse_where(node, symbol_table, holds.compare("eq", 0))
    return [None]
