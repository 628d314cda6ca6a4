"""Notifies the tool that runs a script of the graphs that the script imports."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from buddy.compiler.runtime.captured import CapturedGraph

OnGraph = Callable[[CapturedGraph], None]
Quiet = Callable[[], AbstractContextManager[None]]
# A TorchDynamo backend: maps a graph and its inputs to the callable that replaces it.
DynamoBackend = Callable[[Any, Sequence[Any]], Callable[..., Any]]
_listeners: list[tuple[OnGraph, Quiet, DynamoBackend | None]] = []


@contextmanager
def listening(on_graph: OnGraph, quiet: Quiet, backend: DynamoBackend | None = None) -> Iterator[None]:
    """Calls `on_graph` with every imported graph.

    `quiet()` is entered during an import, whose calls are not recorded.

    `backend` replaces the backend `"buddy"` in earlier calls of `torch.compile`.
    """
    _listeners.append((on_graph, quiet, backend))
    try:
        yield
    finally:
        _listeners.pop()


def recording() -> bool:
    """Whether a script is being run to capture its graphs: it then runs in eager, and nothing is compiled."""
    return bool(_listeners)


def stand_in() -> DynamoBackend | None:
    """The replacement of the backend, if there is a listener."""
    return _listeners[-1][2] if _listeners else None


def tell(graph: CapturedGraph) -> None:
    if _listeners:
        _listeners[-1][0](graph)


def quietly() -> AbstractContextManager[None]:
    return _listeners[-1][1]() if _listeners else nullcontext()
