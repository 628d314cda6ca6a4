"""Transfers a graph to another process: a folder with the graph as plain data, and its input tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from buddy.compiler.graph import serialize
from buddy.compiler.graph.graph import Graph
from buddy.compiler.protocol import GraphInfo
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.node_by_node import results_of

_GRAPH, _VALUES = "graph.bin", "values.pt"


def write_bundle(folder: Path, graph: Graph, tensors: Sequence[torch.Tensor], numbers: Sequence[Any] = ()) -> None:
    """Writes `graph` and its inputs, in placeholder order, into `folder`. Raises `OSError`."""
    (folder / _GRAPH).write_bytes(serialize.to_bytes(graph))
    torch.save({"tensors": [_alone(tensor) for tensor in tensors], "numbers": list(numbers)}, folder / _VALUES)


def read_bundle(folder: Path) -> CapturedGraph:
    """Reads the output of `write_bundle` from `folder`; eager computes it node by node.

    Raises `OSError`, and the readers' exceptions for a damaged file.
    """
    graph = serialize.from_bytes((folder / _GRAPH).read_bytes())
    values = torch.load(folder / _VALUES, weights_only=True, mmap=True)
    numbers = tuple(values["numbers"])
    eager = partial(results_of, graph, numbers=numbers)
    return CapturedGraph(graph, GraphInfo(graph.name, ()), values["tensors"], eager, numbers=numbers)


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor without other data: for a view, the whole storage would be written."""
    plain = tensor.detach().resolve_conj().resolve_neg()
    return plain if plain.untyped_storage().nbytes() == plain.nbytes else plain.clone()
