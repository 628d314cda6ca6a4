"""Follows a compilation in a worker: collects its stages, texts and result from the worker's notes and reply."""

from __future__ import annotations

from array import array
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any

import msgspec

from buddy.compiler.engine.programs import CompileResult, GraphRecord
from buddy.compiler.engine.worker import WorkerDied, WorkerRequestError, describe_death
from buddy.compiler.protocol import Assigned, Compiled, Diagnostic, Progress, Stage, StageDone
from buddy.compiler.protocol.recipe import CODE_STEP, LOWERING_STEP, Recipe
from buddy.compiler.protocol.text.lines import IndexedText, MachineCode
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import (
    Assignments,
    CompileDone,
    Message,
    StageData,
    StageNote,
    StepNote,
    TextData,
)
from buddy.compiler.support.processes.jobs import JobFailed

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


_CRASH_HINT = "the stages before the crash are available; switch the pass off, or compile again"


def store_text(store: TextStore, text: TextData | None) -> None:
    """Adds a text from a worker to the store."""
    if text is not None:
        machine = MachineCode(text.machine, text.machine_sizes)
        line_sets = array("I", text.line_sets)
        store.put(text.name, IndexedText(text.content, line_sets, text.sets, text.derived, machine))


# Sends a message to a worker and returns its reply; the notes before it go to the second argument.
Call = Callable[[Message, Callable[[Message], None]], Awaitable[Any]]


# The purposes of compilations under which texts of a graph are pinned, and "failed" for stages before a failure.
PIN_KINDS = ("main", "comparison", "native", "failed", "profile", "export")


class CompilationRequest:
    """One compilation of `graph` for request number `request`.

    `kind` is the purpose of the compilation: "main" for the client's recipe, "comparison" for a comparison with it,
    "native" for this compiler's code in a run of another backend, "profile" or "export". The texts stay stored until
    the next complete compilation of the graph with the same `kind`.
    """

    def __init__(
        self, send: Callable[[Frame], None], store: TextStore, graph: GraphRecord, recipe: Recipe, request: int,
        kind: str = "main",
    ) -> None:  # fmt: skip
        self._send, self._store, self._kind = send, store, kind
        self._graph, self._recipe, self._request = graph, recipe, request
        # The step that runs: its index in the recipe, `LOWERING_STEP` or `CODE_STEP`; `None` before the first one.
        self._step: int | None = None
        # The finished stages, by their index.
        self._stages: dict[int, Stage] = {}

    async def result(
        self,
        make_request: Callable[[tuple[str, ...]], Message],
        call: Call,
    ) -> CompileResult:
        """Compiles, and returns the result.

        `make_request` makes the request to the worker from the names of the texts that the engine already has, and
        `call` sends it. Raises `JobFailed` with the stages at the failure.
        """
        return await self._follow(make_request, call, self._finish)

    async def _follow(
        self,
        make_request: Callable[[tuple[str, ...]], Message],
        call: Call,
        finish: Callable[[CompileDone], CompileResult],
    ) -> CompileResult:
        """Calls the worker, handles its notes, and returns the result of `finish` for its reply. Raises `JobFailed`."""
        known_texts = self._store.names()
        self._store.pin(("request", self._request), known_texts)
        try:
            return finish(await call(make_request(known_texts), self._handle_note))
        except WorkerRequestError as error:
            stages = self._failed_stages(error.reply.stages)
            self._pin("failed", [*self._stages.values(), *stages])
            raise JobFailed(error.diagnostic, stages) from error
        except WorkerDied as died:
            self._pin("failed", self._stages.values())
            raise JobFailed(self._describe_crash(died)) from died
        finally:
            self._store.unpin(("request", self._request))

    def _handle_note(self, note: Message) -> None:
        if isinstance(note, Assignments):
            self._send(Assigned(self._request, self._recipe.graph, note.assignments))
            self._add_finished_stage(self._graph.fx)
        elif isinstance(note, StepNote):
            self._start_step(note.step)
        elif isinstance(note, StageNote):
            stage = self._add_stage(note.data)
            self._add_finished_stage(stage)

    def _add_finished_stage(self, stage: Stage) -> None:
        self._stages[stage.index] = stage
        self._send(StageDone(self._request, self._recipe.graph, stage))

    def _add_stage(self, data: StageData) -> Stage:
        """Stores the text of a stage, and returns the stage with its index increased by one: stage 0 is `fx`."""
        store_text(self._store, data.text)
        return msgspec.structs.replace(data.stage, index=data.stage.index + 1)

    def _failed_stages(self, stages: tuple[StageData, ...]) -> tuple[Stage, ...]:
        """Stores the texts of the stages at the failure, and returns these stages, numbered after the finished ones."""
        numbered_stages = enumerate(stages, start=len(self._stages))
        return tuple(msgspec.structs.replace(self._add_stage(data), index=index) for index, data in numbered_stages)

    def _finish(self, done: CompileDone) -> CompileResult:
        stages = (self._graph.fx, *(self._add_stage(data) for data in done.stages))
        has_stages = bool(done.stages)  # a compilation without stages has only `fx`
        if has_stages:
            self._pin(self._kind, stages)
        self._send(Compiled(self._request, self._recipe.graph, stages, done.seconds, done.reused, done.remarks))
        return CompileResult(
            stages, done.artifact, done.assignments, done.remarks, done.seconds, done.reused, has_stages
        )

    def _pin(self, kind: str, stages: Iterable[Stage]) -> None:
        """Pins the texts of `stages`, and unpins those of the graph's previous compilation of the same kind."""
        self._store.pin((kind, self._graph.key), [stage.text for stage in stages])

    def _start_step(self, step: int) -> None:
        """Records the step that starts, and reports the progress."""
        self._step = step
        order = _execution_order(self._recipe)
        done = order.index(step) / len(order)
        self._send(Progress(self._request, self._step_text(step), done, "compile"))

    def _step_text(self, step: int) -> str:
        """Returns the text of the progress, such as "pass 2/7 canonicalize"."""
        if step == LOWERING_STEP:
            return "lowering"
        if step == CODE_STEP:
            return "generating machine code"
        passes = [index for index in _execution_order(self._recipe) if index >= 0]
        return f"pass {1 + passes.index(step)}/{len(passes)} {self._recipe.steps[step].name}"

    def _describe_crash(self, died: WorkerDied) -> Diagnostic:
        """Returns the diagnostic of a crash of the worker, with the step at which it occurred."""
        step = self._step
        if step is None:
            where = "before the first pass"
        elif step >= 0:
            where = f"pass {self._recipe.steps[step].name} (step {step + 1})"
        else:
            where = "lowering" if step == LOWERING_STEP else "translating to LLVM IR and generating machine code"
        diagnostic = describe_death(died, "the compiler crashed", where, _CRASH_HINT)
        return msgspec.structs.replace(diagnostic, step=-1 if step is None else max(step, -1))


def _execution_order(recipe: Recipe) -> list[int]:
    """Returns the indices of the enabled steps, with `LOWERING_STEP` and `CODE_STEP`, in execution order.

    Graph passes run before lowering, wherever the recipe lists them.
    """
    enabled = [(index, step) for index, step in enumerate(recipe.steps) if step.enabled]
    graph_passes = [index for index, step in enabled if step.level == "graph"]
    mlir_passes = [index for index, step in enabled if step.level != "graph"]
    return [*graph_passes, LOWERING_STEP, *mlir_passes, CODE_STEP]
