"""Entry points of upper layers that a lower layer calls without importing them; `compiler/__init__.py` provides each.

This module stands below all that use it, so a hook says nothing of types: who calls one annotates what it gives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Hook:
    """A class, function or module that is loaded when a lower layer first asks for it."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._load: Callable[[], Any] | None = None

    def provide(self, load: Callable[[], Any]) -> None:
        """Let `load`, which may import, give what a call of the hook gives."""
        self._load = load

    def __call__(self) -> Any:
        """What was provided. Raises `RuntimeError` where nothing was."""
        if self._load is None:
            raise RuntimeError(f"nothing provides {self._name} · import buddy.compiler, which does")
        return self._load()


# Makes MLIR of a graph: a `graph.graph.GraphLowering`, for the methods of `Graph` and `GraphDriver`.
graph_lowering = Hook("the lowering of graphs")
# Searches for a graph's fastest recipe: a `frontend.backend.Autotuner` class, for `torch.compile` with `tune`.
autotuner = Hook("the search for recipes")
