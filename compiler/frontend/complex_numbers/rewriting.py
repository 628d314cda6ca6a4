"""Replaces the complex ops of an ATen graph by ops on parts.

Complex inputs are read, and complex results written, as pairs of floats in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.complex_numbers.pair import RULES, ComplexEmitter, ComplexPair, Interleaved, to_pair_like

aten = torch.ops.aten

# In a node's meta: the node of the original graph whose value it has, through which its memory is known.
STANDS_FOR = "buddy.stands_for"
# Compiled code has no type for a pair of half-precision numbers.
_KNOWN = (torch.complex64, torch.complex128)


def decompose_complex(module: GraphModule, table: Mapping[Any, Any]) -> GraphModule:
    """`module` with its complex ops decomposed into real ones; unchanged if none can be.

    Ops without a rule stay, between conversions of the parts to complex and back. Ops are decomposed by `table`.
    Remaining nodes keep their names and metas.
    """
    nodes = list(module.graph.nodes)
    if not any(_has_rule(node) for node in nodes):
        return module
    mode = detect_fake_mode([value for node in nodes for value in tree_leaves(node.meta.get("val"))])
    return module if mode is None else _Rewriting(module, ComplexEmitter(Graph(), mode, table)).run()


def _has_rule(node: Node) -> bool:
    """Whether a node works on complex numbers, and there is a rule for it."""
    if node.target not in RULES:
        return False
    leaves = [leaf for n in (node, *node.all_input_nodes) for leaf in tree_leaves(n.meta.get("val"))]
    found = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dtype.is_complex]
    return bool(found) and all(t.dtype in _KNOWN for t in found)


class _Rewriting:
    """`wholes` maps a node of the original graph to the new one with the same value, `pairs` to its parts as fake
    tensors; for a complex node, each is created from the other on demand.
    """

    def __init__(self, module: GraphModule, emitter: ComplexEmitter) -> None:
        self.module = module
        self.emitter = emitter
        self.wholes: dict[Node, Node] = {}
        self.pairs: dict[Node, Any] = {}
        self.boths: dict[Node, torch.Tensor] = {}
        self.fakes: dict[Node, torch.Tensor] = {}

    def run(self) -> GraphModule:
        for node in self.module.graph.nodes:
            constant = getattr(self.module, node.target) if node.op == "get_attr" else None
            if isinstance(constant, torch.Tensor) and "val" not in node.meta:
                node.meta["val"] = self.emitter.fake(constant)
            if self._is_plain(node) or not (_has_rule(node) and self._apply(node)):
                self._copy(node)
        self.emitter.drop_unused()
        names = {node.target for node in self.emitter.graph.nodes if node.op == "get_attr"}
        constants = self.emitter.constants
        held = {name: constants[name] if name in constants else getattr(self.module, name) for name in names}
        return GraphModule(held, self.emitter.graph)

    def _is_plain(self, node: Node) -> bool:
        """Whether the node reads a complex tensor that is already stored as interleaved pairs."""
        return node.target is aten.view_as_real.default and node.args[0] in self.wholes

    def _copy(self, node: Node) -> None:
        new = self.emitter.graph.node_copy(node, self._whole)
        new.meta = {**node.meta, STANDS_FOR: node} if _is_complex(node) else dict(node.meta)
        size = node.meta.get("val")
        if isinstance(size, torch.SymInt) and free_unbacked_symbols(size) and size.node.expr.is_symbol:
            new.meta.setdefault("unbacked_bindings", {size.node.expr: ()})  # FX finds the producer of the symbol by it
        self.wholes[node] = new

    def _apply(self, node: Node) -> bool:
        """Replaces `node` by its rule; returns whether the rule applied."""
        args, kwargs = (map_arg(value, self._operand) for value in (_plain(node.args), _plain(node.kwargs)))
        with self.emitter.at(node):
            try:
                result = RULES[node.target](node.meta["val"], *args, **kwargs)
            except GuardOnDataDependentSymNode:
                result = NotImplemented  # the rule needs a data-dependent size
            if result is NotImplemented:
                return False
            if isinstance(result, torch.Tensor):
                self.wholes[node] = self._real(node, result)
            elif isinstance(result, Interleaved):
                self._join_parts(node, result.both)
            else:
                self.pairs[node] = result if isinstance(result, list) else to_pair_like(node.meta["val"], result)
        return True

    def _real(self, node: Node, result: torch.Tensor) -> Node:
        """The node of a real result; if the graph returns it, it has the strides and the memory of the original."""
        value, found = node.meta["val"], self.emitter.node_of(result)
        if result.stride() == value.stride() and not getattr(node.target, "is_view", False):
            if found.name.startswith(f"{node.name}_part"):
                found._rename(node.name)
            return found
        new = self.emitter.emit(aten.alias.default, (result,), {}, value, node.name)
        new.meta[STANDS_FOR] = node
        return new

    def _operand(self, node: Node) -> Any:
        value = node.meta.get("val")
        if not isinstance(value, torch.Tensor):
            return self.pairs.get(node) if isinstance(value, (list, tuple)) else value
        if value.dtype in _KNOWN:
            return self._pair(node)
        if node not in self.fakes:
            self.fakes[node] = self.emitter.know(value, self.wholes[node])
        return self.fakes[node]

    def _pair(self, node: Node) -> ComplexPair:
        if node not in self.pairs:
            with self.emitter.at(node):
                both = self._both(node)
                self.pairs[node] = ComplexPair(both.select(-1, 0), both.select(-1, 1), both)
        return self.pairs[node]

    def _both(self, node: Node) -> torch.Tensor:
        """The pairs of a complex tensor along a last dim."""
        if node in self.boths:
            return self.boths[node]
        if node.target is aten.view_as_complex.default:
            return self._operand(node.args[0])
        return aten.view_as_real.default(self.emitter.know(node.meta["val"], self.wholes[node]))

    def _whole(self, node: Node) -> Node:
        if node not in self.wholes:
            pair = self.pairs[node]
            with self.emitter.at(node):
                self._join_parts(node, torch.stack([pair.re, pair.im], -1))
        return self.wholes[node]

    def _join_parts(self, node: Node, both: torch.Tensor) -> None:
        value = node.meta["val"]
        self.boths[node] = both
        self.wholes[node] = self.emitter.emit(aten.view_as_complex.default, (both,), {}, value, node.name)
        self.wholes[node].meta[STANDS_FOR] = node


def _is_complex(node: Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dtype.is_complex


def _plain(value: Any) -> Any:
    """FX's immutable lists as plain ones, since ops may check the type."""
    if isinstance(value, (list, tuple)):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else list(map(_plain, value))
    return {key: _plain(item) for key, item in value.items()} if isinstance(value, dict) else value
