"""Sizes and offsets of slices at data-dependent numbers: torch makes them symbols, here they are computed."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

from buddy.compiler.frontend.symbols import GraphSymbols, UnknownSymbolError
from buddy.compiler.graph.sizes import Dim, from_front, largest, smallest

_SLICE, _SELECT = torch.ops.aten.slice.Tensor, torch.ops.aten.select.int
_END = 2**63 - 1


def record_slices(node: Node, symbols: GraphSymbols) -> None:
    """Defines the size and the offset of a slice in `symbols`; ignores other nodes and unknown values.

    Positions are clamped to their dim, like eager's.
    """
    if node.target not in (_SLICE, _SELECT) or not node.meta.get("unbacked_bindings"):
        return
    source, value = node.args[0].meta["val"], node.meta["val"]
    dim = (node.args[1] if len(node.args) > 1 else 0) % source.dim()

    def inside(position: Any, last: Dim) -> Dim:
        number = symbols.size(position.meta["val"] if isinstance(position, Node) else position)
        return smallest(largest(from_front(number, length), 0), last)

    try:
        length, stride, offset = map(symbols.size, (source.shape[dim], source.stride(dim), source.storage_offset()))
        if node.target is _SELECT:
            symbols.define(value.storage_offset(), offset + inside(node.args[2], length - 1) * stride)
            return
        first, last, step = (*node.args[2:], None, None, None)[:3]
        begin, end = inside(first or 0, length), length if last in (None, _END) else inside(last, length)
        symbols.define(value.storage_offset(), offset + begin * stride)
        symbols.define(value.shape[dim], (largest(end - begin, 0) + (step or 1) - 1) // (step or 1))
    except UnknownSymbolError:
        return
