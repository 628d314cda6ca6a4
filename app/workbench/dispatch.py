"""Finds the method of each action, once, when the workbench starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from buddy.app.actions import Action
from buddy.app.actions import Pane as PaneId
from buddy.compiler.protocol.errors import BuddyError

Method = Callable[..., object]


class DispatchError(BuddyError):
    """Some actions do not have exactly one method. The message names these actions."""


def methods_of_actions(
    actions: Iterable[Action],
    targets: Iterable[tuple[str, object]],
    panes: Mapping[PaneId, object],
    focused_pane: Callable[[], PaneId],
) -> dict[str, Method]:
    """Return the method of each action, by the id of the action.

    `Action.target` is a name in `targets`, the id of a pane, or `pane`, which stands for the pane that has focus:
    `focused_pane` returns its id. A name may have several objects in `targets`, of which one has the method. Raises
    `DispatchError` if two actions have the same id, or if an action does not have exactly one method; an action with
    the target `pane` needs its method in every pane.
    """
    named_objects = [*targets, *panes.items()]
    methods: dict[str, Method] = {}
    problems: list[str] = []
    for action in actions:
        if action.target == "pane":
            pane_method = FocusedPaneMethod(action.method, panes, focused_pane)
            candidates: list[Method] = [pane_method] if pane_method.is_in_all_panes else []
        else:
            attributes = [
                getattr(target, action.method, None) for name, target in named_objects if name == action.target
            ]
            candidates = [attribute for attribute in attributes if callable(attribute)]
        if len(candidates) == 1 and action.id not in methods:
            methods[action.id] = candidates[0]
        else:
            problems.append(f"{action.id} ({action.handler})")
    if problems:
        raise DispatchError(f"these actions do not have an id of their own and one method: {', '.join(problems)}")
    return methods


class FocusedPaneMethod:
    """Calls the method called `name` of the pane that has focus."""

    def __init__(self, name: str, panes: Mapping[PaneId, object], focused_pane: Callable[[], PaneId]) -> None:
        self._methods: dict[PaneId, Any] = {pane_id: getattr(pane, name, None) for pane_id, pane in panes.items()}
        self._focused_pane = focused_pane

    @property
    def is_in_all_panes(self) -> bool:
        """Whether each pane has the method."""
        return all(map(callable, self._methods.values()))

    def __call__(self, *arguments: object) -> object:
        return self._methods[self._focused_pane()](*arguments)
