"""Runs a script, or reads a trace, in a separate process, and reports what TorchDynamo did."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING

from buddy.compiler.protocol import Diagnostic, DynamoExplained, DynamoProgress, DynamoReport, ExplainDynamo, Progress
from buddy.compiler.protocol.one_shot_messages import (
    ReadTrace,
    RecordScript,
    ScriptEnded,
    TraceProgress,
    TraceRead,
    TraceRecord,
    TraceUnreadable,
)
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.support.processes.worker_process import OneShotProcess
from buddy.compiler.tools.explain.report import ReportBuilder

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


# Functions that the processes run, by name: importing the first one here would load torch into the engine.
_RECORD = "buddy.compiler.tools.explain.recorder:serve"
_READ = "buddy.compiler.tools.explain.trace_files:serve"
# The pause in seconds between two frames about what has been recorded so far.
_PROGRESS_SECONDS = 1.0
# Messages that timers add to those of a process.
_TIMED_OUT, _REPORT_DUE = object(), object()
_Answer = TraceRecord | ScriptEnded | TraceProgress | TraceRead | TraceUnreadable


class DynamoHandler:
    """Answers `ExplainDynamo`.

    `on_output` is called with the name of a stream and the output of the script. While `congested` returns true, the
    output is not read.
    """

    def __init__(
        self, send: Callable[[Frame], None], on_output: Callable[[str, bytes], None], congested: Callable[[], bool]
    ) -> None:
        self._send, self._on_output, self._congested = send, on_output, congested

    async def explain_dynamo(self, frame: ExplainDynamo, job: Job) -> None:
        if frame.trace:
            process = OneShotProcess(_READ, ReadTrace(frame.trace, frame.directory), _Answer)
            work = self._read(process, frame, job)
        else:
            request = RecordScript(frame.source, frame.arguments, frame.directory)
            process = OneShotProcess(_RECORD, request, _Answer, self._on_output, self._congested)
            work = self._record(process, frame, job)
        try:
            report = await work
        finally:
            await process.close()
        self._send(DynamoExplained(job.request, report))

    async def _read(self, process: OneShotProcess, frame: ExplainDynamo, job: Job) -> DynamoReport:
        self._send(Progress(job.request, f"reading {frame.trace}"))
        while True:
            answer = await process.messages.get()
            if isinstance(answer, TraceProgress):
                self._send(Progress(job.request, f"reading {frame.trace}", answer.done))
            elif isinstance(answer, TraceRead):
                return answer.report
            elif isinstance(answer, TraceUnreadable):
                raise JobFailed(answer.diagnostic)
            else:
                raise JobFailed(Diagnostic(f"the process that reads {frame.trace} ended with {answer}", frame.trace))

    async def _record(self, process: OneShotProcess, frame: ExplainDynamo, job: Job) -> DynamoReport:
        """Returns the report of a run, also for a script that crashes or exceeds the time limit.

        The time limit starts with the first record, when torch has been imported.
        """
        builder = ReportBuilder()
        self._send(Progress(job.request, f"running {frame.source}", part="script"))
        call_later, put = asyncio.get_running_loop().call_later, process.messages.put_nowait
        timeout = next_report = None
        while True:
            # Times are messages too: `wait_for` would lose a cancellation that arrives with a message.
            answer = await process.messages.get()
            if isinstance(answer, TraceRecord):
                builder.take(answer)
                timeout = timeout or call_later(frame.timeout, put, _TIMED_OUT)
                next_report = next_report or call_later(_PROGRESS_SECONDS, put, _REPORT_DUE)
            elif answer is _REPORT_DUE:
                next_report = None
                report = builder.report()
                self._send(DynamoProgress(job.request, report))
                self._send(Progress(job.request, _progress_text(frame.source, report)))
            elif answer is _TIMED_OUT:
                what = f"{frame.source} was stopped after {frame.timeout:g} s"
                todo = "the report ends there; give the script more time, or make it end"
                return builder.report(problem=Diagnostic(what, frame.source, todo))
            elif isinstance(answer, ScriptEnded):
                return builder.report(problem=answer.problem)
            else:
                what = f"the process of {frame.source} ended with {answer}"
                todo = "the report ends there; see what the script printed"
                return builder.report(problem=Diagnostic(what, frame.source, todo, detail=process.tail))


def _progress_text(source: str, report: DynamoReport) -> str:
    recompiled = len(report.recompilations)
    return f"running {source}: {len(report.compiles)} compiled, {recompiled} of them again"
