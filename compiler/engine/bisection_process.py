"""A process that bisects: forked from the host, whose program and inputs it has, and spoken to by a socket of its own.

So the host is free for other requests meanwhile, and may even be replaced.
"""

from __future__ import annotations

import os
import socket
from typing import Any

from buddy.compiler.engine.channel import Channel, traceback_of
from buddy.compiler.engine.messages import Activity, BeginBisection, BisectionDone, Done, Refused, Reply, Trouble
from buddy.compiler.protocol import Diagnostic


def begin_bisection(captured: Any, request: BeginBisection) -> Reply:
    """Fork a process that bisects and ends by itself, or when the other end of its socket goes."""
    pid = os.fork()
    if pid == 0:
        try:
            # Forked twice, so that nobody here has to wait for it.
            if os.fork() == 0:
                _live(captured, request)
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    return Done()


def _live(captured: Any, request: BeginBisection) -> None:
    os.setsid()
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(request.address)
        channel = Channel(connection.fileno(), connection.fileno(), Refused)
        channel.send(_outcome(channel, captured, request))


def _outcome(channel: Channel, captured: Any, request: BeginBisection) -> Reply:
    from buddy.compiler.bisect import Stopped, bisect

    try:
        tell = lambda what, done: channel.send(Activity(what, done))  # noqa: E731
        return BisectionDone(bisect(channel, captured, request.recipe, request.criterion, tell))
    except Stopped:
        os._exit(0)
    except Exception as error:
        channel.send(Trouble(traceback_of(error)))
        found = getattr(error, "diagnostic", None)
        what = f"the search met a fault of its own: {type(error).__name__}: {error}"
        return Refused(found if isinstance(found, Diagnostic) else Diagnostic(what, "a process forked for it"))
