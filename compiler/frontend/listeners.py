"""Who is told of graphs that a script imports: a source that runs the script, and nobody otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from buddy.compiler.frontend.captured import CapturedGraph

OnGraph = Callable[[CapturedGraph], None]
Quiet = Callable[[], AbstractContextManager[None]]
_listeners: list[tuple[OnGraph, Quiet]] = []


@contextmanager
def listening(on_graph: OnGraph, quiet: Quiet) -> Iterator[None]:
    """Tell `on_graph` of every imported graph; `quiet()` is entered around an import, whose calls do not count."""
    _listeners.append((on_graph, quiet))
    try:
        yield
    finally:
        _listeners.pop()


def recording() -> bool:
    """Whether a script is being run for its graphs: it computes in eager then, and nothing is compiled."""
    return bool(_listeners)


def tell(graph: CapturedGraph) -> None:
    if _listeners:
        _listeners[-1][0](graph)


def quietly() -> AbstractContextManager[None]:
    return _listeners[-1][1]() if _listeners else nullcontext()
