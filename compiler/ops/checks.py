"""Assertions on data. If one fails, the node falls back to eager, which raises."""

from __future__ import annotations

import math
from typing import Any

from buddy.compiler.graph.operation import Op
from buddy.compiler.ops.loops import element, position
from buddy.compiler.ops.ranges import fall_back_if
from buddy.compiler.ops.registry import Registry
from buddy.compiler.ops.utils import LoweringError, SymbolTable, value_of

ops_registry = Registry()


@ops_registry.lowering("AssertOp")
def check(node: Op, symbol_table: SymbolTable) -> list[Any]:
    meta = node.args[0].tensor_meta
    if math.prod(meta.shape) != 1:
        raise LoweringError(f"the condition has shape {list(meta.shape)}, not one element")
    holds = element(value_of(node.args[0], symbol_table), [position(0) for _ in meta.shape], meta.dtype)
    fall_back_if(node, symbol_table, holds.compare("eq", 0))
    return [None]
