"""Who is told of graphs that a script imports: a source that runs the script, and nobody otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from buddy.compiler.runtime.captured import CapturedGraph

OnGraph = Callable[[CapturedGraph], None]
Quiet = Callable[[], AbstractContextManager[None]]
# A back end of TorchDynamo: a graph and its inputs to what is called in its place.
DynamoBackend = Callable[[Any, Sequence[Any]], Callable[..., Any]]
_listeners: list[tuple[OnGraph, Quiet, DynamoBackend | None]] = []


@contextmanager
def listening(on_graph: OnGraph, quiet: Quiet, backend: DynamoBackend | None = None) -> Iterator[None]:
    """Tell `on_graph` of every imported graph; `quiet()` is entered around an import, whose calls do not count.

    `backend` takes the place of the back end `"buddy"` in what was given to `torch.compile` before.
    """
    _listeners.append((on_graph, quiet, backend))
    try:
        yield
    finally:
        _listeners.pop()


def recording() -> bool:
    """Whether a script is being run for its graphs: it computes in eager then, and nothing is compiled."""
    return bool(_listeners)


def stand_in() -> DynamoBackend | None:
    """What compiles in the place of the back end, where somebody listens."""
    return _listeners[-1][2] if _listeners else None


def tell(graph: CapturedGraph) -> None:
    if _listeners:
        _listeners[-1][0](graph)


def quietly() -> AbstractContextManager[None]:
    return _listeners[-1][1]() if _listeners else nullcontext()
