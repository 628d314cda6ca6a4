"""What a graph pass says of the nodes it looked at."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple


class TransformError(Exception):
    """A graph pass met a graph that it must refuse; the text says what and where."""


class Note(NamedTuple):
    """What was done to a node, or why nothing was; `node` is its stable name."""

    node: str
    text: str


# A graph pass rewrites the graph in place. Options are keyword arguments with defaults.
Transform = Callable[..., list[Note] | None]
