"""Requests to the engine that show a message if they fail, and edits of the recipe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from buddy.app.session.stages import UnavailableError
from buddy.app.session.state import ALL

if TYPE_CHECKING:
    from buddy.app.session.session import Session
    from buddy.compiler.protocol import Request
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
        session.say(workspace.problem or (f"{message} · {workspace.notice}" if workspace.notice else message))
        session.edited()
        session.changed(ALL)


Answer = TypeVar("Answer")


class Requester:
    """Sends requests of the session, and calls `show` with the reason if one fails."""

    def __init__(self, session: Session, show: Callable[[str], object]) -> None:
        self._session, self._show = session, show

    async def request(
        self, frame: Request[Answer], came: Callable[[Any], object] = lambda _frame: None, failed: str = ""
    ) -> Answer | None:
        """Like `Session.request`, but shows the reason and returns `None` if there is no answer."""
        return await self.answered(self._session.request(frame, came), failed)

    async def answered(self, request: Awaitable[Answer], failed: str = "", stopped: str = "") -> Answer | None:
        """Awaits a request of the session. Returns its answer, or `None` if it failed.

        In that case shows the reason, after the words `failed`; for a cancelled request it shows `stopped`, if given.
        """
        try:
            return await request
        except UnavailableError as error:
            if stopped and error.cancelled:
                self._show(stopped)
            else:
                self._show(f"{failed}: {error}" if failed else str(error))
            return None
