"""Edits of the recipe on the screen: each edit, undo or redo is reported and compiled."""

from __future__ import annotations

from typing import TYPE_CHECKING

from buddy.app.session.state import STATE_TOPICS

if TYPE_CHECKING:
    from buddy.app.session.session import Session
    from buddy.compiler.protocol.recipe import Recipe


class RecipeEditor:
    """Changes the recipe of the graph on the screen, reports the change, and compiles the new recipe."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def edit(self, recipe: Recipe, title: str, merge_key: str = "") -> None:
        """Makes `recipe` the current one and compiles it, unless it is the current one already.

        `title` describes the edit in messages and in the history. Edits in quick succession that have the same
        non-empty `merge_key` are undone together.
        """
        if self._session.workspace.edit(recipe, title, merge_key):
            self._report_and_compile(title)

    def undo(self) -> None:
        """Undoes the last edit and compiles the recipe before it."""
        self._report_and_compile(f"undone: {self._session.workspace.undo()}")

    def redo(self) -> None:
        """Redoes the edit that was undone last, and compiles its recipe."""
        self._report_and_compile(f"redone: {self._session.workspace.redo()}")

    def undo_or_redo(self, steps: int) -> None:
        """Redoes `steps` edits, or undoes them if the number is negative."""
        self._session.workspace.undo_or_redo(steps)
        self._report_and_compile(f"{abs(steps)} edit{'s' * (abs(steps) > 1)} {'redone' if steps > 0 else 'undone'}")

    def _report_and_compile(self, message: str) -> None:
        """Compiles the current recipe, and shows `message`, or the error if the recipe could not be saved."""
        session, workspace = self._session, self._session.workspace
        session.say(workspace.problem or (f"{message} · {workspace.notice}" if workspace.notice else message))
        session.compile_edit()
        session.notify(STATE_TOPICS)
