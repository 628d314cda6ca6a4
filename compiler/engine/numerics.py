"""Compares every node with eager, in a process forked from the host that compiles, runs and compares."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from buddy.compiler.protocol import CompareNodes, NodesCompared
from buddy.compiler.protocol.worker_messages import StopRunner, WatchNodes
from buddy.compiler.support.processes.jobs import Job

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession


class NumericsHandler:
    """Answers `CompareNodes`."""

    def __init__(self, session: EngineSession, send: Callable[[Any], None]) -> None:
        self._session, self._send = session, send

    async def compare(self, frame: CompareNodes, job: Job) -> None:
        request = WatchNodes(
            frame.recipe.graph, frame.recipe, frame.reference, frame.own, frame.every, frame.timeout, frame.inputs
        )
        watched = await self._session.ask_of_program(frame.recipe, request, job, StopRunner())
        self._send(NodesCompared(job.request, watched.report))
