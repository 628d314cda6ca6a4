"""Answers requests about IR by one-shot processes: validates edited IR, prints the generic form, previews passes."""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Callable
from typing import Any

from buddy.compiler.protocol import (
    CheckIr,
    DescribeOp,
    Diagnostic,
    IrChecked,
    OpSummary,
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
    TrialOutcome,
    TrialStarted,
)
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore, text_name
from buddy.compiler.protocol.wire import FrameDecoder, encode
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.support.processes.worker_process import ProcessEvents, WorkerProcess

TIMEOUT = 60.0
# Importing it here would load MLIR into the engine.
_CHECK = "buddy.compiler.driver.pass_trials:check_ir"


class ProbeHandler:
    """Starts one-shot processes that load MLIR."""

    def __init__(self, send: Callable[[Any], None]) -> None:
        self._send = send

    async def check(self, frame: CheckIr, job: Job) -> None:
        try:
            found = await call_in_process(_CHECK, frame.content, IrProblem, TIMEOUT)
        except TookTooLong as error:
            raise JobFailed(Diagnostic(str(error), "the check of the edited IR")) from error
        except CallFailed:
            found = IrProblem(message="MLIR crashed while it read this text; the log has more")
        self._send(IrChecked(job.request, found.line, found.column, found.message))


# Maximum number of cached forms; printing one takes about a second.
MAX_FORMS = 40
# Modules run by name: importing them here would load MLIR into the engine.
_GENERIC_FORM = "buddy.compiler.mlir.generic_form:generic_form"
_DOCUMENTATION = "buddy.compiler.mlir.op_documentation:op_documentation"


class ReprintHandler:
    """Generic forms of the store's texts, kept in the same store."""

    def __init__(self, store: TextStore, send: Callable[[Any], None]) -> None:
        self._store, self._send = store, send
        self._forms: dict[str, str] = {}
        self._documentation: dict[str, str] = {}

    async def reprint(self, frame: Reprint, job: Job) -> None:
        name = self._forms.get(frame.text, "")
        form = self._store.get(name) if name else None
        if form is None:
            name, form = await self._print_form(frame.text)
        self._keep(frame.text, name)
        self._send(Reprinted(job.request, frame.text, name, form.total))

    async def _print_form(self, name: str) -> tuple[str, IndexedText]:
        text = self._store.get(name)
        if text is None:
            raise JobFailed(Diagnostic(f"the text {name!r} is no longer stored", todo="compile that recipe again"))
        answer = await _ask_process(
            _GENERIC_FORM, GenericFormRequest(text.content, text.line_sets.tobytes()), GenericForm
        )
        if answer.problem:
            raise JobFailed(Diagnostic(f"this stage has no generic form: {answer.problem}", "the IR of the stage"))
        form = IndexedText(answer.content, array("I", answer.line_sets), text.sets, text.derived)
        made = text_name(form.content, answer.line_sets, form.sets, form.derived)
        self._store.put(made, form)
        return made, form

    def _keep(self, text: str, form: str) -> None:
        """Records that `form` is the form of `text`, and evicts the least recently used."""
        self._forms.pop(text, None)
        known = {text: form for text, form in self._forms.items() if form in self._store}
        self._forms = known | {text: form}
        for old in list(self._forms)[:-MAX_FORMS]:
            gone = self._forms.pop(old)
            if gone not in self._forms.values():
                self._store.drop(gone)

    async def describe(self, frame: DescribeOp, job: Job) -> None:
        if frame.name not in self._documentation:
            self._documentation[frame.name] = await _ask_process(_DOCUMENTATION, frame.name, str)
        self._send(OpSummary(job.request, frame.name, self._documentation[frame.name]))


async def _ask_process(function: str, question: Any, answer: type[Any]) -> Any:
    module = function.partition(":")[0]
    try:
        return await call_in_process(function, question, answer, TIMEOUT)
    except TookTooLong as error:
        raise JobFailed(Diagnostic(str(error), module)) from error
    except CallFailed as error:
        raise JobFailed(Diagnostic("the MLIR process exited without an answer", module)) from error


# Importing it here would load MLIR into the engine.
_TRIALS = "buddy.compiler.driver.pass_trials:serve"
# Importing MLIR and parsing the module, before the first candidate, may take longer than a candidate.
_IMPORT_SECONDS = 60.0


class PassTrialHandler:
    """Answers `TryPasses`."""

    def __init__(self, store: TextStore, send: Callable[[Any], None]) -> None:
        self._store, self._send = store, send

    async def try_passes(self, frame: TryPasses, job: Job) -> None:
        """Reports each candidate when it has been tried; stops at the time limit, or when the request is cancelled."""
        text = self._store.get(frame.text)
        if text is None:
            raise JobFailed(
                Diagnostic("the stage is no longer stored", "the engine's store", "compile the recipe again")
            )
        deadline = time.monotonic() + frame.timeout
        done = 0
        while done < len(frame.candidates) and time.monotonic() < deadline:
            question = PassTrials(text.content, frame.candidates[done:], frame.threads)
            done += await self._try_in_one_process(question, frame, job, done, deadline)
        self._send(TriedAll(job.request, done, len(frame.candidates)))

    async def _try_in_one_process(
        self, question: PassTrials, frame: TryPasses, job: Job, first: int, deadline: float
    ) -> int:
        """Tries candidates in one process; returns their number, including one that crashed or took too long."""
        process = _TrialProcess(question)
        try:
            return await self._listen(process, len(question.candidates), frame, job, first, deadline)
        finally:
            await process.close()

    async def _listen(
        self, process: _TrialProcess, count: int, frame: TryPasses, job: Job, first: int, deadline: float
    ) -> int:
        started, reported = False, 0
        while reported < count:
            patience = frame.each if started else _IMPORT_SECONDS
            try:
                found = await asyncio.wait_for(process.messages.get(), min(patience, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                if time.monotonic() >= deadline:
                    return reported
                self._report_failure(job, first + reported, f"not done in {patience:g} s")
                return reported + 1
            if isinstance(found, str):
                self._report_failure(job, first + reported, f"crashed: {found}")
                return reported + 1
            if isinstance(found, TrialStarted):
                started = True
                continue
            reported = found.number + 1
            number = first + found.number
            self._send(Tried(job.request, number, found.changed, found.deltas, found.milliseconds, found.problem))
        return reported

    def _report_failure(self, job: Job, number: int, problem: str) -> None:
        self._send(Tried(job.request, number, problem=problem))


class _TrialProcess:
    """A worker that answers one request; `messages` are its answers, and how it ended. Its output is discarded."""

    def __init__(self, question: PassTrials) -> None:
        self.messages: asyncio.Queue[TrialStarted | TrialOutcome | str] = asyncio.Queue()
        self._ended = asyncio.Event()
        self._decoder = FrameDecoder(TrialStarted | TrialOutcome)
        events = ProcessEvents(
            body=lambda body: self.messages.put_nowait(self._decoder.decode(body)),
            printed=lambda _stream, _data: None,
            stopped=lambda _report_stop: None,
            ended=self._end,
            congested=lambda: False,
        )
        self._process = WorkerProcess(_TRIALS, events)
        self._process.send(encode(question))

    def _end(self, how: str) -> None:
        self.messages.put_nowait(how)
        self._ended.set()

    async def close(self) -> None:
        """Kills the process, and waits for its end."""
        if not self._ended.is_set():
            self._process.kill()
            await self._ended.wait()
