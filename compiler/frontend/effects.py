"""What only orders or checks a traced graph is taken out of it: tokens of effects, assertions about element types."""

from __future__ import annotations

from operator import getitem

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import has_side_effect

_WITH_EFFECTS = torch.ops.higher_order.with_effects
_MAKE, _SINK = torch.ops.prims._make_token.default, torch.ops.prims._sink_tokens.default
_ASSERT_FORM = torch.ops.aten._assert_tensor_metadata.default


def without_assertions_of_form(module: GraphModule) -> None:
    """Take off what asserts the element type, device or layout of a tensor, as programs of `torch.export` do.

    Tracing has checked these on the forms that the graph is compiled for; a call with others is traced again.
    """
    found = [node for node in module.graph.nodes if node.target is _ASSERT_FORM]
    for node in found:
        module.graph.erase_node(node)
    if found:
        module.recompile()


def without_tokens(module: GraphModule) -> None:
    """Replaces each `with_effects(token, op, …)` by a call of `op`, and removes the tokens that the graph makes.

    AOTAutograd orders ops with effects by tokens; graphs here keep the program's order anyway.
    Calls of subgraphs stay as they are.
    """
    wrapped = [node for node in module.graph.nodes if node.target is _WITH_EFFECTS]
    if not all(isinstance(node.args[1], OpOverload) for node in wrapped):
        return
    for node in wrapped:
        _unwrap(module, node)
    for node in reversed(module.graph.nodes):
        if node.target is _SINK or (node.target is _MAKE and not node.users):
            module.graph.erase_node(node)
    if wrapped:
        module.recompile()


def _unwrap(module: GraphModule, node: Node) -> None:
    token, op, *arguments = node.args
    has_side_effect(op)  # otherwise unused calls are removed as dead code
    with module.graph.inserting_before(node):
        call = module.graph.call_function(op, tuple(arguments), dict(node.kwargs))
    several, (_, *values) = len(op._schema.returns) > 1, node.meta["val"]
    call.meta = node.meta | {"val": tuple(values) if several else next(iter(values), None)}
    for user in list(node.users):
        assert user.target is getitem
        index = user.args[1]
        if index and several:
            user.args = (call, index - 1)
            continue
        user.replace_all_uses_with(call if index else token)
        module.graph.erase_node(user)
    module.graph.erase_node(node)
