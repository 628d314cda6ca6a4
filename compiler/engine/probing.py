"""Answers requests about edited IR and one-shot questions, each in a disposable process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from buddy.compiler.protocol import CheckIr, Diagnostic, IrChecked
from buddy.compiler.protocol.one_shot_messages import IrProblem
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job, JobFailed

TIMEOUT = 60.0
# Importing it here would load MLIR into the engine.
_CHECK = "buddy.compiler.driver.ir_check:check_ir"


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
