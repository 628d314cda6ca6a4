"""Work in a forked child whose failures are replies: it raised, it crashed, it took too long, or it was cancelled."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import msgspec

from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.worker_messages import (
    CodeRemarks,
    CompileDone,
    CompilerNote,
    Executed,
    GraphImported,
    Measured,
    ProgramExported,
    Refused,
    Reply,
    RunnerState,
    Watched,
)
from buddy.compiler.support.processes.channel import Channel
from buddy.compiler.support.processes.forked_task import Task, in_child

_TYPES = (
    CompilerNote | CompileDone | GraphImported | CodeRemarks | Executed | Measured | Watched | ProgramExported | Refused
)


class Words(NamedTuple):
    """The messages for a child whose work raised, and for one that crashed."""

    failed: str
    crashed: Diagnostic


def reply_in_child(
    channel: Channel, work: Callable[[Channel], Reply], words: Words, timeout: float = math.inf
) -> Reply:
    """What `work` replies in a child, which may send notes over `channel`; a `Refused` when it ends in another way.

    `timeout` is in seconds. The other end of `channel` is told when a signal stops the child, and may cancel it.
    """
    was_stopped = False

    def stopped(is_so: bool) -> None:
        nonlocal was_stopped
        was_stopped = True
        channel.send(RunnerState(True, stopped=is_so))

    task = Task(
        work, lambda error: Refused(_diagnostic(error, words.failed)), _TYPES, channel.send, timeout, stopped=stopped
    )
    ended = in_child(channel, task)
    if was_stopped:
        channel.send(RunnerState(False))
    if ended.reply is not None:
        return ended.reply
    if ended.how == "crashed":
        what = f"{words.crashed.what} ({ended.status})"
        return Refused(msgspec.structs.replace(words.crashed, what=what, detail=ended.tail))
    return Refused(_too_slow(timeout) if ended.how == "late" else Diagnostic("it was cancelled", severity="note"))


def _diagnostic(error: Exception, failed: str) -> Diagnostic:
    found = getattr(error, "diagnostic", None)
    if isinstance(found, Diagnostic):
        return found
    return Diagnostic(f"{failed}: {type(error).__name__}: {error}", "a forked process", "see the log")


def _too_slow(timeout: float) -> Diagnostic:
    what = f"the run took longer than {timeout:g} s and was stopped"
    todo = "give it more time (--timeout, in the palette Time of a run) or fewer repeats"
    return Diagnostic(what, "the runner", todo)
