"""Graph passes: functions that rewrite a Buddy graph in place, by the name a recipe gives them."""

from __future__ import annotations

from collections.abc import Callable

from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.transform.identities import drop_identities


class TransformError(Exception):
    """A graph pass met a graph that it must refuse; the text says what and where."""


def transforms() -> dict[str, Callable[[Graph], None]]:
    return {"drop-identities": drop_identities}
