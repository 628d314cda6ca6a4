"""Hooks, by which a lower layer uses code of an upper one without importing it. `compiler/__init__.py` provides them.

Hooks are untyped because this layer cannot import the types; callers annotate the result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """A class, function or module of an upper layer, which is loaded when a lower layer calls the hook."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._load: Callable[[], Any] | None = None

    def provide(self, load: Callable[[], object]) -> None:
        """Sets the function that returns the hook's value; it may import the upper layer."""
        self._load = load

    def __call__(self) -> Any:
        """Returns the value. Raises `RuntimeError` if nothing provides it."""
        if self._load is None:
            raise RuntimeError(f"nothing provides {self._name} · import buddy.compiler, which provides it")
        return self._load()


# Lowers a graph to MLIR: a `graph.graph.GraphLowering`, for the methods of `Graph` and `GraphDriver`.
graph_lowering = Hook("the lowering of graphs")
# The search for the fastest recipe of a graph: a `frontend.compiled_graph.Autotuner` class, for `mode="max-autotune"`.
autotuner = Hook("the search for recipes")
