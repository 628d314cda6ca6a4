"""A process that bisects a graph of the loaded program."""

from __future__ import annotations

import os
from typing import Any

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.worker_messages import (
    Activity,
    BeginBisection,
    BisectionDone,
    Done,
    Refused,
    Reply,
    Trouble,
)
from buddy.compiler.support.processes.channel import Channel, traceback_of
from buddy.compiler.support.processes.forks import fork_to


def begin_bisection(captured: Any, request: BeginBisection) -> Reply:
    """Forks a process that bisects, and exits when done or when its socket is closed."""
    fork_to(request.address, Refused, lambda channel: channel.send(_outcome(channel, captured, request)))
    return Done()


def _outcome(channel: Channel, captured: Any, request: BeginBisection) -> Reply:
    from buddy.compiler.tools.bisect import Stopped, bisect

    try:
        tell = lambda what, done: channel.send(Activity(what, done))  # noqa: E731
        return BisectionDone(bisect(channel, captured, request.recipe, request.criterion, tell))
    except Stopped:
        os._exit(0)
    except Exception as error:
        channel.send(Trouble(traceback_of(error)))
        found = getattr(error, "diagnostic", None)
        what = f"internal error in the search: {type(error).__name__}: {error}"
        return Refused(found if isinstance(found, Diagnostic) else Diagnostic(what, "a forked process"))
