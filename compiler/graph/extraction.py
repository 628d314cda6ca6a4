"""Extracts a subgraph of selected nodes: the values that it reads from outside become placeholders."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches

import msgspec

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import GetItemOp, Op, OutputOp, PlaceholderOp
from buddy.compiler.graph.serialization import GraphData, NodeData, from_data, to_data, with_static_sizes
from buddy.compiler.graph.sizes import parse_size, symbols_in, value_of
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol.errors import BuddyError


class ExtractionError(BuddyError, ValueError):
    """The selected nodes cannot become a graph; the text says which nodes, why, and what to do."""


def find_nodes(graph: Graph, names: Sequence[str]) -> list[Op]:
    """Returns the op nodes with the stable or FX `names`, in the graph's order.

    Raises `ExtractionError` for an unknown name, and for a placeholder or the output.
    """
    nodes_by_name = {name: op for op in graph.operations for name in (op.name, op.stable)}
    for name in names:
        if name not in nodes_by_name:
            close = get_close_matches(name, nodes_by_name, n=1)
            hint = f"did you mean {close[0]}?" if close else "take a name from the FX table"
            raise ExtractionError(f"{graph.name} has no op node {name!r} · {hint}")
    selected = {nodes_by_name[name].name for name in names}
    return [op for op in graph.operations if op.name in selected]


def extract_graph(graph: Graph, nodes: Collection[Op], symbols: Mapping[str, int] | None = None) -> Graph:
    """Returns a graph that contains only `nodes`, under the same names. The nodes need not be connected.

    An op with several results and its `GetItemOp`s stay together. A value that the nodes read from outside becomes a
    placeholder with the same name: a parameter if the value depends on parameters only, so that it is packed like a
    weight, otherwise an input. The results are the values that the rest of the graph reads, and the values without
    readers. Symbolic sizes become the numbers in `symbols`. Raises `ExtractionError` for a selection without a tensor
    result, and for a size that uses a symbol missing from `symbols`.
    """
    names = _add_inseparable(graph, {op.name for op in nodes})
    ops = [op for op in graph.operations if op.name in names]
    results = [op for op in ops if _is_result(op, names)]
    if not results:
        raise ExtractionError(
            f"{_title(ops)}: none of these nodes returns a tensor · select nodes with a tensor result"
        )
    graph_data = to_data(graph)
    data_of = {node.name: node for node in graph_data.nodes}
    kinds = _placeholder_kinds(graph)
    outside = list(dict.fromkeys(parent.name for op in ops for parent in op.parents if parent.name not in names))
    placeholders = [_placeholder(data_of[name]) for name in outside]
    result_list = [{"n": op.name} for op in results]
    output = NodeData("output", OutputOp.__name__, "output", [result_list], {}, [], False, "output")

    def evaluate(size: int | str) -> int:
        return _evaluate(size, symbols or {})

    body = [with_static_sizes(data_of[op.name], evaluate) for op in ops]
    inputs = [with_static_sizes(node, evaluate) for node in placeholders]
    targets = {node.target for node in body}
    return from_data(
        GraphData(
            _title(ops),
            graph_data.func_name,
            [*inputs, *body, output],
            [kinds[name].value for name in outside],
            schemas={target: schema for target, schema in graph_data.schemas.items() if target in targets},
        )
    )


def _add_inseparable(graph: Graph, names: set[str]) -> set[str]:
    """Returns `names`, and adds those that cannot be separated: an op with several results and its `GetItemOp`s."""
    selected = set(names)
    for op in graph.operations:
        if isinstance(op, GetItemOp) and (op.name in selected or op.args[0].name in selected):
            selected |= {op.name, op.args[0].name}
    for op in graph.operations:
        if isinstance(op, GetItemOp) and op.args[0].name in selected:
            selected.add(op.name)
    return selected


def _is_result(op: Op, names: set[str]) -> bool:
    """True if `op` is a result of the subgraph of nodes `names`: a tensor that is read outside of it, or not at all."""
    if op.multiple or not op.metas or op.metas[0] is None:
        return False
    return not op._children or any(reader.name not in names for reader in op._children)


def _placeholder_kinds(graph: Graph) -> dict[str, NodeType]:
    """Returns the kind of each node as a placeholder: a parameter if it depends on parameters only, else an input."""
    kinds: dict[str, NodeType] = {op.name: op.kind for op in graph.placeholders}
    for op in graph.operations:
        reads_parameters_only = bool(op.parents) and all(kinds[p.name] is NodeType.FakeNode for p in op.parents)
        # The result of a node that draws random numbers, or has another effect, differs between calls.
        kinds[op.name] = NodeType.FakeNode if reads_parameters_only and not op.has_effect else NodeType.InputNode
    return kinds


def _placeholder(node: NodeData) -> NodeData:
    """Returns a placeholder with the name and the result of `node`."""
    return msgspec.structs.replace(
        node, op=PlaceholderOp.__name__, target=node.name, args=[], kwargs={}, multiple=False
    )


def _evaluate(size: int | str, symbols: Mapping[str, int]) -> int:
    """Returns the number of a size in plain form. Raises `ExtractionError` for a symbol that is not in `symbols`."""
    symbolic = parse_size(size)
    if any(name not in symbols for name in symbols_in(symbolic)):
        raise ExtractionError(f"the size {size} is unknown, it depends on data · select nodes that do not use it")
    return value_of(symbolic, symbols)


def _title(nodes: Sequence[Op]) -> str:
    """Returns the name of a subgraph: that of its node, or those of its first and last node."""
    if len(nodes) == 1:
        return nodes[0].name
    return f"{nodes[0].name} … {nodes[-1].name} ({len(nodes)} nodes)" if nodes else "no nodes"


def outside_values(graph: Graph) -> Iterator[str]:
    """Yields the names of an extracted graph's placeholders: the values that it reads from the original graph."""
    return (op.name for op in graph.placeholders)
