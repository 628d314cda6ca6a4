"""Passes memrefs to functions of kernels: unchanged, or as base and offset if the offset is dynamic.

Calls pass buffers as bare pointers, which do not include an offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from buddy.compiler.mlir.bindings import ir, memref
from buddy.compiler.passes.kernels.access import flat_type, flatten, layout_of


def argument_types(types: Sequence[Any]) -> list[Any]:
    """Returns the types of a kernel's arguments, for operands of `types`."""
    return [found for type_ in types for found in _types_passed(type_)]


def passed_values(values: Sequence[Any]) -> list[Any]:
    """Returns the arguments for the memrefs `values`; emitted at the insertion point."""
    return [part for value in values for part in _values_passed(value)]


def flat_operands(arguments: Sequence[Any], types: Sequence[Any]) -> list[Any]:
    """Returns the operands of `types` as 1-D memrefs, from a kernel's arguments; emitted at the insertion point."""
    left = iter(arguments)
    return [
        _flat_operand(next(left), next(left), type_) if _has_dynamic_offset(type_) else flatten(next(left))
        for type_ in types
    ]


def _has_dynamic_offset(type_: Any) -> bool:
    return layout_of(type_).offset is None


def _types_passed(type_: Any) -> list[Any]:
    if not _has_dynamic_offset(type_):
        return [type_]
    return [ir.MemRefType.get([], type_.element_type, memory_space=type_.memory_space), ir.IndexType.get()]


def _values_passed(value: Any) -> list[Any]:
    return list(memref.ExtractStridedMetadataOp(value).results[:2]) if _has_dynamic_offset(value.type) else [value]


def _flat_operand(base: Any, offset: Any, type_: Any) -> Any:
    dynamic, span = ir.ShapedType.get_dynamic_stride_or_offset(), layout_of(type_).span
    return memref.reinterpret_cast(flat_type(type_), base, [offset], [], [], [dynamic], [span], [1])
