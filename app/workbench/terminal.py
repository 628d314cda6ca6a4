"""Extends Textual: copying in tmux, pasted text, many changes of size, disconnects, caches, and a log of crashes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import rich.color
import rich.segment
import rich.style
from textual import _segment_tools, color, events, filter, strip, style
from textual._styles_cache import StylesCache
from textual._xterm_parser import XTermParser
from textual.app import App
from textual.css.scalar import Scalar
from textual.driver import Driver
from textual.geometry import Region
from textual.message import Message
from textual.messages import ExitApp

from buddy.compiler.protocol import Diagnostic

_TMUX_TIMEOUT_SECONDS = 5.0


def copy_to_tmux(text: str) -> None:
    """Inside tmux, copies `text` to a new buffer of tmux and to the clipboard of the terminal, in the background."""
    if os.environ.get("TMUX") and not os.environ.get("TEXTUAL_DRIVER"):
        threading.Thread(target=_load_buffer, args=(text,), daemon=True).start()


def _load_buffer(text: str) -> None:
    """Loads `text` into a buffer of tmux; if tmux has the option `-w` (3.2), also into the terminal's clipboard."""
    for option in (["-w"], []):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            command = ["tmux", "load-buffer", *option, "-"]
            process = subprocess.run(command, input=text.encode(), capture_output=True, timeout=_TMUX_TIMEOUT_SECONDS)
            if process.returncode == 0:
                return


# What terminals send before and after pasted text (bracketed paste mode).
PASTE_START, PASTE_END = "\x1b[200~", "\x1b[201~"
_ESCAPE = "\x1b"
# Control characters that stay in pasted text; all others are removed.
_ALLOWED_CONTROLS = "\n\r\t"


class PasteParser(XTermParser):
    """Textual's input parser, except that escape sequences in pasted text are not parsed as keys."""

    def __init__(self, debug: bool = False) -> None:
        super().__init__(debug)
        # Outside of a paste: the last characters, which may be the start of `PASTE_START`.
        self._last_characters = ""
        # In a paste: characters that may be the start of `PASTE_END`.
        self._pending = ""
        self._in_paste = False

    def feed(self, data: str) -> Iterable[Message]:
        """Returns the events of `data`; an empty string is the end of the input."""
        text = "".join(map(self._parsable_text, data))
        return super().feed(text) if text or not data else ()

    def _parsable_text(self, character: str) -> str:
        """Takes the next character. Returns the text that can be parsed now.

        Paste markers may be split between reads, so the start of a marker waits for the next character.
        """
        if not self._in_paste:
            self._last_characters = (self._last_characters + character)[-len(PASTE_START) :]
            self._in_paste = self._last_characters == PASTE_START
            return character
        self._pending += character
        if self._pending == PASTE_END:
            self._in_paste = False
            self._pending = self._last_characters = ""
            return PASTE_END
        if PASTE_END.startswith(self._pending):
            return ""
        # Not a marker: the text is pasted, except that a later escape may start a marker.
        escape = self._pending.rfind(_ESCAPE)
        end = escape if escape > 0 else len(self._pending)
        text, self._pending = self._pending[:end], self._pending[end:]
        return "".join(char for char in text if char >= " " or char in _ALLOWED_CONTROLS)


def read_pastes_as_text(driver: type[Driver]) -> None:
    """Makes the drivers in the module of `driver` parse their input with `PasteParser`."""
    module = sys.modules[driver.__module__]
    if hasattr(module, "XTermParser"):
        module.XTermParser = PasteParser  # type: ignore[attr-defined]


# The least time between two changes of size that are drawn.
RESIZE_SECONDS = 0.1


class ResizeLimiter:
    """Delivers only the newest change of the terminal's size, when the previous one has been drawn.

    A terminal that changes its size continuously would otherwise fill the queues faster than the screen is laid out.
    """

    def __init__(self, app: App[Any], deliver: Callable[[events.Event], Awaitable[None]]) -> None:
        self._app, self._deliver = app, deliver
        self._latest: events.Resize | None = None
        self._delivering = False

    async def take(self, event: events.Resize) -> None:
        """Delivers a change of size now, or after the one before it."""
        self._latest = event
        if not self._delivering:
            await self._deliver_latest()

    async def _deliver_latest(self) -> None:
        """Delivers the newest change of size, if any, and then waits until it has been drawn."""
        event, self._latest = self._latest, None
        self._delivering = event is not None
        if event is not None:
            await self._deliver(event)
            self._app.set_timer(RESIZE_SECONDS, self._wait_for_screen)

    async def _wait_for_screen(self) -> None:
        """Delivers the next size after the screen has handled this one. An application that exits has no screen."""
        if not self._app.screen_stack:
            return
        if not self._app.screen.call_later(self._app.call_later, self._deliver_latest):
            await self._deliver_latest()


# How long the application may take to exit after its web server has exited, before it is killed.
EXIT_SECONDS = 5.0


def exit_with_server(driver: type[Driver]) -> type[Driver]:
    """Returns, for a web driver, a driver whose application exits when the server does; other drivers unchanged."""
    if driver.__module__ != "textual.drivers.web_driver":
        return driver

    class ServedDriver(driver):  # type: ignore[misc, valid-type]
        """Standard input and output are pipes to the server, so their end is the end of the server."""

        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            self._write = self._write_if_served

        def _write_if_served(self, data: bytes) -> None:
            """Writes output for the server. Does nothing if the server has exited."""
            with contextlib.suppress(BrokenPipeError):
                os.write(self.fileno, data)

        def run_input_thread(self) -> None:
            """Handles input up to its end. Then exits the application, or kills the process if that takes too long."""
            super().run_input_thread()
            self._app.post_message(ExitApp())
            threading.main_thread().join(EXIT_SECONDS)
            if threading.main_thread().is_alive():
                os.kill(os.getpid(), signal.SIGKILL)

    return ServedDriver


# How often it is checked whether the terminal is disconnected.
POLL_SECONDS = 1.0
# The exit code that a shell reports for SIGHUP.
SIGHUP_EXIT_CODE = 129


def is_disconnected(descriptor: int) -> bool:
    """Whether the terminal of a file descriptor is disconnected. Systems without `poll` cannot tell."""
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(descriptor, 0)  # disconnects and errors are always reported
    return bool(poll.poll(0))


async def exit_on_disconnect(app: App[int]) -> None:
    """Waits until the terminal disconnects, then exits `app`. Returns at once if standard input is not a terminal."""
    if sys.__stdin__ is None or not sys.__stdin__.isatty():
        return
    descriptor = sys.__stdin__.fileno()
    while not is_disconnected(descriptor):
        await asyncio.sleep(POLL_SECONDS)
    app.exit(SIGHUP_EXIT_CODE, return_code=SIGHUP_EXIT_CODE)


# ---- caches of Textual and Rich --------------------------------------------------------------------------------------


def clear_widget_cache() -> None:
    """Clears Textual's style cache, which keeps the last 1,024 widgets with everything that they have drawn."""
    StylesCache.get_inner_outer.cache_clear()


def clear_region_caches() -> None:
    """Clears Textual's caches of regions: about 20,000 results, for all sizes that the terminal has had."""
    _clear_caches(Region, Scalar)


def clear_style_caches() -> None:
    """Clears the caches of styles after a change of the theme: tens of thousands of styles and line segments."""
    _clear_caches(rich.color.Color, rich.style.Style, rich.segment.Segment)
    _clear_caches(color.Color, style.Style, filter, filter.ANSIToTruecolor, strip.Strip, _segment_tools)


def _clear_caches(*owners: Any) -> None:
    """Clears the caches of the functions of modules, and of the methods of classes."""
    for owner in owners:
        for cache in _caches(owner):
            cache.cache_clear()


def _caches(owner: Any) -> Iterator[_lru_cache_wrapper[Any]]:
    """Yields the caches of the functions of a module, or of the methods of a class."""
    for member in vars(owner).values():
        function = member.__func__ if isinstance(member, classmethod | staticmethod) else member
        if isinstance(function, _lru_cache_wrapper):
            yield function


# ---- the log of internal errors --------------------------------------------------------------------------------------


def save_crash_log(error: BaseException, path: Path, effect: str = "the workbench stopped") -> Diagnostic:
    """Appends the traceback of `error` to the file at `path`, if possible. Returns the message for the user.

    `effect` says what the error has caused.
    """
    message = f"{effect}: {type(error).__name__}: {error}"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            file.write("".join(traceback.format_exception(error)))
    except OSError:
        return Diagnostic(message)
    return Diagnostic(message, todo=f"the traceback is in {path}")
