"""Tries passes on a stage, in processes that may crash or hang and can be cancelled."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import msgspec

from buddy.compiler.protocol import Diagnostic, Tried, TriedAll, TryPasses
from buddy.compiler.protocol.one_shot_messages import PassTrials, TrialOutcome
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.support.processes.parent_death import describe_exit, die_with_parent_from_start
from buddy.compiler.support.processes.worker_process import safe_path

# A module run by name: importing it here would load MLIR into the engine.
_MODULE = "buddy.compiler.driver.pass_trials"
_LINE = 1 << 24
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
        command = [sys.executable, *safe_path(), "-m", _MODULE, str(os.getpid())]
        pipe, null = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
        process = await asyncio.create_subprocess_exec(
            *command, stdin=pipe, stdout=pipe, stderr=null, limit=_LINE, start_new_session=True,
            preexec_fn=die_with_parent_from_start(),
        )  # fmt: skip
        try:
            return await self._listen(process, question, frame, job, first, deadline)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()

    async def _listen(
        self, process: Any, question: PassTrials, frame: TryPasses, job: Job, first: int, deadline: float
    ) -> int:
        with contextlib.suppress(ConnectionError):
            process.stdin.write(msgspec.msgpack.encode(question))
            await process.stdin.drain()
            process.stdin.close()
        under_way, told = -1, 0
        while told < len(question.candidates):
            patience = frame.each if under_way >= 0 else _START
            try:
                line = await asyncio.wait_for(process.stdout.readline(), min(patience, deadline - time.monotonic()))
            except (asyncio.TimeoutError, ValueError):
                if time.monotonic() >= deadline:
                    return told
                self._failed(job, first + told, f"not done in {patience:g} s")
                return told + 1
            if not line:
                await process.wait()
                self._failed(job, first + told, f"crashed: {describe_exit(process.returncode)}")
                return told + 1
            found = msgspec.json.decode(line, type=int | TrialOutcome)
            if isinstance(found, int):
                under_way = found
                continue
            told = found.number + 1
            number = first + found.number
            self._send(Tried(job.request, number, found.changed, found.deltas, found.milliseconds, found.problem))
        return told

    def _failed(self, job: Job, number: int, problem: str) -> None:
        self._send(Tried(job.request, number, problem=problem))
