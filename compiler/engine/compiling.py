"""One compilation in the compiler worker: from its notes to stages, texts and a result."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Any

import msgspec

from buddy.compiler.engine.jobs import JobFailed
from buddy.compiler.engine.messages import (
    Assignments,
    CompileDone,
    Message,
    StageData,
    StageNote,
    TextData,
)
from buddy.compiler.engine.programs import CompileResult, GraphRecord
from buddy.compiler.engine.worker import RequestRefused, WorkerDied, death
from buddy.compiler.protocol import Assigned, Compiled, Diagnostic, Progress, Stage, StageDone
from buddy.compiler.recipe import PassStep, Recipe
from buddy.compiler.text.lines import IndexedText, MachineCode
from buddy.compiler.text.store import TextStore

_CRASH_TODO = "the stages before it are kept; switch that pass off, or cancel and compile again"


def keep(store: TextStore, text: TextData | None) -> None:
    """Put a text that came from a worker into the store."""
    if text is not None:
        machine = MachineCode(text.machine, text.machine_sizes)
        line_sets = array("I", text.line_sets)
        store.put(text.name, IndexedText(text.content, line_sets, text.sets, text.derived, machine))


class Compilation:
    """Follows one compilation of `graph` for request number `request`; `kind` owns its texts once it is whole."""

    def __init__(
        self, send: Callable[[Any], None], store: TextStore, graph: GraphRecord, recipe: Recipe, request: int,
        kind: str = "good",
    ) -> None:  # fmt: skip
        self._send, self._store, self._kind = send, store, kind
        self._graph, self._recipe, self._request = graph, recipe, request
        self._enabled = [(index, step) for index, step in enumerate(recipe.steps) if step.enabled]
        self._stages: dict[int, Stage] = {}

    async def result(
        self, request: Callable[[tuple[str, ...]], Message], call: Callable[[Message, Callable[[Message], None]], Any]
    ) -> CompileResult:
        """Have `call` compile, by a `request` that says which texts are known.

        Raises `JobFailed` with the stages at the failure.
        """
        return await self._followed(request, call, self._finished)

    async def _followed(
        self,
        request: Callable[[tuple[str, ...]], Message],
        call: Callable[[Message, Callable[[Message], None]], Any],
        finish: Callable[[CompileDone], CompileResult],
    ) -> CompileResult:
        """What `finish` makes of the worker's reply; its notes are taken meanwhile. Raises `JobFailed`."""
        known = self._store.names()
        self._store.pin(("request", self._request), known)
        try:
            return finish(await call(request(known), self._note))
        except RequestRefused as refused:
            stages = self._at_failure(refused.refused.stages)
            self._pin("failed", [*self._stages.values(), *stages])
            raise JobFailed(refused.refused.diagnostic, stages) from refused
        except WorkerDied as died:
            self._pin("failed", self._stages.values())
            raise JobFailed(self._crash(died)) from died
        finally:
            self._store.unpin(("request", self._request))

    def _note(self, note: Message) -> None:
        if isinstance(note, Assignments):
            self._send(Assigned(self._request, self._recipe.graph, note.assignments))
            self._stage_done(self._graph.fx)
        elif isinstance(note, StageNote):
            stage = self._shifted(note.data)
            self._stage_done(stage)
            self._tell_what_is_next(stage.step)

    def _stage_done(self, stage: Stage) -> None:
        self._stages[stage.index] = stage
        self._send(StageDone(self._request, self._recipe.graph, stage))

    def _shifted(self, data: StageData) -> Stage:
        """The stage behind `fx`, which the compiler knows nothing of, with its text in the store."""
        keep(self._store, data.text)
        return msgspec.structs.replace(data.stage, index=data.stage.index + 1)

    def _at_failure(self, found: tuple[StageData, ...]) -> tuple[Stage, ...]:
        """The IR at the failure stands behind the stages that were done."""
        behind = enumerate(found, start=len(self._stages))
        return tuple(msgspec.structs.replace(self._shifted(data), index=index) for index, data in behind)

    def _finished(self, done: CompileDone) -> CompileResult:
        stages = (self._graph.fx, *(self._shifted(data) for data in done.stages))
        self._pin(self._kind, stages)
        self._send(Compiled(self._request, self._recipe.graph, stages, done.seconds, done.reused, done.remarks))
        return CompileResult(stages, done.artifact, done.assignments, done.remarks, done.seconds, done.reused)

    def _pin(self, kind: str, stages: Any) -> None:
        """Keep what the client shows: the texts of the latest good, compared and failed compilation."""
        self._store.pin((kind, self._graph.key), [stage.text for stage in stages])

    def _tell_what_is_next(self, step: int) -> None:
        following = self._next_after(step)
        if following is None:
            self._send(Progress(self._request, "generating machine code", 0.99))
            return
        index, name = following
        number = 1 + [position for position, _ in self._enabled].index(index)
        total = len(self._enabled)
        self._send(Progress(self._request, f"pass {number}/{total} {name.name}", (number - 1) / total))

    def _next_after(self, step: int) -> tuple[int, PassStep] | None:
        """The step that runs after step `step`; -1 stands for the acts before the first and after the last."""
        last = max((stage.step for stage in self._stages.values()), default=-1)
        return next(((index, found) for index, found in self._enabled if index > max(step, last)), None)

    def _crash(self, died: WorkerDied) -> Diagnostic:
        following = self._next_after(-1)
        if following is None:
            where = "translating to LLVM IR and generating machine code"
        else:
            where = f"pass {following[1].name} (step {following[0] + 1})"
        found = death(died, "the compiler crashed", where, _CRASH_TODO)
        return msgspec.structs.replace(found, step=-1 if following is None else following[0])
