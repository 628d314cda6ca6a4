"""Background work in a Textual worker."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.dom import DOMNode

if TYPE_CHECKING:
    from textual.worker import WorkType


def start_worker(node: DOMNode, group: str, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    """Start `work` in a worker of `node`, and cancel the current worker of `group`.

    The worker creates the coroutine when it starts. A worker that is replaced earlier leaves no unawaited coroutine.
    """
    node.run_worker(cast("WorkType[None]", partial(work, *arguments)), group=group, exclusive=True)
