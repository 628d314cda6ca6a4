"""Views of an ATen graph: the node whose memory a view shares, and `as_strided`, which reads memory by strides."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import getitem
from typing import Any

import torch
from torch._ops import OpOverload
from torch._prims_common import is_non_overlapping_and_dense_or_false
from torch.fx import Graph, GraphModule, Node

aten = torch.ops.aten

# Runs a graph: takes its inputs, and returns its results.
Runner = Callable[..., Sequence[torch.Tensor]]
# The op that reads memory by strides, and the op that returns a copy of the memory with new values at some strides.
_READ, _WRITE = aten.as_strided.default, aten.as_strided_scatter.default


def base_of_views(node: Node) -> tuple[Node, list[Node]]:
    """Returns the base of `node`, whose memory `node` uses, and the ops from `node` to the base, which return views.

    The base is an input, or an op that allocates memory; it is `node` itself if the result of `node` is not a view.
    """
    storage, views = storage_of(node.meta.get("val")), []
    while node.op == "call_function" and storage is not None:
        op_node = node.args[0] if node.target is getitem else node
        parents = [parent for parent in op_node.all_input_nodes if storage_of(parent.meta.get("val")) == storage]
        # PyTorch traces a quantised tensor as the floats that it represents; in eager these are in a separate storage.
        if not parents or op_node.target is torch.ops.aten.dequantize.self:
            break
        views.append(op_node)
        node = parents[0]
    return node, views


def storage_of(value: object) -> int | None:
    """Returns a number that identifies a tensor's storage; `None` for a value without strides."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    return int(value.untyped_storage()._cdata)


def returns_view(op: OpOverload) -> bool:
    """True if the result of an op is a view of an operand, or may be treated as one."""
    aliases = [argument.alias_info for argument in op._schema.arguments if argument.alias_info is not None]
    is_view = bool(aliases) and not any(alias.is_write for alias in aliases)
    return is_view or op is aten._unsafe_view.default


def fills_storage(value: torch.Tensor) -> bool:
    """True if the storage of a non-overlapping tensor holds only the elements of the tensor."""
    return value.untyped_storage().nbytes() == value.numel() * value.element_size()


def copy_graph(module: GraphModule) -> GraphModule:
    """Returns a module with a separate copy of the graph; its output node keeps AOTAutograd's metadata."""
    graph, output = Graph(), module.graph.output_node()
    graph.output(graph.graph_copy(module.graph, {})).meta = dict(output.meta)
    return GraphModule(module, graph)


def rebase_strided(module: GraphModule) -> None:
    """Makes each `as_strided` and `as_strided_scatter` of an ATen graph read its operand's memory as a dense vector.

    A node stays unchanged if the base of its operand does not cover its storage: the base is a view of a larger tensor,
    or has gaps.
    """
    nodes = [node for node in module.graph.nodes if node.target in (_READ, _WRITE) and not _is_vector(node.args[0])]
    for node in nodes:
        _rebase_node(module, node)
    if nodes:
        module.recompile()


def required_offsets(module: GraphModule) -> dict[int, int]:
    """Maps input indices to storage offsets, for inputs that `as_strided` reads from a given storage offset.

    The offset in a call of `as_strided` counts from the start of the storage, but compiled code only gets the address
    of the input's first element, so it works for one storage offset of the input only.
    """
    inputs = {node: index for index, node in enumerate(n for n in module.graph.nodes if n.op == "placeholder")}
    offsets = {}
    for node in module.graph.nodes:
        if node.target in (_READ, _WRITE) and _arguments_by_name(node).get("storage_offset") is not None:
            base, _ = base_of_views(node.args[0])
            if base in inputs:
                offsets[inputs[base]] = base.meta["val"].storage_offset()
    return offsets


def fall_back_for_offsets(run: Runner, module: GraphModule, offsets: Mapping[int, int]) -> Runner:
    """Returns a function that calls `run`, or `module` if the storage offset of an input differs from `offsets`."""

    def run_or_fall_back(*arguments: torch.Tensor) -> Sequence[torch.Tensor]:
        is_as_traced = all(arguments[index].storage_offset() == offset for index, offset in offsets.items())
        return (run if is_as_traced else module)(*arguments)

    return run_or_fall_back


def _is_vector(node: Node) -> bool:
    """True if the result of `node` is row-major, and covers its storage."""
    value = node.meta["val"]
    return bool(value.is_contiguous()) and _is_all_memory(value)


def _is_all_memory(value: torch.Tensor) -> bool:
    """True if `value` has static sizes, is dense, and fills its storage."""
    if not all(isinstance(size, int) for size in (*value.shape, *value.stride(), value.storage_offset())):
        return False
    return is_non_overlapping_and_dense_or_false(value) and fills_storage(value)


def _rebase_node(module: GraphModule, node: Node) -> None:
    """Makes one node read its base as a vector, if the base covers its memory and has the same dtype."""
    operand: Any = node.args[0]
    base, views = base_of_views(operand)
    value, memory = operand.meta["val"], base.meta["val"]
    if not isinstance(memory, torch.Tensor) or memory.dtype != value.dtype or not _is_all_memory(memory):
        return
    arguments = _arguments_by_name(node)
    if arguments.get("storage_offset") is None:
        arguments["storage_offset"] = value.storage_offset()
    with module.graph.inserting_before(node):
        vector = _flatten_memory(module, base, node)
        rest = [arguments[name] for name in _argument_names(node) if name != "self"]
        if node.target is _READ:
            result = _call(module, node, _READ, vector, *rest)
        else:
            written = _call(module, node, _WRITE, vector, *rest)
            result = _call(module, node, _READ, written, *_layout_of(value))
    node.replace_all_uses_with(result)
    for dead in (node, *views):
        if not dead.users:
            module.graph.erase_node(dead)


def _arguments_by_name(node: Node) -> dict[str, object]:
    return dict(zip(_argument_names(node), node.args, strict=False)) | dict(node.kwargs)


def _argument_names(node: Node) -> list[str]:
    target: Any = node.target
    return [argument.name for argument in target._schema.arguments]


def _layout_of(value: torch.Tensor) -> tuple[list[Any], list[Any], Any]:
    """Returns the shape, the strides and the storage offset of a tensor: the arguments of `as_strided`."""
    return list(value.shape), list(value.stride()), value.storage_offset()


def _flatten_memory(module: GraphModule, base: Node, like: Node) -> Node:
    """Adds nodes that return all elements of `base`, a dense tensor, in memory order; returns the last node.

    They have the provenance of `like`.
    """
    value = base.meta["val"]
    order = sorted(range(value.dim()), key=lambda dim: (-value.stride(dim), value.shape[dim] == 1))
    if order != sorted(order):
        base = _call(module, like, aten.permute.default, base, order)
    return _call(module, like, aten.view.default, base, [value.numel()])


def _call(module: GraphModule, like: Node, target: torch._ops.OpOverload, first: Node, *rest: object) -> Node:
    """Adds a call with the provenance of `like` at the current insertion point."""
    call = module.graph.call_function(target, (first, *rest))
    value, other_values = first.meta["val"], torch.fx.node.map_arg(rest, lambda node: node.meta["val"])
    with value.fake_mode:
        call.meta = dict(like.meta) | {"val": target(value, *other_values)}
    return call
