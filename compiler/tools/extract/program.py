"""Extracts nodes of a captured graph as another captured graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import msgspec

from buddy.compiler.frontend.table import main_dtype, rows_table
from buddy.compiler.graph.extraction import find_nodes
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op, OutputOp, PlaceholderOp
from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import GraphInfo, NodeRow
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.node_by_node import results_of
from buddy.compiler.tools.extract.parts import Subgraph, part_of
from buddy.compiler.tools.extract.script import code_of


def extract(captured: CapturedGraph, wanted: Sequence[str]) -> CapturedGraph:
    """The named nodes as a graph with its real inputs, which eager computes node by node.

    Nodes keep their names, lines and module paths. Raises `ExtractionError` if they cannot be extracted.
    """
    whole = Subgraph(captured.graph, captured.tensors, captured.numbers)
    part = part_of(whole, find_nodes(captured.graph, wanted))
    graph, kinds = part.graph, part.graph.kinds
    rows = _rows(graph, {row.stable: row for row in captured.info.rows})
    info = GraphInfo(
        graph.name,
        rows,
        inputs=kinds.count(NodeType.InputNode),
        parameters=kinds.count(NodeType.FakeNode),
        dtype=main_dtype(graph.operations),
    )
    parameters = frozenset(place for place, kind in enumerate(kinds) if kind is NodeType.FakeNode)
    eager = partial(results_of, graph)
    return CapturedGraph(
        graph, info, part.tensors, eager, rows_table(rows), parameters, first=captured.first, code=code_of(graph)
    )


def _rows(graph: Graph, known: Mapping[str, NodeRow]) -> tuple[NodeRow, ...]:
    """The remaining rows of the FX table, renumbered; external inputs are placeholders."""
    places = {op.name: place for place, op in enumerate(graph.body)}
    return tuple(_row(op, known[op.stable], places) for op in graph.body)


def _row(op: Op, row: NodeRow, places: Mapping[str, int]) -> NodeRow:
    changes: dict[str, object] = {"index": places[op.name], "inputs": tuple(places[p.name] for p in op.parents)}
    if isinstance(op, PlaceholderOp):
        changes |= {"opcode": "placeholder", "target": row.name, "args": "()", "kwargs": "{}"}
    elif isinstance(op, OutputOp):
        changes |= {"args": f"(({', '.join(map(str, op.parents))},),)"}
    return msgspec.structs.replace(row, **changes)
