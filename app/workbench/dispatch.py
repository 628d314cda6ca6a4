"""Finds the method of each action, once, when the workbench starts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from buddy.app.actions import Action, Pane

Method = Callable[..., object]


class DispatchError(Exception):
    """Actions without a method, or with several. The message names them."""


def resolve(
    actions: Iterable[Action],
    targets: Iterable[tuple[str, object]],
    panes: Mapping[Pane, object],
    focused: Callable[[], Pane],
) -> dict[str, Method]:
    """The method of each action, by the id of the action.

    `targets` are objects with their names in `Action.target`. A pane has its id as name; `pane` is the pane that has
    focus, whose id `focused` returns. Raises `DispatchError` unless each action has exactly one method, or,
    where its target is `pane`, one in every pane.
    """
    objects = [*targets, *panes.items()]
    methods: dict[str, Method] = {}
    problems: list[str] = []
    for action in actions:
        if action.target == "pane":
            in_panes = InFocusedPane(action.method, panes, focused)
            found: list[Method] = [in_panes] if in_panes.complete else []
        else:
            named = [getattr(target, action.method, None) for name, target in objects if name == action.target]
            found = [method for method in named if callable(method)]
        if len(found) == 1 and action.id not in methods:
            methods[action.id] = found[0]
        else:
            problems.append(f"{action.id} ({action.handler})")
    if problems:
        raise DispatchError(f"these actions do not have exactly one method: {', '.join(problems)}")
    return methods


class InFocusedPane:
    """Calls the method of that name of the pane that has focus."""

    def __init__(self, name: str, panes: Mapping[Pane, object], focused: Callable[[], Pane]) -> None:
        self._methods: dict[Pane, Any] = {pane_id: getattr(pane, name, None) for pane_id, pane in panes.items()}
        self._focused = focused

    @property
    def complete(self) -> bool:
        """Whether every pane has the method."""
        return all(map(callable, self._methods.values()))

    def __call__(self, *arguments: object) -> object:
        return self._methods[self._focused()](*arguments)
