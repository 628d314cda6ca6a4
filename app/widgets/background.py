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
    """Run `work(*arguments)` in a worker of `node`, which is returned. Cancels the current worker of `group`."""
    # The worker calls `work`. If it is cancelled before it starts, there is no coroutine that was never awaited.
    return node.run_worker(cast("WorkType[None]", partial(work, *arguments)), group=group, exclusive=True)
