"""Small helpers for Textual: starting workers, and bindings for the actions of the registry."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import TYPE_CHECKING, cast

from textual.binding import Binding, BindingType
from textual.dom import DOMNode

from buddy.app.actions import ACTIONS, Action, Pane

if TYPE_CHECKING:
    from textual.worker import Worker, WorkType


# ---- workers ---------------------------------------------------------------------------------------------------------


def start_worker(
    node: DOMNode, group: str, work: Callable[..., Coroutine[object, object, None]], *arguments: object
) -> Worker[None]:
    """Starts and returns `work(*arguments)` as a worker of `node`. Cancels the other workers of `node` in `group`."""
    # The worker gets a function, not a coroutine: if a worker is cancelled before it starts, Python would warn that
    # its coroutine was never awaited.
    return node.run_worker(cast("WorkType[None]", partial(work, *arguments)), group=group, exclusive=True)


# ---- bindings --------------------------------------------------------------------------------------------------------


def pane_bindings(pane: Pane) -> list[BindingType]:
    """Returns the bindings of a pane: for its own actions, and for those of any pane, such as moving the cursor."""
    return _bindings(action for action in ACTIONS if action.pane in (pane, "any") and not action.anywhere)


def screen_bindings() -> list[BindingType]:
    """Returns the bindings of the main screen: for the actions that do not depend on the pane that has focus."""
    return _bindings(action for action in ACTIONS if action.pane == "app" or action.anywhere)


def _bindings(actions: Iterable[Action]) -> list[BindingType]:
    """Returns the bindings of actions. Of a key sequence such as `g c`, the first key is bound to `begin_sequence`."""
    bindings: list[BindingType] = []
    first_keys: dict[str, None] = {}  # an ordered set
    for action in actions:
        first_keys |= dict.fromkeys(key.split()[0] for key in action.default_keys if " " in key)
        bindings += _bindings_of(action, [key for key in action.default_keys if " " not in key])
    return bindings + [Binding(key, f"app.begin_sequence('{key}')", show=False) for key in first_keys]


def _bindings_of(action: Action, keys: list[str]) -> list[BindingType]:
    """Returns the bindings of an action to `keys`, which are single keys, not sequences."""
    # Each key of `phase.number`, 1 to 9 and 0 for the tenth phase, passes the number of its phase as an argument.
    if action.id == "phase.number":
        return [_binding(action, key, f", {int(key) or 10}", f".{key}") for key in keys]
    return [_binding(action, ",".join(keys))] if keys else []


def _binding(action: Action, keys: str, argument: str = "", suffix: str = "") -> Binding:
    """Returns the binding of `keys`, separated by commas, to an action.

    `argument` is the source of a second argument of the call with its comma, such as `, 3`. `suffix` makes the id of
    the binding unique if the action has several.
    """
    call = f"app.act('{action.id}'{argument})"
    return Binding(keys, call, action.title, show=False, tooltip=action.tooltip, id=action.id + suffix)
