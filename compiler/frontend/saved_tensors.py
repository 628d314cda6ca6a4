"""Marks the values that a forward graph saves for its backward graph, and the nodes that both graphs compute.

`protocol.TrainingRole` lists the roles that nodes get.
"""

from __future__ import annotations

from operator import getitem

import torch
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from buddy.compiler.frontend.strided_views import returns_view
from buddy.compiler.protocol import TrainingRole

# The key in a node's meta of its role, with the node's opcode: a copy of the node's meta, on the input through which
# another graph reads the node's result, has another opcode, and does not count.
_ROLE = "buddy_training_role"

# How PyTorch draws the same random numbers in both graphs: the forward graph saves the state of the generator.
_DRAW_AND_SAVE_STATE = torch.ops.higher_order.run_and_save_rng_state
_DRAW_AGAIN = torch.ops.higher_order.run_with_rng_state


def mark_training_roles(forward: GraphModule, backward: GraphModule, n_results: int) -> None:
    """Marks the nodes of a forward and its backward graph that pass a value on, or compute it in both graphs.

    The results of `forward` after the first `n_results` are saved for `backward`, whose other inputs are the incoming
    gradients. PyTorch's partitioners give an input, and a node that is computed again, the name of the forward node.
    """
    results = forward.graph.output_node().args[0]
    assert isinstance(results, tuple | list)
    forward_nodes = {node.name: node for node in forward.graph.nodes if node.op != "output"}
    for node in results[n_results:]:
        _mark(node, "reread" if node.op == "placeholder" else "saved")
    for node in backward.graph.nodes:
        if node.op == "placeholder":
            source = forward_nodes.get(node.name)
            if source is not None and source.op == "placeholder":
                _mark(node, "reread")
            elif "tangents" not in str(node.target):  # saved states of random generators have names of their own
                _mark(node, "saved")
        elif node.op == "call_function" and node.name in forward_nodes:
            role: TrainingRole = "viewed" if _selects_or_views(node) else "recomputed"
            _mark(node, role)
            if role == "recomputed":
                _mark(forward_nodes[node.name], role)
        elif node.target is _DRAW_AGAIN:
            _mark(node, "recomputed")
    for node in forward_nodes.values():
        # The results of the op are the generator's state, which is saved, and the numbers.
        if node.target is getitem and node.args[0].target is _DRAW_AND_SAVE_STATE and node.args[1] == 1:
            _mark(node, "recomputed")


def mark_repeated_view(node: Node) -> None:
    """Marks a node of the joint graph as a view that the backward graph makes again."""
    _mark(node, "viewed")


def mark_recomputed(node: Node) -> None:
    """Marks a node of the joint graph that the backward graph computes again."""
    _mark(node, "recomputed")


def copy_training_role(source: Node, target: Node) -> None:
    """Gives `target`, which replaces `source`, its role."""
    if _ROLE in source.meta:
        target.meta[_ROLE] = source.meta[_ROLE]


def training_role(node: Node) -> TrainingRole:
    """Returns the role of a node, "" without one."""
    role, opcode = node.meta.get(_ROLE, ("", ""))
    if opcode != node.op:
        return ""
    # An op that has replaced a saved node may consist of several nodes with its meta; the graph returns one of them.
    is_inner = role == "saved" and node.op != "placeholder" and all(user.op != "output" for user in node.users)
    return "" if is_inner else role


def _mark(node: Node, role: TrainingRole) -> None:
    """Gives `node` a role, in place of an earlier one."""
    node.meta[_ROLE] = (role, node.op)


def _selects_or_views(node: Node) -> bool:
    """True if a node selects a result of another one, or its result shares the memory of an operand."""
    return node.target is getitem or (isinstance(node.target, OpOverload) and returns_view(node.target))
