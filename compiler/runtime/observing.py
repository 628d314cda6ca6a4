"""The op `buddy::observe`: passes a tensor to the observer of the run, and does nothing without one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

Observer = Callable[[torch.Tensor], None]

_observer: ContextVar[Observer | None] = ContextVar("observer", default=None)
_library = torch.library.Library("buddy", "FRAGMENT")
_library.define("observe(Tensor value) -> ()")


@contextmanager
def observe_nodes(observer: Observer) -> Iterator[None]:
    """Passes the observed values of the enclosed run to `observer`, which must copy what it wants to keep."""
    token = _observer.set(observer)
    try:
        yield
    finally:
        _observer.reset(token)


def _observe(value: torch.Tensor) -> None:
    observer = _observer.get()
    if observer is not None:
        observer(value)


_library.impl("observe", _observe, "CompositeExplicitAutograd")
