"""Calls the compiler worker: makes sure that its process has the plug-ins and the graph that a request needs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from buddy.compiler.engine.programs import GraphRecord
from buddy.compiler.engine.worker import EngineWorker, WorkerListener, call_for_job, wait_for_start
from buddy.compiler.protocol import Diagnostic, Progress
from buddy.compiler.protocol.recipe import PluginFile
from buddy.compiler.protocol.worker_messages import CompilerMessage, LoadPlugins, Message, StoreGraph
from buddy.compiler.support.processes.jobs import Job

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame

_NO_PLUGINS: tuple[PluginFile, ...] = ()
_NOT_STARTED = Diagnostic(
    "the compiler's process does not start",
    "the compiler",
    "check that the MLIR bindings are installed: `pip install torch-mlir`",
)
_EXITED = Diagnostic("the compiler process exited", "the compiler", "try again")


@dataclass
class _ProcessState:
    """The plug-ins and graphs that one compiler process (`generation`) has, and its plug-ins' errors (`notes`).

    `has_loaded` says whether the process has been asked to load plug-ins: installed ones are loaded even if a recipe
    names none.
    """

    generation: int = 0
    graphs: set[str] = field(default_factory=set)
    plugins: tuple[PluginFile, ...] = _NO_PLUGINS
    notes: tuple[str, ...] = ()
    has_loaded: bool = False

    def record_plugins(self, plugins: tuple[PluginFile, ...], notes: tuple[str, ...]) -> None:
        """Records that `plugins` are loaded.

        Graphs that were sent before must be sent again, because they may contain ops that `plugins` register.
        """
        self.plugins, self.notes, self.has_loaded = plugins, notes, True
        self.graphs.clear()

    def record_graph(self, key: str, stored: Collection[str]) -> None:
        """Records that graph `key` was sent, and that the worker now stores `stored`: it may have evicted others."""
        self.graphs = {*self.graphs.intersection(stored), key}


class CompilerClient:
    """The compiler worker, and what its current process has loaded. Callers hold `worker.lock`."""

    def __init__(self, send: Callable[[Frame], None], listener: WorkerListener) -> None:
        self._send = send
        self.worker = EngineWorker("compiler", "buddy.compiler.engine.compiler:serve", CompilerMessage, listener)
        self._process = _ProcessState()

    async def send_graph(self, graph: GraphRecord, plugins: tuple[PluginFile, ...], job: Job) -> None:
        """Makes sure that the process has `plugins` and `graph`. Raises `JobFailed`."""
        await self.load_plugins(plugins, job)
        if graph.key not in self._process.graphs:
            stored = await self.call(StoreGraph(graph.key, graph.data))
            self._process.record_graph(graph.key, stored.keys)

    async def load_plugins(self, plugins: tuple[PluginFile, ...], job: Job) -> tuple[str, ...]:
        """Makes sure that the process has exactly `plugins`; returns their errors. Raises `JobFailed`.

        A process cannot unload a plug-in, so one that has loaded other plug-ins is replaced.
        """
        await self._wait_for_start(job)
        is_current = self._process.generation == self.worker.generation
        if is_current and self._process.plugins not in (_NO_PLUGINS, plugins):
            await self.worker.restart("new compiler for other plug-ins")
            await self._wait_for_start(job)
        if self._process.generation != self.worker.generation:
            self._process = _ProcessState(self.worker.generation)
        if self._process.plugins != plugins or not self._process.has_loaded:
            loaded = await self.call(LoadPlugins(plugins))
            self._process.record_plugins(plugins, tuple(map(str, loaded.problems)))
        return self._process.notes

    async def call(self, request: Message) -> Any:
        """Returns the process's reply. Raises `JobFailed`."""
        return await call_for_job(self.worker, request, _EXITED)

    async def _wait_for_start(self, job: Job) -> None:
        if not self.worker.is_ready:
            self._send(Progress(job.request, "starting the compiler"))
        await wait_for_start(self.worker, _NOT_STARTED)
