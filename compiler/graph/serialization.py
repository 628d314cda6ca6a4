"""Converts graphs to plain data and back, for other processes and for hashing; extracts graphs of selected nodes.

In plain form, a node argument is a number, a string, a bool, `None`, a list, or a tagged dict: `{"n": name}` is a node,
`{"d": "f32"}` an element type, `{"s": "2*s0"}` a symbolic size, `{"o": text}` a device, layout or memory format by its
torch spelling.

An extracted graph has only the selected nodes; the values that these read from outside become placeholders.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import msgspec

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import EagerOp, GetItemOp, Op, OutputOp, PlaceholderOp, Schema, op_classes
from buddy.compiler.graph.sizes import Size, SymbolSource, parse_size, plain_size, symbols_in, value_of
from buddy.compiler.graph.types import NodeType, TensorDType, TensorMeta
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.plain_values import ImportedIR
from buddy.compiler.protocol.recipe import digest


class Opaque(msgspec.Struct, frozen=True):
    """A torch value that only eager execution uses, such as a device or a memory format, by its torch spelling."""

    text: str

    def __str__(self) -> str:
        return self.text


class NodeData(msgspec.Struct, frozen=True):
    """A node: the name of its op class (`op`), arguments in plain form, and the shape and element type of each result.

    An entry of `metas` is `None` for a result that is not a tensor. The other fields are those of `Op`.
    """

    name: str
    op: str
    target: str
    args: list[Any]
    kwargs: dict[str, Any]
    metas: list[tuple[list[int | str], str] | None]
    multiple: bool = False
    stable: str = ""
    module: str = ""
    location: str = ""


class GraphData(msgspec.Struct, frozen=True):
    """A graph: its nodes in order, and the `NodeType` of each placeholder (`kinds`).

    `mutated`, `zeros` and `saved` are the indices of the placeholders that the graph writes, of those whose elements
    were all 0 when it was captured, and of those that a forward graph saved. `schemas` are torch's schemas by target.
    """

    name: str
    func_name: str
    nodes: list[NodeData]
    kinds: list[str]
    mutated: list[int] = []
    symbols: list[SymbolSource] = []
    schemas: dict[str, Schema] = {}
    imported_ir: ImportedIR | None = None
    zeros: list[int] = []
    saved: list[int] = []


def to_plain(value: Any) -> Any:
    """Returns the plain form of a node argument."""
    if isinstance(value, Op):
        return {"n": value.name}
    if isinstance(value, TensorDType):
        return {"d": value.value}
    if isinstance(value, Size):
        return {"s": str(value)}
    if isinstance(value, Opaque):
        return {"o": value.text}
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    return value


def from_plain(value: Any, table: dict[str, Op]) -> Any:
    """Returns the node argument whose plain form is `value`; `table` has the nodes by name."""
    if isinstance(value, dict):
        ((tag, content),) = value.items()
        decoders: dict[str, Any] = {"n": table.__getitem__, "d": TensorDType, "s": parse_size, "o": Opaque}
        return decoders[tag](content)
    if isinstance(value, list):
        return [from_plain(item, table) for item in value]
    return value


def to_data(graph: Graph) -> GraphData:
    """Returns the graph as plain data."""
    return GraphData(
        graph.name,
        graph._func_name,
        [_node_data(op) for op in graph.body],
        [kind.value for kind in graph.kinds],
        list(graph.mutated),
        list(graph.symbols),
        {op.target: op.schema for op in graph.body if op.schema is not None},
        graph.imported_ir,
        zeros=[i for i, op in enumerate(graph.placeholders) if op.is_zero],
        saved=[i for i, op in enumerate(graph.placeholders) if op.is_saved],
    )


def _node_data(op: Op) -> NodeData:
    """Returns a node as plain data."""
    metas = [
        None if meta is None else ([plain_size(size) for size in meta.shape], meta.dtype.value) for meta in op.metas
    ]
    kwargs = {key: to_plain(value) for key, value in op.kwargs.items()}
    args = to_plain(op.args)
    return NodeData(
        op.name, type(op).__name__, op.target, args, kwargs, metas, op.multiple, op.stable, op.module, op.location
    )


def from_data(data: GraphData) -> Graph:
    """Returns the graph in `data`; a node whose op class is unknown in this process becomes an `EagerOp`."""
    graph, classes = Graph(data.name, data.func_name), op_classes()
    table: dict[str, Op] = {}
    kinds = iter(data.kinds)
    for node in data.nodes:
        op = classes.get(node.op, EagerOp)()
        op.name, op.target, op.multiple = node.name, node.target, node.multiple
        op.stable, op.module, op.location = node.stable, node.module, node.location
        op.schema = data.schemas.get(node.target)
        op.metas = tuple(map(_parse_meta, node.metas))
        op._arguments = from_plain(node.args, table)
        op._keyword_arguments = {key: from_plain(value, table) for key, value in node.kwargs.items()}
        table[op.name] = op
        graph.add_node(op, NodeType(next(kinds)) if node.op == "PlaceholderOp" else NodeType.OtherNode)
    graph.mutated, graph.symbols, graph.imported_ir = tuple(data.mutated), tuple(data.symbols), data.imported_ir
    for i in data.zeros:
        graph.placeholders[i].is_zero = True
    for i in data.saved:
        graph.placeholders[i].is_saved = True
    return graph


def _parse_meta(plain: tuple[list[int | str], str] | None) -> TensorMeta | None:
    """Returns the meta of a result from its form in `NodeData.metas`."""
    if plain is None:
        return None
    shape, dtype = plain
    return TensorMeta(tuple(map(parse_size, shape)), TensorDType(dtype))


def substitute_sizes(data: GraphData, sizes: Mapping[str, int]) -> GraphData:
    """Returns the graph for one set of sizes: `sizes` has the value of each symbol. The result has no symbols."""

    def evaluate(size: int | str) -> int:
        return value_of(parse_size(size), sizes)

    nodes = [with_static_sizes(node, evaluate) for node in data.nodes]
    return msgspec.structs.replace(data, nodes=nodes, symbols=[])


def with_static_sizes(node: NodeData, evaluate: Callable[[int | str], int]) -> NodeData:
    """Returns `node` with each size replaced by its value. `evaluate(size)` takes a size in plain form."""

    def replace_sizes(value: Any) -> Any:
        if isinstance(value, dict):
            return evaluate(value["s"]) if "s" in value else value
        return [replace_sizes(item) for item in value] if isinstance(value, list) else value

    metas = [None if meta is None else ([evaluate(size) for size in meta[0]], meta[1]) for meta in node.metas]
    kwargs = {key: replace_sizes(value) for key, value in node.kwargs.items()}
    return msgspec.structs.replace(node, args=replace_sizes(node.args), kwargs=kwargs, metas=metas)


def to_bytes(graph: Graph) -> bytes:
    """Returns the graph as MessagePack of its `GraphData`."""
    return msgspec.msgpack.encode(to_data(graph))


def from_bytes(data: bytes) -> Graph:
    """Returns the graph that `to_bytes` encoded."""
    return from_data(msgspec.msgpack.decode(data, type=GraphData))


def graph_hash(graph: Graph) -> str:
    """Returns a hash of all data of the graph, including the nodes' names and locations."""
    return digest(to_bytes(graph))


# ---- extraction of selected nodes ------------------------------------------------------------------------------------


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
    """Returns `names` and all names inseparable from these: an op with several results and its `GetItemOp`s."""
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
    """Returns a name for a subgraph: its only node, or its first and last node and their number."""
    if len(nodes) == 1:
        return nodes[0].name
    return f"{nodes[0].name} … {nodes[-1].name} ({len(nodes)} nodes)" if nodes else "no nodes"


def outside_values(graph: Graph) -> Iterator[str]:
    """Yields the names of an extracted graph's placeholders: the values that it reads from the original graph."""
    return (op.name for op in graph.placeholders)
