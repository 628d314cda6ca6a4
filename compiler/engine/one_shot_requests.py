"""Answers requests by one-shot processes: about IR, and about what TorchDynamo does in a script.

For IR, the processes validate an edited text, print the generic form, find the documentation of ops, and preview
passes. For TorchDynamo, they run a script or read a trace.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from buddy.compiler.engine.texts import stored_text
from buddy.compiler.protocol import (
    CheckIr,
    DescribeOp,
    Diagnostic,
    DynamoExplained,
    DynamoProgress,
    DynamoReport,
    ExplainDynamo,
    IrChecked,
    OpSummary,
    Progress,
    Reprint,
    Reprinted,
    Tried,
    TriedAll,
    TryPasses,
)
from buddy.compiler.protocol.one_shot_messages import (
    GenericForm,
    GenericFormRequest,
    IrProblem,
    PassTrials,
    ReadTrace,
    RecordScript,
    ScriptEnded,
    TraceProgress,
    TraceRead,
    TraceRecord,
    TraceUnreadable,
    TrialOutcome,
    TrialStarted,
)
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore, text_name
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.support.processes.worker_process import OneShotProcess
from buddy.compiler.tools.explain.report import ReportBuilder

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


# The time limit for a one-shot process, in seconds.
_CALL_SECONDS = 60.0
# Functions that one-shot processes run, by name: importing them here would load MLIR into the engine.
_CHECK = "buddy.compiler.driver.pass_trials:check_ir"
_GENERIC_FORM = "buddy.compiler.mlir.printing:generic_form"
_DOCUMENTATION = "buddy.compiler.mlir.bindings:op_documentation"
_TRIALS = "buddy.compiler.driver.pass_trials:serve"


class IrCheckHandler:
    """Answers `CheckIr`, by a one-shot process that loads MLIR."""

    def __init__(self, send: Callable[[Frame], None]) -> None:
        self._send = send

    async def check_ir(self, frame: CheckIr, job: Job) -> None:
        try:
            problem = await call_in_process(_CHECK, frame.content, IrProblem, _CALL_SECONDS)
        except TookTooLong as error:
            raise JobFailed(Diagnostic(str(error), "the check of the edited IR")) from error
        except CallFailed:
            problem = IrProblem(message="MLIR crashed while it read this text; the log has more")
        self._send(IrChecked(job.request, problem.line, problem.column, problem.message))


# Maximum number of cached generic forms; printing one takes about a second.
MAX_FORMS = 40


class ReprintHandler:
    """Answers `Reprint`, with generic forms that it stores like other texts, and `DescribeOp`."""

    def __init__(self, store: TextStore, send: Callable[[Frame], None]) -> None:
        self._store, self._send = store, send
        # The name of the generic form of each text, by the text's name; the least recently used form first.
        self._forms: dict[str, str] = {}
        # The documentation of ops, by the op's name.
        self._documentation: dict[str, str] = {}

    async def reprint(self, frame: Reprint, job: Job) -> None:
        name = self._forms.get(frame.text, "")
        form = self._store.get(name) if name else None
        if form is None:
            name, form = await self._print_form(frame.text)
        self._record_form(frame.text, name)
        self._send(Reprinted(job.request, frame.text, name, form.line_count))

    async def _print_form(self, name: str) -> tuple[str, IndexedText]:
        """Returns the generic form of the text `name`, and its name in the store. Raises `JobFailed`."""
        text = stored_text(self._store, name)
        answer = await _call_process(
            _GENERIC_FORM, GenericFormRequest(text.content, text.line_sets.tobytes()), GenericForm
        )
        if answer.problem:
            raise JobFailed(Diagnostic(f"this stage has no generic form: {answer.problem}", "the IR of the stage"))
        form = IndexedText(answer.content, array("I", answer.line_sets), text.sets, text.derived)
        form_name = text_name(form.content, answer.line_sets, form.sets, form.derived)
        self._store.put(form_name, form)
        return form_name, form

    def _record_form(self, text: str, form: str) -> None:
        """Records that `form` is the generic form of `text`; evicts the least recently used forms above `MAX_FORMS`."""
        self._forms.pop(text, None)
        stored = {old_text: old_form for old_text, old_form in self._forms.items() if old_form in self._store}
        self._forms = stored | {text: form}
        for old_text in list(self._forms)[:-MAX_FORMS]:
            old_form = self._forms.pop(old_text)
            if old_form not in self._forms.values():
                self._store.drop(old_form)

    async def describe_op(self, frame: DescribeOp, job: Job) -> None:
        if frame.name not in self._documentation:
            self._documentation[frame.name] = await _call_process(_DOCUMENTATION, frame.name, str)
        self._send(OpSummary(job.request, frame.name, self._documentation[frame.name]))


_T = TypeVar("_T")


async def _call_process(function: str, request: object, answer: type[_T]) -> _T:
    """Returns the answer of `function`, called in a separate process. Raises `JobFailed`."""
    module = function.partition(":")[0]
    try:
        return await call_in_process(function, request, answer, _CALL_SECONDS)
    except TookTooLong as error:
        raise JobFailed(Diagnostic(str(error), module)) from error
    except CallFailed as error:
        raise JobFailed(Diagnostic("the MLIR process exited without an answer", module)) from error


# The time limit in seconds for a process to start its first trial, after it has imported MLIR and parsed the module.
_IMPORT_SECONDS = 60.0


class _TimedOut:
    """A message that a wait for a candidate has exceeded its time limit."""


class PassTrialHandler:
    """Answers `TryPasses`."""

    def __init__(self, store: TextStore, send: Callable[[Frame], None]) -> None:
        self._store, self._send = store, send

    async def try_passes(self, frame: TryPasses, job: Job) -> None:
        """Reports the outcome of each candidate; stops at the time limit, or when the request is cancelled."""
        text = stored_text(self._store, frame.text)
        deadline = time.monotonic() + frame.timeout
        tried_count = 0
        while tried_count < len(frame.candidates) and time.monotonic() < deadline:
            request = PassTrials(text.content, frame.candidates[tried_count:], frame.threads)
            tried_count += await self._try_in_one_process(request, frame, job, tried_count, deadline)
        self._send(TriedAll(job.request, tried_count, len(frame.candidates)))

    async def _try_in_one_process(
        self, request: PassTrials, frame: TryPasses, job: Job, first: int, deadline: float
    ) -> int:
        """Tries candidates in one process, until one crashes or takes too long.

        Returns how many candidates were tried, including the one that failed. `first` is the number of the first one in
        `frame`, and `deadline` the end of the request on the monotonic clock.
        """
        process = OneShotProcess(_TRIALS, request, TrialStarted | TrialOutcome)
        try:
            return await self._listen(process, len(request.candidates), frame, job, first, deadline)
        finally:
            await process.close()

    async def _listen(
        self, process: OneShotProcess, count: int, frame: TryPasses, job: Job, first: int, deadline: float
    ) -> int:
        """Reports the outcomes of `count` candidates; returns like `_try_in_one_process`."""
        call_later, messages = asyncio.get_running_loop().call_later, process.messages
        started, reported = False, 0
        while reported < count:
            limit, time_left = frame.candidate_seconds if started else _IMPORT_SECONDS, deadline - time.monotonic()
            # Times are messages too: `wait_for` would lose a cancellation that arrives with a message.
            timed_out = _TimedOut()
            timer = call_later(max(0.0, min(limit, time_left)), messages.put_nowait, timed_out)
            try:
                message = await messages.get()
            finally:
                timer.cancel()
            if message is timed_out:
                if time_left <= limit:  # the limit of the whole request, not that of the candidate
                    return reported
                self._report_failure(job, first + reported, f"not done in {limit:g} s")
                return reported + 1
            if isinstance(message, _TimedOut):
                continue  # the message of an earlier wait arrived in the same moment
            if isinstance(message, str):  # how the process exited
                self._report_failure(job, first + reported, f"crashed: {message}")
                return reported + 1
            if isinstance(message, TrialStarted):
                started = True
                continue
            reported = message.number + 1
            number = first + message.number
            self._send(
                Tried(job.request, number, message.changed, message.deltas, message.milliseconds, message.problem)
            )
        return reported

    def _report_failure(self, job: Job, number: int, problem: str) -> None:
        self._send(Tried(job.request, number, problem=problem))


# ---- what TorchDynamo did --------------------------------------------------------------------------------------------


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
