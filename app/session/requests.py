"""Edits of the recipe that are reported and compiled, and requests to the engine that show a message if they fail."""

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

    def edit(self, recipe: Recipe, title: str, merge_key: str = "") -> None:
        """Make `recipe` the current one and compile it, unless it is the current one already.

        Edits with the same non-empty `merge_key` in quick succession are undone together.
        """
        if self._session.workspace.edit(recipe, title, merge_key):
            self._report_and_compile(title)

    def undo(self) -> None:
        self._report_and_compile(f"undone: {self._session.workspace.undo()}")

    def redo(self) -> None:
        self._report_and_compile(f"redone: {self._session.workspace.redo()}")

    def undo_or_redo(self, steps: int) -> None:
        """Redo `steps` edits, or undo them if the number is negative."""
        self._session.workspace.undo_or_redo(steps)
        self._report_and_compile(f"{abs(steps)} edit{'s' * (abs(steps) > 1)} {'redone' if steps > 0 else 'undone'}")

    def _report_and_compile(self, message: str) -> None:
        """Show `message`, or the error of saving the recipe, and compile the recipe."""
        session, workspace = self._session, self._session.workspace
        session.say(workspace.problem or (f"{message} · {workspace.notice}" if workspace.notice else message))
        session.compile_edit()
        session.notify(ALL)


Answer = TypeVar("Answer")


class Requester:
    """Sends requests of the session, and calls `show` with the reason of each request that fails."""

    def __init__(self, session: Session, show: Callable[[str], object]) -> None:
        self._session, self._show = session, show

    async def request(
        self, frame: Request[Answer], on_frame: Callable[[Any], object] = lambda _frame: None, failed: str = ""
    ) -> Answer | None:
        """Like `Session.request`, but shows the reason and returns `None` if there is no answer."""
        return await self.await_answer(self._session.request(frame, on_frame), failed)

    async def await_answer(self, request: Awaitable[Answer], failed: str = "", stopped: str = "") -> Answer | None:
        """Await a request of the session. Returns its answer, or `None` if it failed.

        A failure is shown as "`failed`: reason". A cancelled request is shown as `stopped`, if that is not empty.
        """
        try:
            return await request
        except UnavailableError as error:
            if stopped and error.cancelled:
                self._show(stopped)
            else:
                self._show(f"{failed}: {error}" if failed else str(error))
            return None
