"""The notes of a graph pass on the nodes that it considers, and its error."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class TransformError(Exception):
    """A graph pass rejects the graph, or its options; the text says why and where."""


class Note(NamedTuple):
    """What a pass did to a node, or why it did nothing; `node` is the node's stable name."""

    node: str
    text: str


# A graph pass rewrites the graph in place. Options are keyword arguments with defaults.
Transform = Callable[..., list[Note] | None]
