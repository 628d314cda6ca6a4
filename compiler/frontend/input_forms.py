"""Rejects inputs whose form compiled code does not support, and that the graph does not show completely."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._guards import Guard, TracingContext
from torch.autograd import forward_ad
from torch.fx import GraphModule, Node

from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.names import node_title
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.support.dynamo_internals import GlobalStateSource, GuardBuilder


def check_inputs(module: GraphModule, inputs: Sequence[object]) -> None:
    """Raises `UnsupportedGraphError` for a Dynamo graph with inputs that compiled code does not read.

    These are jagged nested tensors, tensors of a layout other than strided, and tensors that may have tangents.
    `inputs` are the real inputs, because PyTorch traces a tensor of the layout MKLDNN as a strided one.
    """
    _check_tangents()
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node in placeholders:
        if _is_ragged(node.meta.get("example_value")):
            raise UnsupportedGraphError(Diagnostic(f"{node.name} is a jagged nested tensor, or a ragged dim of one"))
    for node, value in zip(placeholders, inputs, strict=False):
        if isinstance(value, torch.Tensor) and value.layout != torch.strided:
            raise _unsupported(node, value.layout)


def _is_ragged(value: object) -> bool:
    """True if a value is a jagged nested tensor, or a ragged dim of one."""
    if isinstance(value, torch.Tensor):
        return value.is_nested
    return isinstance(value, torch.SymInt) and bool(value.node.is_nested_int())


def _unsupported(node: Node, layout: torch.layout) -> UnsupportedGraphError:
    name = str(layout).removeprefix("torch.")
    return UnsupportedGraphError(
        Diagnostic(
            what=f"{node_title(node)} has the layout {name}, which compiled code cannot represent",
            todo="pass its to_dense(), or let the graph stay in eager (fallback='eager')",
            node=node.name,
        )
    )


def _check_tangents() -> None:
    """Raises `UnsupportedGraphError` inside `forward_ad.dual_level()`, where inputs may have tangents.

    Compiled code would drop them: neither the graph nor the dispatch keys of a tensor show a tangent, and TorchDynamo
    does not compile again for it. The guard makes it compile again when the level changes.
    """
    context = TracingContext.try_get()
    if context is not None:
        context.guards_context.dynamo_guards.add(Guard(GlobalStateSource(), GuardBuilder.DUAL_LEVEL))
    if forward_ad._current_level >= 0:
        raise UnsupportedGraphError(
            Diagnostic(
                what="the call is inside forward_ad.dual_level(), and compiled code does not compute tangents",
                todo="use torch.func.jvp inside the compiled function, or let the graph stay in eager "
                "(fallback='eager')",
            )
        )
