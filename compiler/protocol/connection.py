"""Frames of the connection itself: greetings, cancelling, progress, failures."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.frame import PROTOCOL_VERSION, Frame, Request
from buddy.compiler.protocol.plain_values import Diagnostic, Stage

LogLevel = Literal["debug", "info", "warning", "error"]
Standing = Literal["starting", "ready", "busy", "stopped", "dead"]
WorkerEnd = Literal["", "asked", "request", "idle", "start"]


class Hello(Frame, frozen=True, omit_defaults=False):
    """The greeting; its version is written out even where it is the default. `log` is the least that is logged."""

    version: int = PROTOCOL_VERSION
    client: str = "buddy-tui"
    log: LogLevel = "info"


class Cancel(Frame, frozen=True):
    """Stop request number `target`; 0 stops everything under way. The request ends with `Failed(cancelled=True)`."""

    target: int = 0


class Ping(Request["Pong"], frozen=True):
    """Is anybody there? Answered by `Pong` before anything that comes behind it."""


class Shutdown(Frame, frozen=True):
    """End the engine and its workers."""


class Welcome(Frame, frozen=True):
    version: int
    engine: str
    pid: int
    target: str = ""
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    cores: int = 1


class Pong(Frame, frozen=True):
    """The engine's loop turns."""

    request: int


class Progress(Frame, frozen=True):
    """What a request is doing now; `done` in 0..1 where it is known, else -1."""

    request: int
    what: str
    done: float = -1.0


class Printout(Frame, frozen=True):
    """Text that the user's program printed."""

    text: str
    stream: Literal["stdout", "stderr"] = "stdout"


class Failed(Frame, frozen=True):
    """The request ended without its result. Stages sent before stay valid; `stages` may add the IR at the failure."""

    request: int
    diagnostic: Diagnostic
    cancelled: bool = False
    stages: tuple[Stage, ...] = ()


class WorkerState(Frame, frozen=True):
    """A worker (`host`, `compiler`, `runner`) changed state; `what` says why, in words for a person.

    `stopped`: by a signal, such as SIGSTOP or a debugger's; it goes on once it is continued.
    `end` says when a `dead` one ended: when it was `asked` to, in a `request` that fails of it, `idle`, or at its
    `start`, of which no failure tells; `again`, that another one is being started.
    """

    worker: str
    state: Standing
    what: str = ""
    end: WorkerEnd = ""
    again: bool = False
