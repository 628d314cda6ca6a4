"""Processes that try recipes on a graph of the program that is loaded."""

from __future__ import annotations

from typing import Any

from buddy.compiler.engine.detached import fork_to
from buddy.compiler.engine.messages import BeginTuning, Done, Reply


def begin_tuning(captured: Any, request: BeginTuning) -> Reply:
    """Fork a process that tries what it is sent, until the other end of its socket goes."""
    from buddy.compiler.tuning.attempts import serve
    from buddy.compiler.tuning.messages import TuningRequest

    fork_to(request.address, TuningRequest, lambda channel: serve(channel, captured))
    return Done()
