"""Processes that try recipes on a graph of the loaded program."""

from __future__ import annotations

from typing import Any

from buddy.compiler.protocol.worker_messages import BeginTuning, Done, Reply
from buddy.compiler.support.processes.forks import fork_to


def begin_tuning(captured: Any, request: BeginTuning) -> Reply:
    """Forks a process that tries the recipes it receives, until its socket is closed."""
    from buddy.compiler.tools.tune.measure import serve_attempts
    from buddy.compiler.tools.tune.messages import TuningRequest

    fork_to(request.address, TuningRequest, lambda channel: serve_attempts(channel, captured))
    return Done()
