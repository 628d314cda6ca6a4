"""Converts graphs to plain data and back, for passing to other processes and for hashing.

In plain form, a node argument is a number, a string, a bool, `None`, a list, or a tagged dict: `{"n": name}` is a node,
`{"d": "f32"}` an element type, `{"s": "2*s0"}` a symbolic size, `{"o": text}` a device, layout or memory format by its
torch spelling.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.node import EagerOp, Op, Schema, op_classes
from buddy.compiler.graph.sizes import Size, SymbolSource, parse_size, plain_size, value_of
from buddy.compiler.graph.types import NodeType, TensorDType, TensorMeta
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
    """Returns `node` with each size replaced by its value; `evaluate` returns that of a size in plain form."""

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
