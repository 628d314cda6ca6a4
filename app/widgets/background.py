"""Starts Textual workers."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.dom import DOMNode

if TYPE_CHECKING:
    from textual.worker import Worker, WorkType


def start_worker(
    node: DOMNode, group: str, work: Callable[..., Coroutine[object, object, None]], *arguments: object
) -> Worker[None]:
    """Starts `work(*arguments)` as a worker of `node`, and returns it. Cancels the workers of `node` in `group`."""
    # The worker gets a function, not a coroutine: if it is cancelled before it starts, Python would warn that the
    # coroutine was never awaited.
    return node.run_worker(cast("WorkType[None]", partial(work, *arguments)), group=group, exclusive=True)
