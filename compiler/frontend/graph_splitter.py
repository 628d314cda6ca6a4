"""Cuts an ATen graph into pieces: unsupported nodes run in eager, the graph around them is compiled.

The graph is also cut where a number is read out of a tensor: the nodes after it are compiled with that number as a
symbolic size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import Any

import torch
from torch import Tag
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.aten import AtenGraph, Runner
from buddy.compiler.frontend.control_flow import compile_bodies, has_control_flow, is_control_flow
from buddy.compiler.frontend.convert import has_storage_of_its_own, reads_storage, unsupported_nodes
from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.memory_formats import base_of_views
from buddy.compiler.frontend.names import python_line

Refused = dict[str, str]
Check = Callable[[AtenGraph], object]

# The label of nodes that read a number out of a tensor, and compute with such numbers.
BETWEEN = "between pieces"
_READ = torch.ops.aten._local_scalar_dense.default
_LOOK = {
    _READ, torch.ops.aten._assert_scalar.default, torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}  # fmt: skip


@dataclass(frozen=True)
class GraphPiece:
    """Consecutive nodes of a graph. `aten.module` takes `inputs` and returns a tuple of `outputs`."""

    aten: AtenGraph
    eager: bool
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


@dataclass(frozen=True)
class GraphCut:
    """A graph in pieces, and the reason why each node in eager is not compiled, by node name."""

    aten: AtenGraph
    pieces: tuple[GraphPiece, ...]
    refused: Mapping[str, str]

    @property
    def compiled(self) -> list[GraphPiece]:
        return [piece for piece in self.pieces if not piece.eager]

    @property
    def in_eager(self) -> Mapping[str, str]:
        """The reasons of nodes that compute with tensors in eager; control flow has compiled bodies."""
        between = {node.name for node in computing(self.aten.module) if computes_numbers(node) or is_control_flow(node)}
        return {name: why for name, why in self.refused.items() if name not in between}

    @property
    def reads_numbers(self) -> bool:
        """Whether numbers are read out of tensors between pieces."""
        return any(node.target is _READ for node in self.aten.module.graph.nodes)

    def __str__(self) -> str:
        parts, reasons = len(self.compiled), "; ".join(dict.fromkeys(self.in_eager.values()))
        if not reasons:
            by = "by control flow" if has_control_flow(self.aten.module) else "by numbers"
            return f"a graph of {len(self.aten.module.graph.nodes)} nodes is compiled in {parts} pieces, {by}"
        pieces = "1 piece" if parts == 1 else f"{parts} pieces"
        result = f"is compiled in {pieces} around eager" if parts else "runs in eager"
        return f"a graph of {len(self.aten.module.graph.nodes)} nodes {result}: {reasons}"


def cut_around(aten: AtenGraph, refusal: UnsupportedGraphError, check: Check) -> GraphCut:
    """Cuts `aten` around the node that `refusal` names and all others for which `check` raises such an error.

    If an error names no node of the graph, there is no compiled piece.
    """
    pieces: tuple[GraphPiece, ...] = ()
    refused: Refused = {}
    found = _rejected_nodes(aten.module, refusal)
    if found:  # a check reports one node at a time; there may be hundreds
        found |= unsupported_nodes(aten.module.graph.nodes) | _number_reads(aten.module)
    while found:
        refused |= found | _views_of_storage_read(aten.module, found)
        pieces = _pieces(aten, refused)
        found = {}
        for piece in pieces:
            if not piece.eager:
                found |= _find_rejections(piece.aten, check)
    return GraphCut(aten, pieces, refused or {"": refusal.diagnostic.what})


def _number_reads(module: GraphModule) -> Refused:
    """The nodes that read a number out of a tensor."""
    return {node.name: _read_reason(node) for node in module.graph.nodes if node.target is _READ}


def _read_reason(node: Node) -> str:
    return f"{node.name} ({node.target}) reads a number out of a tensor"


def computes_numbers(node: Node) -> bool:
    """Whether a node reads a number out of a tensor, or computes with numbers only."""
    kinds = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    return node.target in _LOOK or isinstance(node.meta.get("val"), kinds)


def _find_rejections(aten: AtenGraph, check: Check) -> Refused:
    try:
        check(aten)
    except UnsupportedGraphError as error:
        # If a piece is rejected as a whole, all of its nodes run in eager.
        return _rejected_nodes(aten.module, error) or dict.fromkeys(
            map(str, computing(aten.module)), error.diagnostic.what
        )
    return {}


def _rejected_nodes(module: GraphModule, error: UnsupportedGraphError) -> Refused:
    """The nodes that `error` rejects: the node that it names, or the users of that node if it is an input."""
    nodes = [node for node in module.graph.nodes if node.name == error.diagnostic.node]
    refused = [found for node in nodes for found in ([node] if node.op == "call_function" else list(node.users))]
    what = error.diagnostic.what
    return {
        node.name: _control_flow_reason(node) if is_control_flow(node) else what
        for node in refused
        if node.op != "output"
    }


def _control_flow_reason(node: Node) -> str:
    return f"{node.name} ({node.target}) is control flow, which runs in PyTorch; its bodies are separate graphs"


def _views_of_storage_read(module: GraphModule, refused: Refused) -> Refused:
    """The views between nodes that read a tensor's storage in eager and that storage."""
    readers = [node for node in module.graph.nodes if node.name in refused and reads_storage(node)]
    return {found.name: refused[node.name] for node in readers for found in _views_to(node.args[0])}


def _views_to(operand: Node) -> list[Node]:
    """The views between a storage and `operand`; if the storage has gaps, also its producer.

    All of these run in eager: a view that compiled code returns has a separate storage without gaps.
    """
    base, found = base_of_views(operand)
    value = base.meta.get("val")
    if base.op != "call_function" or not isinstance(value, torch.Tensor) or has_storage_of_its_own(value):
        return found
    return [*found, base, *(maker for parent in base.all_input_nodes[:1] for maker in _views_to(parent))]


class SplitGraph:
    """A cut graph as one callable: `compile_piece` compiles each piece that is not in eager.

    `compile_body` compiles the branches and bodies of control flow, which may themselves be cut.
    """

    def __init__(
        self, cut: GraphCut, compile_piece: Callable[[AtenGraph], Runner], compile_body: Callable[[AtenGraph], Runner]
    ) -> None:
        self._placeholders = [node for node in cut.aten.module.graph.nodes if node.op == "placeholder"]
        self._output = cut.aten.module.graph.output_node().args[0]

        def made(piece: GraphPiece) -> Runner:
            if not piece.eager:
                return compile_piece(piece.aten)
            if has_control_flow(piece.aten.module):
                return compile_bodies(piece.aten, compile_body)
            return piece.aten.module

        self._steps = [(piece, made(piece)) for piece in cut.pieces]
        self._dead = _last_uses([piece for piece, _ in self._steps], self._output)

    @property
    def in_eager(self) -> list[Node]:
        """The nodes that run in eager, except for those that only read numbers, and control flow."""
        return [node for node in self._not_compiled() if not computes_numbers(node) and not is_control_flow(node)]

    @property
    def between(self) -> list[Node]:
        """The nodes between compiled pieces that read a number out of a tensor, or compute with numbers."""
        return [node for node in self._not_compiled() if computes_numbers(node)]

    def _not_compiled(self) -> list[Node]:
        left = (piece for piece, run in self._steps if piece.eager or run is piece.aten.module)
        return [node for piece in left for node in computing(piece.aten.module)]

    def __call__(self, *tensors: Any) -> list[Any]:
        values: dict[Node, Any] = dict(zip(self._placeholders, tensors, strict=True))
        for (piece, run), dead in zip(self._steps, self._dead, strict=True):
            results = run(*[values[node] for node in piece.inputs])
            values.update(zip(piece.outputs, results, strict=True))
            for node in dead:
                del values[node]
        return list(map_arg(self._output, values.__getitem__))


def _last_uses(pieces: Sequence[GraphPiece], output: Any) -> list[list[Node]]:
    """For each piece the inputs that are not read after it."""
    alive: set[Node] = set()
    map_arg(output, alive.add)
    dead = []
    for piece in reversed(pieces):
        dead.append([node for node in dict.fromkeys(piece.inputs) if node not in alive])
        alive.update(piece.inputs)
    return dead[::-1]


# ---- cutting ---------------------------------------------------------------------------------------------------------


def computing(module: GraphModule) -> list[Node]:
    """The nodes of a graph except for its inputs, constants and output."""
    return [node for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def _pieces(aten: AtenGraph, refused: Refused) -> tuple[GraphPiece, ...]:
    levels = _levels(aten.module, refused)
    groups: dict[int, list[Node]] = {level: [] for level in sorted(set(levels.values()))}
    for node, level in levels.items():
        groups[level].append(node)
    why = next(iter(refused.values()))
    line = next((python_line(node) for node in levels if node.name in refused), "")
    found = []
    for number, (level, nodes) in enumerate(groups.items(), start=1):
        found.append(_piece(aten, nodes, eager=bool(level % 2), number=number, ends=(why, line)))
    return tuple(found)


def _levels(module: GraphModule, refused: Refused) -> dict[Node, int]:
    """For each node the number of its piece: even ones are compiled, odd ones run in eager.

    A node goes into the first piece of its kind that is not before any of its operands. Nodes with effects keep their
    order, and nodes that select one of several results stay with their producer, since only tensors cross pieces.
    """
    levels: dict[Node, int] = {}
    effect = 0
    for node in computing(module):
        if node.target is getitem:
            levels[node] = levels.get(node.args[0], 0)
            continue
        least = max([levels.get(parent, 0) for parent in node.all_input_nodes], default=0)
        if _has_effect(node):
            least = max(least, effect)
        levels[node] = least + (least % 2 != (node.name in refused))
        if _has_effect(node):
            effect = levels[node]
    return levels


def _has_effect(node: Node) -> bool:
    return node.is_impure() or Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _size_nodes(module: GraphModule, nodes: Sequence[Node]) -> list[Node]:
    """The nodes of the numbers in the sizes of `nodes`."""
    sizes = {symbol for node in nodes for value in tree_leaves(node.meta.get("val")) for symbol in _unbacked(value)}
    reads = (node for node in module.graph.nodes if node.target is _READ) if sizes else ()
    return [node for node in reads if sizes & _unbacked(node.meta.get("val"))]


def _unbacked(value: Any) -> set[Any]:
    """The data-dependent symbols in a size or in the sizes of a tensor."""
    return free_unbacked_symbols(value) if isinstance(value, (torch.Tensor, torch.SymInt)) else set()


def _piece(aten: AtenGraph, nodes: Sequence[Node], eager: bool, number: int, ends: tuple[str, str]) -> GraphPiece:
    inside = set(nodes)
    read = dict.fromkeys(parent for node in nodes for parent in node.all_input_nodes if parent not in inside)
    read |= dict.fromkeys(node for node in _size_nodes(aten.module, nodes) if node not in inside)
    inputs = tuple(node for node in read if node.op != "get_attr")
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    graph, copies = Graph(), dict[Node, Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in (*(node for node in read if node.op == "get_attr"), *nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    places = {node: i for i, node in enumerate(n for n in aten.module.graph.nodes if n.op == "placeholder")}
    origins = tuple(aten.origins[places[node]] if node in places else None for node in inputs)
    module = GraphModule(aten.module, graph)
    described = replace(
        aten, module=module, origins=origins, input_of=(None,) * len(inputs), part=number, ends=ends, drawing=None
    )
    return GraphPiece(described, eager, inputs, outputs)
