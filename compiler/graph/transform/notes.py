"""The notes of a graph pass on the nodes it looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class TransformError(Exception):
    """A graph pass cannot handle the graph; the text says what and where."""


class Note(NamedTuple):
    """What was done to a node, or why nothing was done; `node` is its stable name."""

    node: str
    text: str


# A graph pass rewrites the graph in place. Options are keyword arguments with defaults.
Transform = Callable[..., list[Note] | None]
