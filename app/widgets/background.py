"""Background work in Textual workers, and the registry of actions as Textual bindings."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from textual.binding import Binding, BindingType
from textual.dom import DOMNode

from buddy.app.actions import ACTIONS, Action, Pane

if TYPE_CHECKING:
    from textual.worker import Worker, WorkType


def start_worker(
    node: DOMNode, group: str, work: Callable[..., Coroutine[Any, Any, None]], *arguments: Any
) -> Worker[None]:
    """Start `work` in a worker of `node`, and cancel the current worker of `group`.

    The worker creates the coroutine when it starts. A worker that is replaced earlier leaves no unawaited coroutine.
    """
    return node.run_worker(cast("WorkType[None]", partial(work, *arguments)), group=group, exclusive=True)


def pane_bindings(pane: Pane) -> list[BindingType]:
    """The bindings of a pane: its own actions, and the actions of every pane."""
    return _bindings(action for action in ACTIONS if action.pane in (pane, "any") and not action.anywhere)


def screen_bindings() -> list[BindingType]:
    """The bindings that work in every pane."""
    return _bindings(action for action in ACTIONS if action.pane == "app" or action.anywhere)


def _bindings(actions: Iterable[Action]) -> list[BindingType]:
    bindings: list[BindingType] = []
    prefixes: dict[str, None] = {}
    for action in actions:
        prefixes |= dict.fromkeys(key.split()[0] for key in action.own_keys if " " in key)
        bindings += _bindings_of(action, [key for key in action.own_keys if " " not in key])
    return bindings + [Binding(key, f"app.begin_sequence('{key}')", show=False) for key in prefixes]


def _bindings_of(action: Action, keys: list[str]) -> list[BindingType]:
    if action.id == "phase.number":
        return [_binding(action, key, f", {int(key) or 10}", f".{key}") for key in keys]
    return [_binding(action, ",".join(keys))] if keys else []


def _binding(action: Action, keys: str, argument: str = "", suffix: str = "") -> Binding:
    call = f"app.act('{action.id}'{argument})"
    return Binding(keys, call, action.title, show=False, tooltip=action.tooltip, id=action.id + suffix)
