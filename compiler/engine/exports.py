"""Exports a compiled program as files, in a process forked from the host, which has its weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from buddy.compiler.protocol import Diagnostic, Export, Exported, Stage
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import ExportProgram, StopRunner
from buddy.compiler.support.processes.jobs import Job, JobFailed

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession


class ExportHandler:
    """Answers `Export`."""

    def __init__(self, session: EngineSession, store: TextStore, send: Callable[[Any], None]) -> None:
        self._session, self._store, self._send = session, store, send

    async def export(self, frame: Export, job: Job) -> None:
        recipe = frame.recipe
        if not recipe.runs_passes:
            todo = "choose the native backend, or use that backend's own tools"
            raise JobFailed(Diagnostic(f"what {recipe.backend} compiles is not exported", "the recipe", todo))
        compiled = await self._session.result_of(recipe, job, "export")
        llvm_ir = self._text(compiled.stages, "llvm")
        mlir = self._named(frame.stage) if frame.stage else self._text(compiled.stages, "mlir")
        request = ExportProgram(
            recipe.graph,
            recipe,
            compiled.artifact,
            compiled.assignments,
            llvm_ir,
            mlir,
            frame.kinds,
            frame.folder,
            frame.directory,
            frame.name,
            frame.force,
            frame.command,
        )
        made = await self._session.ask_of_program(recipe, request, job, StopRunner())
        self._send(Exported(job.request, made.folder, made.files))

    def _text(self, stages: Sequence[Stage], language: str) -> str:
        """The text of the first stage in `language`."""
        stage = next((stage for stage in stages if stage.language == language), None)
        if stage is None:
            what = f"this program has no stage of {language}"
            raise JobFailed(Diagnostic(what, "the recipe", "choose a recipe whose code is for a CPU"))
        return self._named(stage.text)

    def _named(self, name: str) -> str:
        text = self._store.get(name)
        if text is None:
            raise JobFailed(
                Diagnostic("the stage is no longer stored", "the engine's store", "compile the recipe again")
            )
        return text.content
