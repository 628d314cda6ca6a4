"""Subgraphs with the real values on their edges, computed by eager."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from buddy.compiler.graph.extraction import ExtractionError, edges, extracted
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.runtime.node_by_node import SEED, symbols_at, values_of


@dataclass(frozen=True)
class Part:
    """A graph and its input tensors, in the order of its placeholders; `numbers` are sizes known only at the call."""

    graph: Graph
    tensors: list[torch.Tensor]
    numbers: tuple[Any, ...] = ()


def part_of(whole: Part, nodes: Collection[Op]) -> Part:
    """`nodes` of a graph, with their external inputs as eager computes them.

    Raises `ExtractionError` like `extracted`, and if eager raises before these inputs are computed.
    """
    symbols = symbols_at(whole.graph, whole.tensors, whole.numbers)
    graph = extracted(whole.graph, nodes, symbols)
    return Part(graph, _on_the_edges(whole, list(edges(graph))))


def _on_the_edges(whole: Part, names: Sequence[str]) -> list[torch.Tensor]:
    torch.manual_seed(SEED)
    try:
        values = values_of(whole.graph, whole.tensors, set(names), whole.numbers)
    except Exception as error:
        what = f"eager does not reach {', '.join(names[:3])}: {type(error).__name__}: {error}"
        raise ExtractionError(f"{what} · choose nodes before it") from error
    # With their strides: a later `view` depends on them.
    return [values[name] for name in names]
