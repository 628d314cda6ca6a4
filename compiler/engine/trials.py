"""Tries passes on a stage, in processes that may crash or hang and can be cancelled."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

from buddy.compiler.protocol import Diagnostic, Tried, TriedAll, TryPasses
from buddy.compiler.protocol.one_shot_messages import PassTrials, TrialOutcome, TrialStarted
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.wire import FrameDecoder, encode
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.support.processes.worker_process import ProcessEvents, WorkerProcess

# Importing it here would load MLIR into the engine.
_TRIALS = "buddy.compiler.driver.pass_trials:serve"
# Importing MLIR and parsing the module, before the first candidate, may take longer than a candidate.
_START = 60.0


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
            done += await self._round(question, frame, job, done, deadline)
        self._send(TriedAll(job.request, done, len(frame.candidates)))

    async def _round(self, question: PassTrials, frame: TryPasses, job: Job, first: int, deadline: float) -> int:
        """The number of candidates that one process has tried, including one that crashed it or was killed with it."""
        process = _TrialProcess(question)
        try:
            return await self._listen(process, len(question.candidates), frame, job, first, deadline)
        finally:
            await process.close()

    async def _listen(
        self, process: _TrialProcess, count: int, frame: TryPasses, job: Job, first: int, deadline: float
    ) -> int:
        begun, told = False, 0
        while told < count:
            patience = frame.each if begun else _START
            try:
                found = await asyncio.wait_for(process.messages.get(), min(patience, deadline - time.monotonic()))
            except asyncio.TimeoutError:
                if time.monotonic() >= deadline:
                    return told
                self._failed(job, first + told, f"not done in {patience:g} s")
                return told + 1
            if isinstance(found, str):
                self._failed(job, first + told, f"crashed: {found}")
                return told + 1
            if isinstance(found, TrialStarted):
                begun = True
                continue
            told = found.number + 1
            number = first + found.number
            self._send(Tried(job.request, number, found.changed, found.deltas, found.milliseconds, found.problem))
        return told

    def _failed(self, job: Job, number: int, problem: str) -> None:
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
            stopped=lambda _stopped: None,
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
