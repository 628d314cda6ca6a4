"""Requests to the engine where a message says why there is no answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from buddy.app.session.lines import UnavailableError

if TYPE_CHECKING:
    from buddy.app.session.session import Session
    from buddy.compiler.protocol import Request

Answer = TypeVar("Answer")


class Requester:
    """Sends requests of the session; `show` is called with the reason where one has no answer."""

    def __init__(self, session: Session, show: Callable[[str], object]) -> None:
        self._session, self._show = session, show

    async def request(
        self, frame: Request[Answer], came: Callable[[Any], object] = lambda _frame: None, failed: str = ""
    ) -> Answer | None:
        """What the engine answers to `frame`, as `Session.request` does; `None` where there is no answer."""
        return await self.answered(self._session.request(frame, came), failed)

    async def answered(self, request: Awaitable[Answer], failed: str = "", stopped: str = "") -> Answer | None:
        """What a request of the session brings, or `None`.

        Then the reason is shown, after what `failed`; or `stopped`, if there is one, where somebody has cancelled it.
        """
        try:
            return await request
        except UnavailableError as error:
            if stopped and error.cancelled:
                self._show(stopped)
            else:
                self._show(f"{failed}: {error}" if failed else str(error))
            return None
