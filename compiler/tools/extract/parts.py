"""Subgraphs with the real values on their edges, computed by eager."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from buddy.compiler.graph.extraction import ExtractionError, edges, extract_graph
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.runtime.node_by_node import SEED, symbols_at, values_of


@dataclass(frozen=True)
class Subgraph:
    """A graph and its input tensors, in the order of its placeholders; `numbers` are sizes known only at the call."""

    graph: Graph
    tensors: list[torch.Tensor]
    numbers: tuple[Any, ...] = ()


def part_of(whole: Subgraph, nodes: Collection[Op]) -> Subgraph:
    """`nodes` of a graph, with their external inputs as eager computes them.

    Raises `ExtractionError` like `extract_graph`, and if eager raises before these inputs are computed.
    """
    symbols = symbols_at(whole.graph, whole.tensors, whole.numbers)
    graph = extract_graph(whole.graph, nodes, symbols)
    return Subgraph(graph, _on_the_edges(whole, list(edges(graph))))


def _on_the_edges(whole: Subgraph, names: Sequence[str]) -> list[torch.Tensor]:
    torch.manual_seed(SEED)
    try:
        values = values_of(whole.graph, whole.tensors, set(names), whole.numbers)
    except Exception as error:
        what = f"eager does not reach {', '.join(names[:3])}: {type(error).__name__}: {error}"
        raise ExtractionError(f"{what} · choose nodes before it") from error
    # With their strides: a later `view` depends on them.
    return [values[name] for name in names]
