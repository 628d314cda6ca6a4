"""The workbench in a browser: textual-serve behind a token, which is the first part of every address.

Anyone with the address can run code as the user. So every request, including the web socket, needs the token. The
server also rejects requests with a host name that is not this machine's (DNS rebinding), and requests from scripts of
other sites (RFC 6455, 10.2).
"""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import ipaddress
import logging
import os
import secrets
import shlex
import signal
import socket
from collections.abc import Awaitable, Callable, Sequence
from urllib.parse import urlsplit

import aiohttp_jinja2
from aiohttp import WSCloseCode, web
from textual_serve.app_service import AppService
from textual_serve.server import Server, to_int

# The headers of every response.
_HEADERS = {
    # The address contains the token: do not send it to other sites, and do not let other sites embed the page.
    "Referrer-Policy": "no-referrer",
    # Do not load fonts from other sites: the page works without a network.
    "Content-Security-Policy": "style-src 'self' 'unsafe-inline'; font-src 'self' data:; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
# How often it is checked whether the server accepts connections.
_POLL_SECONDS = 0.02
# The least time between two changes of size that are sent to a workbench.
_RESIZE_SECONDS = 0.05
# How long a workbench may take to exit before it is killed.
_EXIT_SECONDS = 10.0
# Seconds between two pings of the browser.
_HEARTBEAT_SECONDS = 15
# Focuses the terminal when the page is loaded, and again after the first output: the page reports only a focus after
# its first output to the workbench.
_FOCUS_SCRIPT = """<script>
  const waiting = setInterval(() => {
    const input = document.querySelector(".xterm-helper-textarea");
    if (!input) return;
    input.focus();
    if (!document.body.classList.contains("-first-byte")) return;
    clearInterval(waiting);
    input.blur();
    input.focus();
  }, 50);
</script>
"""
_BAD_TOKEN = "403: the token is missing or wrong. Use the full address that `buddy-tui --web` printed.\n"
_WRONG_HOST_OR_SITE = "403: the request is for another host name, or comes from another site.\n"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WorkbenchService(AppService):
    """The workbench of one page. Its process gets only the newest size, and exits when the page is closed."""

    # Width and height in cells: the newest size, and the one that was sent last.
    _size = _sent_size = (0, 0)
    _size_task: asyncio.Task[None] | None = None

    async def _open_app_process(self, width: int = 80, height: int = 24) -> asyncio.subprocess.Process:
        """Starts the process without a shell, and in a group that can be killed."""
        pipe = asyncio.subprocess.PIPE
        self._size = self._sent_size = (width, height)
        self._process = await asyncio.create_subprocess_exec(
            *shlex.split(self.command), stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True,
            env=self._build_environment(width, height),
        )  # fmt: skip
        self._stdin = self._process.stdin
        return self._process

    async def set_terminal_size(self, width: int, height: int) -> None:
        """Sends a size soon. If more sizes arrive until then, only the last one is sent."""
        self._size = (width, height)
        if self._size_task is None or self._size_task.done():
            self._size_task = asyncio.create_task(self._send_sizes())

    async def _send_sizes(self) -> None:
        """Sends the newest size until no newer one has arrived, at most every `_RESIZE_SECONDS`."""
        while self._size != self._sent_size:
            self._sent_size = self._size
            await super().set_terminal_size(*self._sent_size)
            await asyncio.sleep(_RESIZE_SECONDS)

    async def stop(self) -> None:
        """Asks the workbench to exit, and kills it if it does not."""
        task, process, self._task = self._task, self._process, None
        if task is None or process is None:
            return
        await self._download_manager.cancel_app_downloads(app_service_id=self.app_service_id)
        running_tasks = [task, *([self._size_task] if self._size_task is not None else [])]
        for running_task in running_tasks:
            running_task.cancel()
        await asyncio.gather(*running_tasks, return_exceptions=True)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._quit(process), _EXIT_SECONDS)
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()

    async def _quit(self, process: asyncio.subprocess.Process) -> None:
        """Asks the process to exit, and waits for its end. Its output is read, because a full pipe would block it."""
        await asyncio.gather(self.send_meta({"type": "quit"}), process.communicate())


class TokenServer(Server):
    """Serves the screen of a command under `/TOKEN/`. Each opened page starts a new process."""

    def __init__(self, command: Sequence[str], host: str, port: int, title: str) -> None:
        super().__init__(shlex.join(command), host=host, port=port, title=title)
        self.token = secrets.token_urlsafe(24)
        self._sockets: set[web.WebSocketResponse] = set()

    @property
    def address(self) -> str:
        """The address of the page, with the token."""
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{name}:{self.port}/{self.token}/"

    async def _make_app(self) -> web.Application:
        """Returns an application that serves only textual-serve's pages, under the token."""
        pages = await super()._make_app()
        application = web.Application(middlewares=[self._guard])
        application.add_subapp(f"/{self.token}", pages)
        application.on_response_prepare.append(_add_headers)
        return application

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Rejects requests without the token, for another host name, or from pages of other sites."""
        token = request.path.removeprefix("/").partition("/")[0]
        if not hmac.compare_digest(token.encode(), self.token.encode()):
            return web.Response(status=403, text=_BAD_TOKEN)
        if not _is_own_host(request.host, self.host) or not _is_own_origin(request.headers.get("Origin"), request.host):
            return web.Response(status=403, text=_WRONG_HOST_OR_SITE)
        return await handler(request)

    async def handle_index(self, request: web.Request) -> web.Response:
        """Returns the page of textual-serve, extended by a script that focuses its terminal."""
        page = aiohttp_jinja2.render_template("app_index.html", request, self._page_values(request))
        page.text = str(page.text).replace("</body>", f"{_FOCUS_SCRIPT}</body>")
        return page

    def _page_values(self, request: web.Request) -> dict[str, object]:
        """Returns the values of the page's template. Its addresses have the host name of the request.

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

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Serves a workbench until the page or the workbench is closed."""
        width, height = to_int(request.query.get("width", ""), 80), to_int(request.query.get("height", ""), 24)
        page = web.WebSocketResponse(heartbeat=_HEARTBEAT_SECONDS)
        await page.prepare(request)
        self._sockets.add(page)

        async def close() -> None:
            await page.close()

        workbench = WorkbenchService(
            self.command, write_bytes=page.send_bytes, write_str=page.send_str, close=close,
            download_manager=self.download_manager,
        )  # fmt: skip
        try:
            await workbench.start(width, height)
            await self._process_messages(page, workbench)
        finally:
            self._sockets.discard(page)
            await workbench.stop()
        return page

    async def on_shutdown(self, app: web.Application) -> None:
        """Closes the pages, which ends their workbenches."""
        await asyncio.gather(*(page.close(code=WSCloseCode.GOING_AWAY) for page in list(self._sockets)))

    async def on_startup(self, app: web.Application) -> None:
        """Starts the announcement. The task is an attribute, because asyncio itself keeps no reference to it."""
        self._announcing = asyncio.create_task(self._announce())

    async def _announce(self) -> None:
        """Prints the address when the server accepts connections; aiohttp starts an application before it listens."""
        while not await _is_listening(self.host, self.port):
            await asyncio.sleep(_POLL_SECONDS)
        print(
            f"the workbench is at {self.address}\nAnyone with this address can run code as you. Press ctrl+c to stop.",
            flush=True,
        )

    def initialize_logging(self) -> None:
        """Logs only warnings, because a log of requests would contain the token."""
        logging.basicConfig(level=logging.WARNING, format="%(message)s")


def _is_own_host(host: str, bound_host: str) -> bool:
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


def _is_own_origin(origin: str | None, host: str) -> bool:
    """Whether a request comes from a page served under `host`, or has no origin, so that it comes from no page."""
    if origin is None:
        return True
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc.lower() == host.lower()


async def _is_listening(host: str, port: int) -> bool:
    """Whether a server accepts connections at this address."""
    try:
        _, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    writer.close()
    return True


async def _add_headers(_request: web.Request, response: web.StreamResponse) -> None:
    """Adds `_HEADERS` to a response that is about to be sent."""
    response.headers.update(_HEADERS)


def serve(command: Sequence[str], host: str, port: int, title: str) -> None:
    """Serves the workbench that `command` starts, until ctrl+c. Raises `OSError` if the port is not available."""
    logging.getLogger("aiohttp.access").disabled = True
    TokenServer(command, host, port, title).serve()
