"""Searches for the fastest recipe of an open program, in forked processes or on a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from buddy.compiler.engine.connection import ListeningSocket, Peer
from buddy.compiler.protocol import Diagnostic, Progress, Tune
from buddy.compiler.protocol.tuning import SpaceError, space_of
from buddy.compiler.protocol.worker_messages import LogText, StartTuning
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.tools.tune.messages import TuningMessage, TuningRequest
from buddy.compiler.tools.tune.precisions import PrecisionSearch
from buddy.compiler.tools.tune.tuner import Tuner, TuneWorker

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession
    from buddy.compiler.protocol.connection import Frame

# The maximum number of forked processes that try recipes.
_MAX_JOBS = 64


class TuneHandler:
    """Answers `Tune`."""

    def __init__(self, session: EngineSession, send: Callable[[Frame], None]) -> None:
        self._session, self._send = session, send

    async def tune(self, frame: Tune, job: Job) -> None:
        chooses_precisions = frame.max_error is not None and not frame.variations
        try:
            space = None if chooses_precisions else space_of(frame.recipe, frame.variations)
        except SpaceError as error:
            raise JobFailed(Diagnostic(str(error), "what to vary")) from error
        self._send(Progress(job.request, "preparing"))
        async with self._start_workers(frame, job) as workers:
            if space is None:
                self._send(await PrecisionSearch(frame, self._send).run(workers))
                return
            tuner = Tuner(frame, space, self._send)
            remaining_workers = await tuner.run_workers(workers)
            self._send(await tuner.finish(remaining_workers))

    @asynccontextmanager
    async def _start_workers(self, frame: Tune, job: Job) -> AsyncIterator[Sequence[TuneWorker]]:
        """Yields workers that try recipes, on the cluster if `frame` names one; they end with the `with` block."""
        if frame.cluster:
            from buddy.compiler.tools.tune.cluster import cluster_tune_workers

            load = self._session.programs.opened(frame.recipe).key.load_request()
            async with cluster_tune_workers(frame.cluster, load, frame.recipe.graph) as workers:
                yield workers
            return
        async with ListeningSocket(TuningMessage) as listening:
            yield [await self._fork_worker(listening, frame, job) for _ in range(max(1, min(frame.jobs, _MAX_JOBS)))]

    async def _fork_worker(self, listening: ListeningSocket, frame: Tune, job: Job) -> TuneWorker:
        request = StartTuning(frame.recipe.graph, listening.address)
        await self._session.call_host_for(frame.recipe, request, job)
        return _ForkedTuneWorker(await listening.peer())


class _ForkedTuneWorker:
    """A process forked from the host that tries recipes."""

    def __init__(self, peer: Peer) -> None:
        self._peer, self._messages = peer, peer.messages()

    async def ask(self, request: TuningRequest) -> Any:
        await self._peer.send(request)
        async for message in self._messages:
            if not isinstance(message, LogText):
                return message
        raise ConnectionError("the process that tries recipes exited")
