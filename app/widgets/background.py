"""Work that goes on beside the keys, in a worker of Textual's."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.dom import DOMNode

if TYPE_CHECKING:
    from textual.worker import WorkType


def begin(node: DOMNode, group: str, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any) -> None:
    """Have a worker of `node` do `work`, in place of whatever its workers of `group` are at.

    The coroutine is made when the worker begins: of one that is replaced before it does, nobody would ever await it.
    """
    node.run_worker(cast("WorkType[None]", partial(work, *arguments)), group=group, exclusive=True)
