"""Marks the values that a forward graph saves for its backward graph, which recomputes cheap values instead.

`protocol.TrainingRole` lists the marks.

The output of an activation or of a normalisation's last ops follows element by element from a tensor that the backward
graph reads anyway, such as the result of the convolution before. Reading that tensor once more costs little next to the
products and convolutions of a layer, and the saved tensors of all layers are the larger part of a training step's
memory. (PyTorch's min-cut partitioner keeps operands of products, because it expects them in memory.)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from operator import getitem

import torch
from torch import Tag
from torch._ops import OpOverload
from torch.fx import GraphModule, Node

from buddy.compiler.frontend.strided_views import returns_view
from buddy.compiler.protocol import TrainingRole

# ---- marks -----------------------------------------------------------------------------------------------------------


# The key in a node's meta of its role and opcode. The input through which another graph reads the node's result has a
# copy of this meta, but another opcode, so the role does not apply to the input.
_ROLE = "buddy_training_role"

# How PyTorch draws the same random numbers in both graphs: the forward graph saves the state of the generator.
_DRAW_AND_SAVE_STATE = torch.ops.higher_order.run_and_save_rng_state
_DRAW_AGAIN = torch.ops.higher_order.run_with_rng_state


def mark_training_roles(forward: GraphModule, backward: GraphModule, n_results: int) -> None:
    """Marks the nodes that pass a value from a forward to its backward graph, or compute a value in both graphs.

    The results of `forward` after the first `n_results` are saved for `backward`, whose other inputs are the incoming
    gradients. PyTorch's partitioners give an input, and a node that is computed again, the name of the forward node.
    """
    results = forward.graph.output_node().args[0]
    assert isinstance(results, tuple | list)
    forward_nodes = {node.name: node for node in forward.graph.nodes if node.op != "output"}
    for node in results[n_results:]:
        _mark(node, "reread" if node.op == "placeholder" else "saved")
    for node in backward.graph.nodes:
        source = forward_nodes.get(node.name)
        if node.op == "placeholder":
            _mark_backward_input(node, source)
        elif node.op == "call_function" and source is not None:
            role: TrainingRole = "viewed" if _selects_or_views(node) else "recomputed"
            _mark(node, role)
            if role == "recomputed":
                _mark(source, role)
        elif node.target is _DRAW_AGAIN:
            _mark(node, "recomputed")
    for node in forward_nodes.values():
        # The results of the op are the generator's state, which is saved, and the numbers.
        if node.target is getitem and node.args[0].target is _DRAW_AND_SAVE_STATE and node.args[1] == 1:
            _mark(node, "recomputed")


def _mark_backward_input(node: Node, source: Node | None) -> None:
    """Marks an input of a backward graph; `source` is the forward node of the same name, if there is one."""
    if source is not None and source.op == "placeholder":
        _mark(node, "reread")
    elif "tangents" not in str(node.target):  # saved states of random generators have names of their own
        _mark(node, "saved")


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


# ---- recomputation ---------------------------------------------------------------------------------------------------


# Smaller tensors, in bytes, are saved: each op that is recomputed costs some time, too.
_MIN_BYTES = 64 << 10
# The maximum number of ops that are recomputed for one tensor: a residual sum of two normalised tensors has 13.
_MAX_OPS = 16
# A tensor that has this many times fewer elements than the recomputed one may be saved in its place, such as the
# factors of a normalisation.
_MIN_RATIO = 32

_COPIES = (torch.ops.aten.clone.default, torch.ops.aten._to_copy.default)
# Element-wise ops that take much longer than to read their operand.
_EXPENSIVE = frozenset({"digamma", "erfinv", "igamma", "igammac", "lgamma", "mvlgamma", "polygamma"})


def recompute_cheap_values(joint: GraphModule, forward: set[Node]) -> None:
    """Copies ops of `joint` whose results are cheap to compute again from the forward to the backward graph.

    `forward` are the nodes of the forward graph. An op is copied next to its first reader, so that it belongs to the
    same repeated layer, and its result is live as briefly as possible. A value that would be computed from another
    recomputed value is saved instead: the other value would be live until the backward pass reaches its own readers.
    """
    returned = set(joint.graph.output_node().all_input_nodes)
    readers = {node: [user for user in node.users if user not in forward] for node in forward}
    candidates = [
        node for node in joint.graph.nodes if node in forward and readers[node] and _is_worthwhile(node, returned)
    ]
    saved = {node for node in forward if readers[node]} - set(candidates)
    recomputed: set[Node] = set()
    clones: dict[Node, Node] = {}
    for node in candidates:
        ops = _ops_to_repeat(node, saved)
        if ops is None or not recomputed.isdisjoint(ops):
            saved.add(node)
            continue
        recomputed.add(node)
        replacements = {
            source: _clone_of(source, joint, clones)
            for source in _sources_of(ops)
            if source.op == "placeholder" and not readers[source]
        }
        copy = _copy_ops(ops, replacements, min(readers[node]))
        mark_recomputed(node)
        for user in readers[node]:
            user.replace_input_with(node, copy)
    joint.recompile()


def _copy_ops(ops: Sequence[Node], replacements: Mapping[Node, Node], reader: Node) -> Node:
    """Copies `ops`, which are in order, next to `reader`, a node of the backward graph; returns the last copy.

    The copies read `replacements[node]` in place of `node`.
    """
    copies = dict(replacements)
    for op in ops:
        with reader.graph.inserting_before(reader):
            copies[op] = reader.graph.node_copy(op, lambda node: copies.get(node, node))
        copies[op].meta = dict(op.meta) | {"partitioner_tag": "is_backward"}
        mark = mark_repeated_view if _calls_view_op(op) else mark_recomputed
        mark(copies[op])
    return copies[ops[-1]]


def _is_worthwhile(node: Node, returned: set[Node]) -> bool:
    """True if `node` is large, is computed by a cheap op, and is not among the nodes that the program returns."""
    return _is_cheap(node) and node not in returned and _bytes_of(node) >= _MIN_BYTES


def _ops_to_repeat(node: Node, saved: set[Node]) -> list[Node] | None:
    """Returns the ops that compute `node` from values that are saved or small, in order.

    Returns `None` if one of them is not cheap, or if there are more than `_MAX_OPS`.
    """
    ops: list[Node] = []
    remaining = [node]
    while remaining:
        op = remaining.pop()
        if op in ops:
            continue
        ops.append(op)
        if len(ops) > _MAX_OPS or not _is_cheap(op):
            return None
        remaining += [source for source in op.all_input_nodes if source not in saved and not _is_small(source, node)]
    return sorted(ops)


def _sources_of(ops: Sequence[Node]) -> Iterator[Node]:
    """Yields the nodes that `ops` read and that are not among them."""
    yield from dict.fromkeys(source for op in ops for source in op.all_input_nodes if source not in ops)


def _clone_of(primal: Node, joint: GraphModule, clones: dict[Node, Node]) -> Node:
    """Returns a clone of an input in the forward graph, one of `clones` if it has been cloned before.

    A program may write to an input after the forward pass if eager does not save the input.
    """
    if primal not in clones:
        last_input = next(node for node in reversed(joint.graph.nodes) if node.op == "placeholder")
        with joint.graph.inserting_after(last_input):
            clones[primal] = joint.graph.call_function(torch.ops.aten.clone.default, (primal,))
        clones[primal].meta = {"val": primal.meta["val"].clone(), "partitioner_tag": "is_forward"}
    return clones[primal]


def _is_small(source: Node, node: Node) -> bool:
    """True if `source` is a tensor with far fewer elements than `node`, so that it can be saved in place of `node`.

    A view is not saved, because it shares its memory with an input that the program may write to.
    """
    value = source.meta.get("val")
    if _calls_view_op(source):
        return False
    return isinstance(value, torch.Tensor) and 0 < _bytes_of(source) * _MIN_RATIO <= _bytes_of(node)


def _calls_view_op(node: Node) -> bool:
    return isinstance(node.target, OpOverload) and returns_view(node.target)


def _is_cheap(node: Node) -> bool:
    """True for an op that computes each element of one tensor from elements of its operands, without random numbers."""
    target = node.target
    if node.op != "call_function" or not isinstance(target, OpOverload):
        return False
    if target.namespace not in ("aten", "prims") or target._schema.is_mutable:
        return False
    name = target._schema.name.partition("::")[2]
    if Tag.nondeterministic_seeded in target.tags or name in _EXPENSIVE or name.startswith("special_"):
        return False
    return Tag.pointwise in target.tags or target in _COPIES or returns_view(target)


def _bytes_of(node: Node) -> int:
    """Returns the bytes of the tensor that `node` computes; 0 if it is no plain tensor of static sizes."""
    value = node.meta.get("val")
    if type(value) is not torch._subclasses.FakeTensor or value.is_sparse or value.is_quantized:
        return 0
    count = value.numel()
    return count * value.element_size() if isinstance(count, int) else 0
