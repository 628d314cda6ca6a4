"""Edits the recipe, and compiles it after each edit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app.session.state import ALL

if TYPE_CHECKING:
    from buddy.app.session.session import Session
    from buddy.compiler.protocol.recipe import Recipe


class RecipeEditor:
    """Changes the recipe of the graph on the screen, reports the change, and compiles the new recipe."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def edit(self, recipe: Recipe, title: str, merge: str = "") -> None:
        """Make `recipe` the current one and compile it; edits of one `merge` name are undone together."""
        if self._session.workspace.edit(recipe, title, merge):
            self._changed(title)

    def undo(self) -> None:
        self._changed(f"undone: {self._session.workspace.undo()}")

    def redo(self) -> None:
        self._changed(f"redone: {self._session.workspace.redo()}")

    def go(self, steps: int) -> None:
        """Redo `steps` edits, or undo them if the number is negative."""
        self._session.workspace.go(steps)
        self._changed(f"{abs(steps)} edit{'s' * (abs(steps) > 1)} {'redone' if steps > 0 else 'undone'}")

    def _changed(self, message: str) -> None:
        session, workspace = self._session, self._session.workspace
        session.say(workspace.problem or (f"{message} · {workspace.news}" if workspace.news else message))
        session.edited()
        session.changed(ALL)
