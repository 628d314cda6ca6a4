"""Starts Textual workers, and converts the registry of actions to Textual bindings."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.binding import Binding, BindingType
from textual.dom import DOMNode

from buddy.app.actions import ACTIONS, Action, Pane

if TYPE_CHECKING:
    from textual.worker import Worker, WorkType


def start_worker(
    node: DOMNode, group: str, work: Callable[..., Coroutine[object, object, None]], *arguments: object
) -> Worker[None]:
    """Start `work` in a worker of `node`, and cancel the current worker of `group`.

    The worker itself calls `work`, so a worker that is cancelled before it starts leaves no coroutine that was never
    awaited.
    """
    return node.run_worker(cast("WorkType[None]", partial(work, *arguments)), group=group, exclusive=True)


def pane_bindings(pane: Pane) -> list[BindingType]:
    """The bindings of a pane: its own actions, and the actions of every pane."""
    return _bindings(action for action in ACTIONS if action.pane in (pane, "any") and not action.anywhere)


def screen_bindings() -> list[BindingType]:
    """The bindings that work in every pane."""
    return _bindings(action for action in ACTIONS if action.pane == "app" or action.anywhere)


def _bindings(actions: Iterable[Action]) -> list[BindingType]:
    """The bindings of actions; the first key of a key sequence such as `g c` is bound to `begin_sequence`."""
    bindings: list[BindingType] = []
    first_keys: dict[str, None] = {}
    for action in actions:
        first_keys |= dict.fromkeys(key.split()[0] for key in action.default_keys if " " in key)
        bindings += _bindings_of(action, [key for key in action.default_keys if " " not in key])
    return bindings + [Binding(key, f"app.begin_sequence('{key}')", show=False) for key in first_keys]


def _bindings_of(action: Action, keys: list[str]) -> list[BindingType]:
    # `phase.number` has the keys 1 to 9 and 0, each of which passes the number of a phase; 0 is the tenth.
    if action.id == "phase.number":
        return [_binding(action, key, f", {int(key) or 10}", f".{key}") for key in keys]
    return [_binding(action, ",".join(keys))] if keys else []


def _binding(action: Action, keys: str, argument: str = "", suffix: str = "") -> Binding:
    call = f"app.act('{action.id}'{argument})"
    return Binding(keys, call, action.title, show=False, tooltip=action.tooltip, id=action.id + suffix)
