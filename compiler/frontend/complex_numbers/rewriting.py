"""Replaces the complex ops of an ATen graph by ops on parts.

Complex inputs are read, and complex results written, as pairs of floats in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.complex_numbers.pair import RULES, ComplexPair, Interleaved, to_pair_like
from buddy.compiler.frontend.node_emitter import NodeEmitter

if TYPE_CHECKING:
    from buddy.compiler.frontend.complex_numbers.pair import Operand


aten = torch.ops.aten

# The key, in the meta of a new node, of the original node with the same value: it shows whose memory the value views.
STANDS_FOR = "buddy.stands_for"
# Compiled code has no type for a pair of half-precision numbers.
_SUPPORTED_TYPES = (torch.complex64, torch.complex128)


def decompose_complex(module: GraphModule, table: Mapping[torch._ops.OpOverload, Callable[..., object]]) -> GraphModule:
    """Returns `module` with its complex ops decomposed into real ones; unchanged if none can be.

    An op without a rule stays: its operands are converted from parts to complex tensors. The real ops are decomposed by
    `table`. Nodes that stay keep their names and metas.
    """
    nodes = list(module.graph.nodes)
    if not any(_has_rule(node) for node in nodes):
        return module
    mode = detect_fake_mode([value for node in nodes for value in tree_leaves(node.meta.get("val"))])
    return module if mode is None else _ComplexRewriter(module, NodeEmitter(Graph(), mode, table)).run()


def _has_rule(node: Node) -> bool:
    """True if a node works on complex numbers, and there is a rule for it."""
    if node.target not in RULES:
        return False
    leaves = [leaf for n in (node, *node.all_input_nodes) for leaf in tree_leaves(n.meta.get("val"))]
    complex_tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dtype.is_complex]
    return bool(complex_tensors) and all(t.dtype in _SUPPORTED_TYPES for t in complex_tensors)


class _ComplexRewriter:
    """Builds the new graph, node by node.

    `new_nodes` maps a node of the original graph to the new one with the same value, `pairs` to its parts as fake
    tensors; for a complex node, the entry of one is created from the entry of the other on demand.
    """

    def __init__(self, module: GraphModule, emitter: NodeEmitter) -> None:
        self.module = module
        self.emitter = emitter
        self.new_nodes: dict[Node, Node] = {}
        self.pairs: dict[Node, Any] = {}
        # The parts along an additional last dim, for complex nodes that are made from such a tensor.
        self.stacked_parts: dict[Node, torch.Tensor] = {}
        self.fake_operands: dict[Node, torch.Tensor] = {}

    def run(self) -> GraphModule:
        """Returns the module with the new graph."""
        for node in self.module.graph.nodes:
            constant = getattr(self.module, node.target) if node.op == "get_attr" else None
            if isinstance(constant, torch.Tensor) and "val" not in node.meta:
                node.meta["val"] = self.emitter.to_fake(constant)
            if self._reads_stored_parts(node) or not (_has_rule(node) and self._apply(node)):
                self._copy(node)
        self.emitter.drop_unused()
        names = {node.target for node in self.emitter.graph.nodes if node.op == "get_attr"}
        constants = self.emitter.constants
        attributes = {name: constants[name] if name in constants else getattr(self.module, name) for name in names}
        return GraphModule(attributes, self.emitter.graph)

    def _reads_stored_parts(self, node: Node) -> bool:
        """True if the node reads a complex tensor that is already stored as interleaved pairs."""
        return node.target is aten.view_as_real.default and node.args[0] in self.new_nodes

    def _copy(self, node: Node) -> None:
        """Adds a copy of a node that has no rule, or whose rule did not apply."""
        new = self.emitter.graph.node_copy(node, self._new_node)
        new.meta = {**node.meta, STANDS_FOR: node} if _is_complex(node) else dict(node.meta)
        size = node.meta.get("val")
        if isinstance(size, torch.SymInt) and free_unbacked_symbols(size) and size.node.expr.is_symbol:
            new.meta.setdefault("unbacked_bindings", {size.node.expr: ()})  # FX finds the producer of the symbol by it
        self.new_nodes[node] = new

    def _apply(self, node: Node) -> bool:
        """Replaces `node` by its rule; returns whether the rule applied."""
        args, kwargs = (
            map_arg(value, self._operand)
            for value in (_to_builtin_containers(node.args), _to_builtin_containers(node.kwargs))
        )
        with self.emitter.replacing(node):
            try:
                result = RULES[node.target](node.meta["val"], *args, **kwargs)
            except GuardOnDataDependentSymNode:
                result = NotImplemented  # the rule needs the value of a data-dependent size
            if result is NotImplemented:
                return False
            if isinstance(result, torch.Tensor):
                self.new_nodes[node] = self._real_result_node(node, result)
            elif isinstance(result, Interleaved):
                self._join_parts(node, result.stacked)
            else:
                self.pairs[node] = result if isinstance(result, list) else to_pair_like(node.meta["val"], result)
        return True

    def _real_result_node(self, node: Node, result: torch.Tensor) -> Node:
        """Returns the node of a real result, with the strides and the aliasing of the original if these differ."""
        value, result_node = node.meta["val"], self.emitter.node_of(result)
        if result.stride() == value.stride() and not getattr(node.target, "is_view", False):
            if result_node.name.startswith(f"{node.name}_part"):
                result_node._rename(node.name)
            return result_node
        new = self.emitter.emit(aten.alias.default, (result,), {}, value, node.name)
        new.meta[STANDS_FOR] = node
        return new

    def _operand(self, node: Node) -> Any:
        """Returns the value of `node` for a rule.

        It is a pair for a complex tensor, a registered fake tensor for another tensor, a list of pairs (or None if no
        rule has computed them) for several results, and the value itself for a number.
        """
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return self.pairs.get(node) if isinstance(value, (list, tuple)) else value
        if value.dtype in _SUPPORTED_TYPES:
            return self._pair(node)
        if node not in self.fake_operands:
            self.fake_operands[node] = self.emitter.register_value(value, self.new_nodes[node])
        return self.fake_operands[node]

    def _pair(self, node: Node) -> ComplexPair:
        """Returns the parts of a complex node; reads them from its memory if no rule has computed them."""
        if node not in self.pairs:
            with self.emitter.replacing(node):
                stacked = self._stacked_parts_of(node)
                self.pairs[node] = ComplexPair(stacked.select(-1, 0), stacked.select(-1, 1), stacked)
        return self.pairs[node]

    def _stacked_parts_of(self, node: Node) -> torch.Tensor:
        """Returns the parts of a complex tensor along an additional last dim."""
        if node in self.stacked_parts:
            return self.stacked_parts[node]
        if node.target is aten.view_as_complex.default:
            return self._operand(node.args[0])
        return aten.view_as_real.default(self.emitter.register_value(node.meta["val"], self.new_nodes[node]))

    def _new_node(self, node: Node) -> Node:
        """Returns the new node with the value of `node`; makes a complex tensor of its parts unless it exists."""
        if node not in self.new_nodes:
            pair = self.pairs[node]
            with self.emitter.replacing(node):
                self._join_parts(node, torch.stack([pair.re, pair.im], -1))
        return self.new_nodes[node]

    def _join_parts(self, node: Node, stacked: torch.Tensor) -> None:
        """Adds the complex tensor of `node`, a view of its parts `stacked` along an additional last dim."""
        value = node.meta["val"]
        self.stacked_parts[node] = stacked
        self.new_nodes[node] = self.emitter.emit(aten.view_as_complex.default, (stacked,), {}, value, node.name)
        self.new_nodes[node].meta[STANDS_FOR] = node


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


def _to_builtin_containers(value: Operand) -> object:
    """Converts FX's immutable lists and dicts to Python's, because ops may check the type."""
    if isinstance(value, (list, tuple)):
        container = type(value) if type(value) in (list, tuple) else list
        return container(map(_to_builtin_containers, value))
    return {key: _to_builtin_containers(item) for key, item in value.items()} if isinstance(value, dict) else value
