"""Decomposes PrimTorch's ops (`torch.ops.prims`) by their ATen implementations."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch._ops import OpOverload, OpOverloadPacket
from torch.fx import GraphModule


def collapse(x: torch.Tensor, start: int, end: int) -> torch.Tensor:
    """Dims `start` to `end`, both included, as one; PyTorch's own implementation writes to memory."""
    return x.flatten(start, end).clone(memory_format=torch.contiguous_format)


def copy_strided(x: torch.Tensor, stride: Sequence[int]) -> torch.Tensor:
    """A copy with other strides; PyTorch's own implementation writes to memory."""
    room = torch.empty_strided(x.shape, stride, dtype=x.dtype, device=x.device)
    return torch.ops.aten.copy.default(room, x)


def normal(shape: Sequence[int], *, mean: float, std: float, **form: Any) -> torch.Tensor:
    generator = form.pop("generator", None)
    return torch.ops.aten.normal_functional.default(torch.empty(shape, **form), mean, std, generator=generator)


def uniform(shape: Sequence[int], *, low: float, high: float, **form: Any) -> torch.Tensor:
    generator = form.pop("generator", None)
    return torch.ops.aten.uniform.default(torch.empty(shape, **form), low, high, generator=generator)


def decompositions() -> dict[Any, Callable[..., Any]]:
    """A rule for each op of `torch.ops.prims` that does not return a view."""
    prims = torch.ops.prims
    own = {
        prims.collapse.default: collapse, prims.copy_strided.default: copy_strided, prims.normal.default: normal,
        prims.uniform.default: uniform,
    }  # fmt: skip
    return {op: op.impl_aten for op in _ops() if not _gives_views(op)} | own


def _ops() -> list[Any]:
    names = (getattr(torch.ops.prims, name) for name in dir(torch.ops.prims))
    defaults = [packet.default for packet in names if isinstance(packet, OpOverloadPacket)]
    return [op for op in defaults if getattr(op, "impl_aten", None) is not None]


def _gives_views(op: OpOverload) -> bool:
    return any(argument.alias_info is not None for argument in op._schema.arguments)


def views_by_aten(module: GraphModule) -> None:
    """Replaces the ops of a Dynamo graph that return views by ATen's, which are the only ones AOTAutograd
    functionalizes.
    """
    changed = False
    for node in module.graph.nodes:
        op: Any = node.target
        if isinstance(op, OpOverloadPacket) and op._qualified_op_name.startswith("prims::"):
            op = op.default
        if isinstance(op, OpOverload) and op.namespace == "prims" and _gives_views(op):
            node.target = op.impl_aten
            changed = True
    if changed:
        module.recompile()
