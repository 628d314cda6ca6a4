"""What panes and commands do with a session: requests whose failures are shown as messages, and edits of the recipe."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from buddy.app.session.state import STATE_TOPICS
from buddy.compiler.protocol.errors import BuddyError

if TYPE_CHECKING:
    from buddy.app.session.session import Session
    from buddy.compiler.protocol import Request
    from buddy.compiler.protocol.recipe import Recipe


# ---- requests --------------------------------------------------------------------------------------------------------


Answer = TypeVar("Answer")


class UnavailableError(BuddyError):
    """A request has no answer. The message is the reason; `cancelled` says that the request was cancelled."""

    def __init__(self, reason: str, cancelled: bool = False) -> None:
        super().__init__(reason)
        self.cancelled = cancelled


class Requester:
    """Sends requests of `session`. If one fails, it calls `show_error` with the reason instead of raising an error."""

    def __init__(self, session: Session, show_error: Callable[[str], object]) -> None:
        self._session, self._show_error = session, show_error

    async def request(
        self, frame: Request[Answer], on_frame: Callable[[Any], object] = lambda _frame: None, failed: str = ""
    ) -> Answer | None:
        """Sends a request and returns its answer, or `None` if it failed.

        The parameters are those of `Session.request` and `await_answer`.
        """
        return await self.await_answer(self._session.request(frame, on_frame), failed)

    async def await_answer(self, request: Awaitable[Answer], failed: str = "", stopped: str = "") -> Answer | None:
        """Awaits a request that was sent. Returns its answer, or `None` if it failed.

        A failure is shown as "`failed`: reason", or as the reason alone if `failed` is empty. If `stopped` is not
        empty, it is shown instead when the request was cancelled.
        """
        try:
            return await request
        except UnavailableError as error:
            if stopped and error.cancelled:
                self._show_error(stopped)
            else:
                self._show_error(f"{failed}: {error}" if failed else str(error))
            return None


# ---- edits -----------------------------------------------------------------------------------------------------------


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
