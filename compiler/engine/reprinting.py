"""Texts in MLIR's generic form, and documentation of ops, from processes that load MLIR."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

from buddy.compiler.protocol import DescribeOp, Diagnostic, OpSummary, Reprint, Reprinted
from buddy.compiler.protocol.one_shot_messages import GenericForm, GenericFormRequest
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore, text_name
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job, JobFailed

TIMEOUT = 60.0
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
            name, form = await self._made(frame.text)
        self._keep(frame.text, name)
        self._send(Reprinted(job.request, frame.text, name, form.total))

    async def _made(self, name: str) -> tuple[str, IndexedText]:
        text = self._store.get(name)
        if text is None:
            raise JobFailed(Diagnostic(f"the text {name!r} is no longer kept", todo="compile that recipe again"))
        answer = await _asked(_GENERIC_FORM, GenericFormRequest(text.content, text.line_sets.tobytes()), GenericForm)
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
            self._documentation[frame.name] = await _asked(_DOCUMENTATION, frame.name, str)
        self._send(OpSummary(job.request, frame.name, self._documentation[frame.name]))


async def _asked(function: str, question: Any, answer: type[Any]) -> Any:
    module = function.partition(":")[0]
    try:
        return await call_in_process(function, question, answer, TIMEOUT)
    except TookTooLong as error:
        raise JobFailed(Diagnostic(str(error), module)) from error
    except CallFailed as error:
        raise JobFailed(Diagnostic("the MLIR process exited without an answer", module)) from error
