"""Requests to the engine that show a message if the engine has no answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from buddy.compiler.protocol.errors import BuddyError

if TYPE_CHECKING:
    from buddy.app.session.session import Session
    from buddy.compiler.protocol import Request

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
