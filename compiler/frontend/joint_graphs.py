"""Splits joint graphs of AOTAutograd, which compute results and gradients, into a forward and a backward graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch import Tag
from torch._ops import OpOverload
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from buddy.compiler.frontend.saved_tensors import mark_repeated_view, mark_training_roles, recompute_cheap_values
from buddy.compiler.frontend.strided_views import base_of_views, returns_view, storage_of


def partition(
    keep_draws: bool, joint: GraphModule, inputs: object, *, num_fwd_outputs: int, **options: object
) -> tuple[GraphModule, GraphModule]:
    """Splits a joint graph into forward and backward graph, without unused ops and without views between them.

    Tensors between the two graphs are row-major.

    PyTorch keeps an unused op that may draw random numbers, but fails if such an op has several results and no node
    selects one. With `keep_draws`, ops that draw stay, so that later ones draw the same numbers as in eager; others are
    removed. `inputs` and `options` are those of PyTorch's partitioners.
    """
    # Imported here: the import takes long, and a program without gradients has no joint graph.
    from torch._functorch.partitioners import default_partition

    unused_draws = []
    for node in reversed(joint.graph.nodes):
        is_unused = not node.users and _may_draw(node) and isinstance(node.meta.get("val"), (tuple, list))
        if is_unused and keep_draws and _draws_numbers(node):
            unused_draws.append(node)
        elif is_unused:
            joint.graph.erase_node(node)
    joint.graph.eliminate_dead_code()
    for node in unused_draws:
        with joint.graph.inserting_after(node):
            joint.graph.call_function(getitem, (node, 0)).meta = node.meta | {"val": node.meta["val"][0]}
    scatter_into_sums(joint)
    repeat_views(joint)
    recompute_cheap_values(joint, _forward_nodes(joint))
    save_row_major(joint)
    graphs: tuple[GraphModule, GraphModule] = default_partition(
        joint, inputs, num_fwd_outputs=num_fwd_outputs, **options
    )
    remove_repeated_draws(graphs[1])
    mark_training_roles(*graphs, num_fwd_outputs)
    return graphs


def _may_draw(node: Node) -> bool:
    """True if a node calls a random op, which draws numbers for some arguments."""
    return Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _draws_numbers(node: Node) -> bool:
    """True if a random op draws numbers: attention draws none if its fourth argument, the dropout probability, is 0."""
    attention = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    return node.target is not attention or node.args[3:4] not in ((), (0.0,))


def remove_repeated_draws(backward: GraphModule) -> None:
    """Removes the random ops that the forward graph has already run, and the nodes that only these ops read.

    AOTAutograd copies them into both graphs, because ops that draw numbers are not removed if they are unused.
    """
    for node in reversed(backward.graph.nodes):
        if node.op != "call_function" or node.users or node.meta.get("partitioner_tag") != "is_forward":
            continue
        if _may_draw(node) or not node.is_impure():
            backward.graph.erase_node(node)
    backward.recompile()


# ---- views between the two graphs ------------------------------------------------------------------------------------


def repeat_views(joint: GraphModule) -> None:
    """Copies the forward views that backward ops read to the backward graph, so that their base is saved instead.

    A view that the forward graph returned would be a result that is computed, copied to separate memory, and often read
    with other strides: the weight of a linear layer is transposed in the forward graph, and transposed back in the
    backward graph. As part of the backward graph, a view costs nothing. Views stay in the forward graph if their base
    is larger than all of them together and is not saved for another reason, because saving it would take more memory.
    """
    forward = _forward_nodes(joint)
    readers = _backward_readers(joint, forward)
    copies: dict[Node, Node] = {}
    first_backward = _first_backward_node(forward, joint)
    for source, views in _views_to_repeat(readers).items():
        for view in reversed(views):
            if view not in copies:
                with joint.graph.inserting_before(first_backward):
                    copies[view] = joint.graph.node_copy(view, lambda node: copies.get(node, node))
                copies[view].meta = dict(view.meta) | {"partitioner_tag": "is_backward"}
                mark_repeated_view(copies[view])
        for user in readers[source]:
            user.replace_input_with(source, copies[source])
    # Views next to their readers are in the function of the same repeated layer. Otherwise the function would take the
    # view as an argument; arguments are contiguous, so each layer would need a copy, all made at the beginning.
    for copy in reversed(copies.values()):
        min(copy.users).prepend(copy)
    if copies:
        joint.recompile()


def _backward_readers(joint: GraphModule, forward: set[Node]) -> dict[Node, list[Node]]:
    """Returns, for each node of `forward` that backward ops read, these ops in order."""
    readers: dict[Node, list[Node]] = {}
    for user in joint.graph.nodes:
        if user in forward or user.op == "output":
            continue
        for source in user.all_input_nodes:
            if source in forward:
                readers.setdefault(source, []).append(user)
    return readers


def _first_backward_node(forward: set[Node], joint: GraphModule) -> Node:
    """Returns the node after the last one in `forward`."""
    last = max((index for index, node in enumerate(joint.graph.nodes) if node in forward), default=-1)
    return list(joint.graph.nodes)[last + 1]


def _forward_nodes(joint: GraphModule) -> set[Node]:
    """Returns the nodes up to the last one that AOTAutograd traced in the forward pass, without tangents.

    PyTorch's default partitioner puts the same nodes into the forward graph.
    """
    nodes = list(joint.graph.nodes)
    is_forward = [_is_primal(node) or node.meta.get("partitioner_tag") == "is_forward" for node in nodes]
    end = max((index + 1 for index, flag in enumerate(is_forward) if flag), default=0)
    return {node for node in nodes[:end] if node.op != "placeholder" or _is_primal(node)}


def _is_primal(node: Node) -> bool:
    return node.op == "placeholder" and "tangents" not in str(node.target)


def _views_to_repeat(readers: Mapping[Node, Sequence[Node]]) -> dict[Node, list[Node]]:
    """Returns, for nodes in `readers`, the views from each to the farthest base that may be saved instead.

    The views are in order, the nearest first. `readers` maps forward nodes to the backward nodes that read them.
    """
    chains = {node: list(_views_from(node)) for node in readers}
    # By base, the number of elements of all its views that are read.
    n_read: dict[Node, Any] = {}
    for node, chain in chains.items():
        for _, base in chain:
            n_read[base] = n_read.get(base, 0) + node.meta["val"].numel()
    views_of = {}
    for node, chain in chains.items():
        for count in range(len(chain), 0, -1):
            base = chain[count - 1][1]
            if base.op == "placeholder" or base in readers or _is_at_most(base.meta["val"].numel(), n_read[base]):
                views_of[node] = [view for views, _ in chain[:count] for view in views]
                break
    return views_of


def _views_from(node: Node) -> Iterator[tuple[list[Node], Node]]:
    """Yields the chain of views that starts at `node`: for each view its nodes, and its base, which is the next view.

    The chain ends at an op that reads several tensors, or arguments that are not constant. The nodes of a view are one
    node, or a `getitem` and the op whose result it selects.
    """
    while node.op == "call_function":
        op, views = (node.args[0], [node, node.args[0]]) if node.target is getitem else (node, [node])
        if not isinstance(op, Node) or not isinstance(op.target, OpOverload) or len(op.all_input_nodes) != 1:
            return
        (base,) = op.all_input_nodes
        value, base_value = node.meta.get("val"), base.meta.get("val")
        storage = storage_of(value)
        if storage is None or storage != storage_of(base_value) or not _is_plain_view(value, base_value):
            return
        if not returns_view(op.target):
            return
        yield views, base
        node = base


def _is_plain_view(value: torch.Tensor, base: torch.Tensor) -> bool:
    """True if a view has the dtype of its base, and neither is lazily conjugated or negated."""
    flags = (value.is_conj(), value.is_neg(), base.is_conj(), base.is_neg())
    return value.dtype == base.dtype and not any(flags)


def _is_at_most(count: object, other: object) -> bool:
    """True if `count` is at most `other`; false if one of them is symbolic."""
    return isinstance(count, int) and isinstance(other, int) and count <= other


# ---- strides between the two graphs ----------------------------------------------------------------------------------


def save_row_major(joint: GraphModule) -> None:
    """Makes the backward graph read row-major clones of forward values that have other strides.

    Compiled code computes row-major tensors, so a clone costs nothing. Without it, the forward graph would copy the
    value to eager's strides, and the backward graph would copy it back. A value stays as it is if it is a view of an
    input, if another tensor with its memory is returned or saved too, or if the backward graph returns a view of it or
    reads its memory by strides. Views in the backward graph that the new strides do not allow become reshapes: the
    graph may also run in eager.
    """
    forward = _forward_nodes(joint)
    returned = dict.fromkeys(joint.graph.output_node().all_input_nodes)
    read = {n: [user for user in n.users if user not in forward] for n in joint.graph.nodes if n in forward}
    outliving = [*returned, *(node for node, readers in read.items() if readers and node not in returned)]
    # The numbers of tensors that outlive the forward graph, by their memory.
    n_by_storage = Counter(storage_of(node.meta.get("val")) for node in outliving)
    to_clone = list[Node]()
    for node in outliving[len(returned) :]:
        value = node.meta.get("val")
        is_alone = n_by_storage[storage_of(value)] == 1 and base_of_views(node)[0].op != "placeholder"
        if is_alone and _has_other_strides(value) and not _is_read_by_strides(read[node], storage_of(value)):
            to_clone.append(node)
    values = {node: node.meta["val"].clone(memory_format=torch.contiguous_format) for node in to_clone}
    incompatible_views = _incompatible_views(joint, forward, dict(values))
    if not to_clone or incompatible_views is None:
        return
    for node, value in values.items():
        with joint.graph.inserting_after(node):
            clone = joint.graph.call_function(
                torch.ops.aten.clone.default, (node,), {"memory_format": torch.contiguous_format}
            )
        origin = {key: node.meta[key] for key in ("stack_trace", "nn_module_stack") if key in node.meta}
        clone.meta = origin | {"val": value, "partitioner_tag": "is_forward"}
        for user in read[node]:
            user.replace_input_with(node, clone)
    for view in incompatible_views:
        view.target = torch.ops.aten.reshape.default
    joint.recompile()


def _incompatible_views(joint: GraphModule, forward: set[Node], values: dict[Node, Any]) -> list[Node] | None:
    """Returns the views of the backward graph that are not possible if it reads `values`, which have other strides.

    Runs the ops that depend on `values` on fake tensors, for the strides of their results. (The metadata keeps eager's
    strides, which the graph's results have.) Returns `None` if an op reads memory by strides.
    """
    views = list[Node]()
    for node in joint.graph.nodes:
        if node in forward or (not isinstance(node.target, OpOverload) and node.target is not getitem):
            continue
        if values.keys().isdisjoint(node.all_input_nodes):
            continue
        old = node.meta.get("val")
        # Ops with symbolic results are not run again: they would add guards, or symbols that nothing defines.
        if "strided" in str(node.target) or not _is_static(old):
            return None
        args, kwargs = map_arg((node.args, node.kwargs), lambda source: values.get(source, source.meta.get("val")))
        if node.target in _VIEWS:
            if not _is_viewable(args[0], old):
                views.append(node)
            value = args[0].reshape(old.shape)
        else:
            value = node.target(*args, **kwargs)
        if _strides(value) != _strides(old):
            values[node] = value
    return views


# Ops that need strides by which their operand can be viewed.
_VIEWS = (torch.ops.aten.view.default, torch.ops.aten._unsafe_view.default)


def _is_viewable(source: torch.Tensor, result: torch.Tensor) -> bool:
    """True if a view of `source` can have the shape of `result`, which has a view with other strides."""
    try:
        source.view(result.shape)
    except (RuntimeError, ValueError):
        return False
    return True


def _is_static(value: object) -> bool:
    """True if no size or stride of a tensor, or of each tensor of a sequence, is symbolic."""
    if isinstance(value, torch.Tensor):
        return all(isinstance(number, int) for number in (*value.shape, *value.stride()))
    return not isinstance(value, list | tuple) or all(map(_is_static, value))


def _strides(value: object) -> object:
    """Returns the strides of a tensor, or those of each tensor of a sequence."""
    if isinstance(value, torch.Tensor):
        return value.stride()
    return tuple(map(_strides, value)) if isinstance(value, list | tuple) else None


def _has_other_strides(value: object) -> bool:
    """True for a plain tensor of static sizes that is not row-major, and whose elements are all in memory."""
    if not isinstance(value, torch.Tensor) or storage_of(value) is None or value.is_conj() or value.is_neg():
        return False
    return _is_static(value) and 0 not in (*value.shape, *value.stride()) and not value.is_contiguous()


def _is_read_by_strides(readers: Sequence[Node], storage: object) -> bool:
    """True if the memory is read by strides, or a view of it is returned by the graph, through one of `readers`."""
    remaining, seen = list(readers), set[Node]()
    while remaining:
        node = remaining.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "output" or "strided" in str(node.target):
            return True
        if storage_of(node.meta.get("val")) == storage:
            remaining += node.users
    return False


# ---- gradients by index ----------------------------------------------------------------------------------------------


_ZEROS = (torch.ops.aten.full.default, torch.ops.aten.full_like.default)


def scatter_into_sums(joint: GraphModule) -> None:
    """Replaces `x + scattered`, whose second operand is scattered into zeros, by a scatter into `x`.

    The gradient of an embedding whose weight is also a projection's needs no second tensor of the weight's size then.
    Elements are added in another order than in eager, so types that round more than float32 stay as they are.
    """
    aten = torch.ops.aten
    for node in list(joint.graph.find_nodes(op="call_function", target=aten.add.Tensor)):
        if node.kwargs or node.meta["val"].dtype not in (torch.float32, torch.float64):
            continue
        for x, scattered in (node.args, node.args[::-1]):
            if _is_scattered_into_zeros(scattered) and _is_only_read_by(x, node) and _has_form_of(x, node):
                _replace_by_scatter(joint, node, x, scattered)
                break
    joint.recompile()


def _replace_by_scatter(joint: GraphModule, node: Node, x: Node, scattered: Node) -> None:
    """Replaces `node`, the sum of `x` and `scattered`, by a scatter of the values of `scattered` into `x`."""
    zeros, *arguments = scattered.args
    with joint.graph.inserting_before(node):
        new = joint.graph.call_function(torch.ops.aten.index_put.default, (x, *arguments))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    # Not by `eliminate_dead_code`: unused ops that draw numbers have to stay.
    for unused in (node, scattered, zeros):
        if not unused.users:
            joint.graph.erase_node(unused)


def _is_scattered_into_zeros(node: object) -> bool:
    """True for an `index_put` that adds to zeros, and that one node reads."""
    if not isinstance(node, Node) or node.target is not torch.ops.aten.index_put.default or len(node.users) != 1:
        return False
    zeros = node.args[0]
    return node.args[3:] == (True,) and isinstance(zeros, Node) and zeros.target in _ZEROS and zeros.args[1] == 0


def _is_only_read_by(node: object, reader: Node) -> bool:
    return isinstance(node, Node) and node.op == "call_function" and list(node.users) == [reader]


def _has_form_of(node: Node, other: Node) -> bool:
    """True if the results of both nodes are tensors of the same shape and dtype."""
    value, other_value = node.meta.get("val"), other.meta["val"]
    return isinstance(value, torch.Tensor) and (value.dtype, value.shape) == (other_value.dtype, other_value.shape)
