"""Requests to the engine that show a message if they fail."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from buddy.app.session.lines import UnavailableError

if TYPE_CHECKING:
    from buddy.app.session.session import Session
    from buddy.compiler.protocol import Request

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
