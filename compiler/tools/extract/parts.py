"""A part of a graph with the real values on its edges, from eager run up to there."""

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
    """A graph and the tensors it runs on, in the order of its placeholders; `numbers` are sizes that a call tells."""

    graph: Graph
    tensors: list[torch.Tensor]
    numbers: tuple[Any, ...] = ()


def part_of(whole: Part, nodes: Collection[Op]) -> Part:
    """`nodes` of a graph, with what they read from outside as eager computes it.

    Raises `ExtractionError` as `extracted` does, and where eager does not come that far.
    """
    symbols = symbols_at(whole.graph, whole.tensors, whole.numbers)
    graph = extracted(whole.graph, nodes, symbols)
    return Part(graph, _on_the_edges(whole, list(edges(graph))))


def _on_the_edges(whole: Part, names: Sequence[str]) -> list[torch.Tensor]:
    torch.manual_seed(SEED)
    try:
        values = values_of(whole.graph, whole.tensors, set(names), whole.numbers)
    except Exception as error:
        what = f"eager does not come to {', '.join(names[:3])}: {type(error).__name__}: {error}"
        raise ExtractionError(f"{what} · choose nodes before it") from error
    # As they lie: a `view` behind them is one of their strides.
    return [values[name] for name in names]
