"""Runs each request of the client as an asyncio task. The client cancels it by the request's number.

Requests with the same `slot` (compilations of one graph) replace each other until they have started.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Hashable
from dataclasses import dataclass, field
from typing import Any

from buddy.compiler.protocol import Diagnostic, Failed, Stage
from buddy.compiler.protocol.errors import REPORT_BUG, BuddyError

log = logging.getLogger("buddy.engine")
Send = Callable[[Any], None]
# The longest that a cancelled request waits for its answer.
CANCEL_SECONDS = 0.1


class JobFailed(BuddyError):
    """A request failed; the diagnostic is sent to the client, with the `stages` compiled before the failure."""

    def __init__(self, diagnostic: Diagnostic, stages: tuple[Stage, ...] = ()) -> None:
        super().__init__(diagnostic)
        self.stages = stages


@dataclass
class Job:
    """A request with its task. The handler sets `started` when its work can no longer be replaced.

    `answered` is set when `Failed` has been sent; the task may then still be ending.
    """

    request: int
    slot: Hashable = None
    started: bool = False
    cancel_reason: str = "cancelled"
    answered: bool = False
    task: asyncio.Task[None] | None = field(default=None, repr=False)

    def cancel(self, reason: str = "cancelled") -> None:
        self.cancel_reason = reason
        if self.task is not None:
            self.task.cancel()


class RequestJobs:
    """All requests whose tasks have not ended."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._jobs: dict[int, Job] = {}

    def start(self, request: int, work: Callable[[Job], Coroutine[Any, Any, None]], slot: Hashable = None) -> None:
        """Starts `work`, which answers `request`."""
        if slot is not None:
            self._replace(slot)
        job = Job(request, slot)
        self._jobs[request] = job
        job.task = asyncio.get_running_loop().create_task(work(job))
        job.task.add_done_callback(lambda task: self._report_end(job, task))

    def cancel(self, target: int) -> None:
        """Cancels request `target`, or all requests if `target` is 0.

        A request is answered when its task has ended, or after `CANCEL_SECONDS`. Its task may then continue to clean
        up: a large process that works for it takes a while to exit. Requests that need this process wait until then.
        """
        for job in list(self._jobs.values()):
            if target in (0, job.request) and job.task is not None and not job.task.done():
                self._cancel(job)

    async def close(self) -> None:
        """Cancels all requests and waits until they have ended."""
        tasks = [job.task for job in self._jobs.values() if job.task is not None]
        self.cancel(0)
        await asyncio.gather(*tasks, return_exceptions=True)

    def _replace(self, slot: Hashable) -> None:
        for job in list(self._jobs.values()):
            if job.slot == slot and not job.started:
                self._cancel(job, "replaced by a newer edit")

    def _cancel(self, job: Job, reason: str = "cancelled") -> None:
        """Cancels a task, and answers its request after `CANCEL_SECONDS` if the task has not ended by then."""
        job.cancel(reason)
        asyncio.get_running_loop().call_later(CANCEL_SECONDS, self._answer_cancelled, job)

    def _report_end(self, job: Job, task: asyncio.Task[None]) -> None:
        """Answers a request with `Failed` if its task ended without an answer."""
        if self._jobs.get(job.request) is job:
            del self._jobs[job.request]
        if task.cancelled():
            self._answer_cancelled(job)
        elif job.answered:
            log.info("request %d: ended after it was cancelled: %s", job.request, task.exception())
        elif (error := task.exception()) is not None:
            self._send(_failure_of(job.request, error))

    def _answer_cancelled(self, job: Job) -> None:
        """Answers a cancelled request, unless it has been answered, or its task has ended in another way."""
        has_ended = job.task is not None and job.task.done() and not job.task.cancelled()
        if not job.answered and not has_ended:
            job.answered = True
            self._send(Failed(job.request, Diagnostic(job.cancel_reason, severity="note"), cancelled=True))


def _failure_of(request: int, error: BaseException) -> Failed:
    if isinstance(error, JobFailed):
        log.info("request %d: %s %s", request, error.diagnostic, error.diagnostic.detail)
        return Failed(request, error.diagnostic, stages=error.stages)
    log.error("request %d", request, exc_info=error)
    what = f"internal error in the engine: {type(error).__name__}: {error}"
    return Failed(request, Diagnostic(what, todo=REPORT_BUG))
