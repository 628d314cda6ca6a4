"""Cuts an ATen graph into pieces: unsupported nodes run in eager, the graph around them is compiled.

The graph is also cut where a number is read out of a tensor: the nodes after it are compiled with that number as a
symbolic size. PyTorch itself runs control flow (`cond`, `scan`, …); its branches and bodies are compiled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, MutableSet, Sequence
from dataclasses import dataclass, replace
from operator import getitem
from typing import TYPE_CHECKING, Any

import torch
from torch import Tag
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.fx.node import map_arg
from torch.utils._pytree import tree_leaves

from buddy.compiler.frontend.aten import AtenGraph, Runner
from buddy.compiler.frontend.convert import reads_storage, unsupported_nodes
from buddy.compiler.frontend.errors import UnsupportedGraphError
from buddy.compiler.frontend.names import node_title, python_line
from buddy.compiler.frontend.random_numbers import take_seed_as_input, with_seed
from buddy.compiler.frontend.strided_views import base_of_views, fills_storage

if TYPE_CHECKING:
    import sympy


# ---- control flow ----------------------------------------------------------------------------------------------------


_CONTROL_FLOW_OPS = {"cond", "while_loop", "while_loop_stack_output", "scan", "map_impl", "invoke_subgraph"}


def is_control_flow(node: Node) -> bool:
    """True if `node` is an op whose bodies can be compiled, or selects a result of one."""
    if node.target is getitem:
        return isinstance(node.args[0], Node) and is_control_flow(node.args[0])
    return isinstance(node.target, torch._ops.HigherOrderOperator) and node.target.name() in _CONTROL_FLOW_OPS


def has_control_flow(module: GraphModule) -> bool:
    """Returns whether a graph has an op whose branches or bodies can be compiled."""
    return any(map(is_control_flow, module.graph.nodes))


def compile_bodies(aten: AtenGraph, compile_graph: Callable[[AtenGraph], Runner]) -> GraphModule:
    """Returns the graph with each branch and body of control flow replaced by the result of `compile_graph`.

    Each body is passed as an `AtenGraph` with its name in `body`. Raises what `compile_graph` raises.
    """
    compiled = GraphModule(aten.module, aten.module.graph)
    for op in filter(is_control_flow, aten.module.graph.nodes):
        for name in _body_names(op, aten.module):
            returns_single = isinstance(getattr(aten.module, name).graph.output_node().args[0], Node)
            setattr(compiled, name, _Body(_compile_body(_describe_body(aten, name), compile_graph), returns_single))
    return compiled


def _compile_body(body: AtenGraph, compile_graph: Callable[[AtenGraph], Runner]) -> Runner:
    """Compiles a body; if it draws a seed for random numbers, the seed becomes an input."""
    seeded = take_seed_as_input(body.module)
    if seeded is None:
        return compile_graph(body)
    n_inputs = len(body.origins) + 1
    return with_seed(
        compile_graph(replace(body, module=seeded, origins=(None,) * n_inputs, input_of=(None,) * n_inputs))
    )


def _body_names(op: Node, module: GraphModule) -> list[str]:
    """Returns the names of the attributes of `module` that are the branches or bodies of `op`."""
    names = [str(node.target) for node in op.all_input_nodes if node.op == "get_attr"]
    return [name for name in names if isinstance(getattr(module, name, None), GraphModule)]


def _describe_body(aten: AtenGraph, name: str) -> AtenGraph:
    """Returns the body `name` as a graph that returns a tuple, even of one value; its inputs have no origins."""
    module: GraphModule = getattr(aten.module, name)
    output = module.graph.output_node()
    n_inputs = sum(node.op == "placeholder" for node in module.graph.nodes)
    if isinstance(output.args[0], Node):
        graph = torch.fx.Graph()
        graph.output((graph.graph_copy(module.graph, {}),))
        module = GraphModule(module, graph)
    body = f"{aten.body}, {name}" if aten.body else name
    return replace(
        aten, module=module, origins=(None,) * n_inputs, input_of=(None,) * n_inputs, body=body, unseeded=None
    )


class _Body(torch.nn.Module):
    """Runs a compiled body in place of its graph: it returns one value if `returns_single`, otherwise a tuple."""

    def __init__(self, run: Runner, returns_single: bool) -> None:
        super().__init__()
        self._run, self._returns_single = run, returns_single

    def forward(self, *arguments: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, ...]:
        results = self._run(*arguments)
        return results[0] if self._returns_single else tuple(results)


# ---- cut graphs ------------------------------------------------------------------------------------------------------


# Node name to the reason why the node is not compiled.
Reasons = dict[str, str]
# Converts a piece of a graph; raises `UnsupportedGraphError` if it cannot be compiled.
Check = Callable[[AtenGraph], object]
# The end of the reason for a cut at a node that reads a number.
READS_NUMBER = "reads a number out of a tensor"

# The label (in place of a lowering) of nodes that read a number out of a tensor, or compute with such numbers.
BETWEEN = "between pieces"
_READ_NUMBER = torch.ops.aten._local_scalar_dense.default
_NUMBER_OPS = {
    _READ_NUMBER, torch.ops.aten._assert_scalar.default, torch.ops.aten.sym_constrain_range.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
}  # fmt: skip


@dataclass(frozen=True)
class GraphPiece:
    """Nodes of a graph that run together, in eager PyTorch if `eager`.

    `aten.module` takes the values of `inputs`, and returns those of `outputs` as a tuple.
    """

    aten: AtenGraph
    eager: bool
    inputs: tuple[Node, ...]
    outputs: tuple[Node, ...]


@dataclass(frozen=True)
class GraphCut:
    """A graph in pieces. `rejected` maps each node that is not compiled to the reason."""

    aten: AtenGraph
    pieces: tuple[GraphPiece, ...]
    rejected: Mapping[str, str]

    @property
    def compiled(self) -> list[GraphPiece]:
        """The pieces that do not run in eager."""
        return [piece for piece in self.pieces if not piece.eager]

    @property
    def in_eager(self) -> Mapping[str, str]:
        """`rejected` without nodes that compute numbers, and without control flow, whose bodies are compiled."""
        excluded = {
            node.name for node in computing_nodes(self.aten.module) if computes_numbers(node) or is_control_flow(node)
        }
        return {name: reason for name, reason in self.rejected.items() if name not in excluded}

    @property
    def reads_numbers(self) -> bool:
        """True if numbers are read out of tensors between pieces."""
        return any(node.target is _READ_NUMBER for node in self.aten.module.graph.nodes)

    def __str__(self) -> str:
        n_pieces, reasons = len(self.compiled), "; ".join(dict.fromkeys(self.in_eager.values()))
        if not reasons:
            cause = "control flow" if has_control_flow(self.aten.module) else "reads of numbers out of tensors"
            return f"a graph of {len(self.aten.module.graph.nodes)} nodes is cut by {cause} into {n_pieces} pieces"
        pieces = "1 piece" if n_pieces == 1 else f"{n_pieces} pieces"
        result = f"is compiled in {pieces} around eager" if n_pieces else "runs in eager"
        return f"a graph of {len(self.aten.module.graph.nodes)} nodes {result}: {reasons}"


def cut_around(aten: AtenGraph, rejection: UnsupportedGraphError, check: Check) -> GraphCut:
    """Cuts `aten` around the node that `rejection` names, and around all nodes that `check` rejects in its pieces.

    If `rejection` names no node of the graph, the cut has no pieces, and the whole graph runs in eager.
    """
    pieces: tuple[GraphPiece, ...] = ()
    reasons: Reasons = {}
    new_reasons = _rejection_reasons(aten.module, rejection)
    if new_reasons:  # find most nodes at once: a check reports one node at a time, and there may be hundreds
        new_reasons |= unsupported_nodes(aten.module.graph.nodes) | _number_read_reasons(aten.module)
    while new_reasons:
        reasons |= new_reasons | _reasons_of_views(aten.module, new_reasons)
        pieces = _make_pieces(aten, reasons)
        new_reasons = {}
        for piece in pieces:
            if not piece.eager:
                new_reasons |= _check_piece(piece.aten, check)
    # The reason has no node, but an empty name, if the whole graph runs in eager.
    return GraphCut(aten, pieces, reasons or {"": rejection.diagnostic.what})


def _number_read_reasons(module: GraphModule) -> Reasons:
    """Returns the nodes that read a number out of a tensor, with this reason."""
    return {node.name: _read_reason(node) for node in module.graph.nodes if node.target is _READ_NUMBER}


def _read_reason(node: Node) -> str:
    return f"{node_title(node)} ({node.target}) {READS_NUMBER}"


def computes_numbers(node: Node) -> bool:
    """True if a node reads a number out of a tensor, or computes with numbers only."""
    number_types = (torch.SymInt, torch.SymFloat, torch.SymBool, int, float, bool)
    return node.target in _NUMBER_OPS or isinstance(node.meta.get("val"), number_types)


def _check_piece(aten: AtenGraph, check: Check) -> Reasons:
    """Returns the nodes for which `check` rejects a piece, with the reason; an empty dict if it does not."""
    try:
        check(aten)
    except UnsupportedGraphError as error:
        # If the error names no node, all nodes of the piece run in eager.
        return _rejection_reasons(aten.module, error) or dict.fromkeys(
            map(str, computing_nodes(aten.module)), error.diagnostic.what
        )
    return {}


def _rejection_reasons(module: GraphModule, error: UnsupportedGraphError) -> Reasons:
    """Returns the nodes that `error` rejects: the node that it names, or the users of that node if it is an input."""
    nodes = [node for node in module.graph.nodes if node.name == error.diagnostic.node]
    nodes_to_reject = [
        rejected for node in nodes for rejected in ([node] if node.op == "call_function" else list(node.users))
    ]
    what = error.diagnostic.what
    return {
        node.name: _control_flow_reason(node) if is_control_flow(node) else what
        for node in nodes_to_reject
        if node.op != "output"
    }


def _control_flow_reason(node: Node) -> str:
    return f"{node_title(node)} ({node.target}) is control flow, which runs in PyTorch; its bodies are separate graphs"


def _reasons_of_views(module: GraphModule, reasons: Reasons) -> Reasons:
    """Returns the views through which rejected nodes read a storage by strides; these run in eager too.

    Each has the reason of the node that reads it.
    """
    readers = [node for node in module.graph.nodes if node.name in reasons and reads_storage(node)]
    return {view.name: reasons[node.name] for node in readers for view in _views_to(node.args[0])}


def _views_to(operand: Node) -> list[Node]:
    """Returns the views between a storage and `operand`; if the storage has gaps, also its producer.

    All of these run in eager: a view that compiled code returns has a separate storage without gaps.
    """
    base, views = base_of_views(operand)
    value = base.meta.get("val")
    if base.op != "call_function" or not isinstance(value, torch.Tensor) or fills_storage(value):
        return views
    return [*views, base, *(view for parent in base.all_input_nodes[:1] for view in _views_to(parent))]


class SplitGraph:
    """A cut graph as one callable. `compile_piece` compiles each piece that does not run in eager.

    `compile_body` compiles the branches and bodies of control flow; it may cut them too.
    """

    def __init__(
        self, cut: GraphCut, compile_piece: Callable[[AtenGraph], Runner], compile_body: Callable[[AtenGraph], Runner]
    ) -> None:
        self._placeholders = [node for node in cut.aten.module.graph.nodes if node.op == "placeholder"]
        self._output = cut.aten.module.graph.output_node().args[0]

        def make_runner(piece: GraphPiece) -> Runner:
            if not piece.eager:
                return compile_piece(piece.aten)
            if has_control_flow(piece.aten.module):
                return compile_bodies(piece.aten, compile_body)
            return piece.aten.module

        self._steps = [(piece, make_runner(piece)) for piece in cut.pieces]
        self._releasable = _releasable_inputs([piece for piece, _ in self._steps], self._output)

    @property
    def in_eager(self) -> list[Node]:
        """The nodes that run in eager, except for control flow and nodes that compute numbers."""
        return [node for node in self._not_compiled() if not computes_numbers(node) and not is_control_flow(node)]

    @property
    def between(self) -> list[Node]:
        """The nodes between compiled pieces that read a number out of a tensor, or compute with numbers."""
        return [node for node in self._not_compiled() if computes_numbers(node)]

    def _not_compiled(self) -> list[Node]:
        """Returns the nodes of pieces that run in eager, also of pieces that `compile_piece` has returned unchanged."""
        eager_pieces = (piece for piece, run in self._steps if piece.eager or run is piece.aten.module)
        return [node for piece in eager_pieces for node in computing_nodes(piece.aten.module)]

    def __call__(self, *tensors: torch.Tensor) -> list[torch.Tensor | None]:
        values: dict[Node, Any] = dict(zip(self._placeholders, tensors, strict=True))
        for (piece, run), releasable in zip(self._steps, self._releasable, strict=True):
            results = run(*[values[node] for node in piece.inputs])
            values.update(zip(piece.outputs, results, strict=True))
            for node in releasable:
                del values[node]
        return list(map_arg(self._output, values.__getitem__))


def _releasable_inputs(pieces: Sequence[GraphPiece], output: Sequence[torch.fx.Node | None]) -> list[list[Node]]:
    """Returns, for each piece, the inputs that no later piece reads, and that are not results."""
    alive: set[Node] = set()
    map_arg(output, alive.add)
    releasable = []
    for piece in reversed(pieces):
        releasable.append([node for node in dict.fromkeys(piece.inputs) if node not in alive])
        alive.update(piece.inputs)
    return releasable[::-1]


# ---- cutting ---------------------------------------------------------------------------------------------------------


def computing_nodes(module: GraphModule) -> list[Node]:
    """Returns the nodes of a graph except for its inputs, constants and output."""
    return [node for node in module.graph.nodes if node.op not in ("placeholder", "output", "get_attr")]


def _make_pieces(aten: AtenGraph, reasons: Reasons) -> tuple[GraphPiece, ...]:
    """Returns the pieces of a graph in the order in which they run.

    The nodes in `reasons` run in eager. The first reason, and the line of the first of these nodes, are the reason and
    the line of the cut in all pieces.
    """
    levels = _assign_levels(aten.module, reasons)
    groups: dict[int, list[Node]] = {level: [] for level in sorted(set(levels.values()))}
    for node, level in levels.items():
        groups[level].append(node)
    reason = next(iter(reasons.values()))
    line = next((python_line(node) for node in levels if node.name in reasons), "")
    pieces = []
    for number, (level, nodes) in enumerate(groups.items(), start=1):
        pieces.append(_make_piece(aten, nodes, bool(level % 2), number, reason, line))
    return tuple(pieces)


def _assign_levels(module: GraphModule, reasons: Reasons) -> dict[Node, int]:
    """Returns the level of the piece of each node: pieces of even levels are compiled, those of odd levels are eager.

    A node goes into the first piece of its kind, compiled or eager, that is not before a piece of its operands. Nodes
    with effects keep their order. A node that selects one of several results is in the piece of its producer, because
    only tensors are passed between pieces.
    """
    levels: dict[Node, int] = {}
    effect_level = 0
    for node in computing_nodes(module):
        if node.target is getitem:
            levels[node] = levels.get(node.args[0], 0)
            continue
        level = max([levels.get(parent, 0) for parent in node.all_input_nodes], default=0)
        if _has_effect(node):
            level = max(level, effect_level)
        levels[node] = level + (level % 2 != (node.name in reasons))
        if _has_effect(node):
            effect_level = levels[node]
    return levels


def _has_effect(node: Node) -> bool:
    """True if a node must not change places with another one of this kind: it has side effects, or draws numbers."""
    return node.is_impure() or Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _reads_of_sizes(module: GraphModule, nodes: Sequence[Node]) -> list[Node]:
    """Returns the nodes that read the numbers on which the sizes of `nodes` depend."""
    sizes = {symbol for node in nodes for value in tree_leaves(node.meta.get("val")) for symbol in _unbacked(value)}
    reads = (node for node in module.graph.nodes if node.target is _READ_NUMBER) if sizes else ()
    return [node for node in reads if sizes & _unbacked(node.meta.get("val"))]


def _unbacked(value: object) -> MutableSet[sympy.Symbol]:
    """Returns the data-dependent symbols in a size or in the sizes of a tensor."""
    return free_unbacked_symbols(value) if isinstance(value, (torch.Tensor, torch.SymInt)) else set()


def _make_piece(
    aten: AtenGraph, nodes: Sequence[Node], eager: bool, number: int, cut_reason: str, cut_line: str
) -> GraphPiece:
    """Returns piece `number` of a graph, with copies of `nodes` and of the constants that these read.

    The inputs of the piece are the values of other nodes that `nodes` read, and the numbers on which sizes depend.
    """
    inside = set(nodes)
    external = dict.fromkeys(parent for node in nodes for parent in node.all_input_nodes if parent not in inside)
    external |= dict.fromkeys(node for node in _reads_of_sizes(aten.module, nodes) if node not in inside)
    inputs = tuple(node for node in external if node.op != "get_attr")
    outputs = tuple(node for node in nodes if any(user not in inside for user in node.users))
    graph, copies = Graph(), dict[Node, Node]()
    for node in inputs:
        copies[node] = graph.placeholder(node.name)
        copies[node].meta = dict(node.meta)
    for node in (*(node for node in external if node.op == "get_attr"), *nodes):
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    positions = {node: i for i, node in enumerate(n for n in aten.module.graph.nodes if n.op == "placeholder")}
    origins = tuple(aten.origins[positions[node]] if node in positions else None for node in inputs)
    module = GraphModule(aten.module, graph)
    piece = replace(
        aten, module=module, origins=origins, input_of=(None,) * len(inputs), piece=number, cut_reason=cut_reason,
        cut_line=cut_line, unseeded=None,
    )  # fmt: skip
    return GraphPiece(piece, eager, inputs, outputs)
