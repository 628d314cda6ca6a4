"""The workbench in a browser: textual-serve behind a token, which is the first part of every address.

Anyone with the address can run code as the user. So every request, including the web socket, needs the token. Requests
with a host name that is not this machine's are rejected (DNS rebinding), and so are requests from scripts of other
sites (RFC 6455, 10.2).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import secrets
import shlex
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import urlsplit

import aiohttp_jinja2
from aiohttp import web
from textual_serve.server import Server

_HEADERS = {
    # The address contains the token: do not send it to other sites, and do not let other sites embed the page.
    "Referrer-Policy": "no-referrer",
    # Do not load fonts from other sites: the page works without a network.
    "Content-Security-Policy": "style-src 'self' 'unsafe-inline'; font-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_POLL_SECONDS = 0.02
_BAD_TOKEN = "403: the token is missing or wrong. Use the full address that `buddy-tui --web` printed.\n"
_WRONG_HOST_OR_SITE = "403: the request is for another host name, or comes from another site.\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class TokenServer(Server):
    """Serves the screen of a command under `/TOKEN/`. Each opened page starts a new process."""

    def __init__(self, command: Sequence[str], host: str, port: int, title: str) -> None:
        super().__init__(shlex.join(command), host=host, port=port, title=title)
        self.token = secrets.token_urlsafe(24)

    @property
    def address(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/{self.token}/"

    async def _make_app(self) -> web.Application:
        """An application that serves textual-serve's pages under the token, and nothing else."""
        inner = await super()._make_app()
        outer = web.Application(middlewares=[self._guard])
        outer.add_subapp(f"/{self.token}", inner)
        outer.on_response_prepare.append(_add_headers)
        return outer

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Reject requests without the token, for another host name, or from pages of other sites."""
        token = request.path.removeprefix("/").partition("/")[0]
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return web.Response(status=403, text=_BAD_TOKEN)
        if not is_own_host(request.host, self.host) or not is_own_origin(request.headers.get("Origin"), request.host):
            return web.Response(status=403, text=_WRONG_HOST_OR_SITE)
        return await handler(request)

    @aiohttp_jinja2.template("app_index.html")
    async def handle_index(self, request: web.Request) -> dict[str, Any]:
        """The values of the page's template. Its addresses have the host name of the request.

        This machine may have several names, and the browser allows only connections to the one that it has used.
        """
        font_size = request.query.get("fontsize", "16")
        root = f"{request.host}/{self.token}"
        return {
            "font_size": int(font_size) if font_size.isdecimal() and len(font_size) < 4 else 16,
            "app_websocket_url": f"{'wss' if request.secure else 'ws'}://{root}/ws",
            "config": {"static": {"url": f"{request.scheme}://{root}/static/"}},
            "application": {"name": self.title},
        }

    async def on_startup(self, app: web.Application) -> None:
        self._announcing = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        """Print the address when the server accepts connections; aiohttp starts an application before it listens."""
        while not await _is_listening(self.host, self.port):
            await asyncio.sleep(_POLL_SECONDS)
        print(
            f"the workbench is at {self.address}\nAnyone with this address can run code as you. Press ctrl+c to stop.",
            flush=True,
        )

    def initialize_logging(self) -> None:
        """Log only warnings, because a log of requests would contain the token."""
        logging.basicConfig(level=logging.WARNING, format="%(message)s")


def is_own_host(host: str, bound_host: str) -> bool:
    """Whether a `Host` header is an IP address, which cannot be rebound, or a name of this machine.

    `bound_host` is the name that the server listens on. The port is ignored, because a tunnel may use another one.
    """
    try:
        name = (urlsplit(f"//{host}").hostname or "").rstrip(".")
    except ValueError:
        return False
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    own_names = {bound_host.lower(), socket.gethostname().lower(), socket.getfqdn().lower()}
    return bool(name) and (name == "localhost" or name.endswith(".localhost") or name in own_names)


def is_own_origin(origin: str | None, host: str) -> bool:
    """Whether a request comes from a page served under `host`; also true without an origin, which browsers send."""
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


async def _is_listening(host: str, port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(_HEADERS)


def serve(command: Sequence[str], host: str, port: int, title: str) -> None:
    """Serve until ctrl+c. Raises `OSError` if the port is not available."""
    logging.getLogger("aiohttp.access").disabled = True
    TokenServer(command, host, port, title).serve()
