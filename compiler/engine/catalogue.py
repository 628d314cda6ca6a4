"""Answers requests for passes and ops: those of the compiler worker, and passes that the bindings have registered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from importlib import metadata
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import msgspec

from buddy.compiler.engine.programs import resolve_plugins
from buddy.compiler.passes import discovery
from buddy.compiler.passes.discovery import RegisteredNames
from buddy.compiler.protocol import ListOps, ListPasses, Ops, Passes
from buddy.compiler.protocol.plain_values import PassInfo, Preset
from buddy.compiler.protocol.recipe import PLUGIN_GROUP, PluginFile
from buddy.compiler.protocol.worker_messages import DescribeOps, DescribePasses, Message
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession
    from buddy.compiler.protocol.connection import Frame

# The time limit for the search through the bindings' libraries, which takes some seconds, once per installation.
_SEARCH_SECONDS = 180.0
# The time in seconds to list the presets of plug-ins, in addition to the limit for the import of one plug-in.
_PLUGIN_SECONDS = 30.0


class PassDiscovery:
    """Finds the passes that the bindings have registered, once per engine: in a cache, or by a separate process."""

    def __init__(self) -> None:
        self._task: asyncio.Task[RegisteredNames] | None = None

    async def registered_passes(self) -> RegisteredNames:
        """Returns the passes and dialects; `problem` says why if they could not be found."""
        if self._task is None:
            self._task = asyncio.create_task(_load_or_discover())
        return await asyncio.shield(self._task)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _load_or_discover() -> RegisteredNames:
    """Returns the cached passes, else those that a separate process finds; `problem` says why if it fails."""
    if (cached := discovery.cached_passes()) is not None:
        return cached
    try:
        return await call_in_process(
            "buddy.compiler.passes.discovery:find_registered", None, RegisteredNames, _SEARCH_SECONDS
        )
    except TookTooLong as error:
        return RegisteredNames(problem=f"the bindings' libraries could not be searched: {error}")
    except CallFailed:
        return RegisteredNames(problem="the process that searches the bindings' libraries exited without an answer")


async def presets_of_plugins(plugins: tuple[PluginFile, ...]) -> tuple[tuple[Preset, ...], tuple[str, ...]]:
    """Returns the presets of installed plug-ins and of `plugins`, and the errors; a separate process loads them."""
    if not plugins and not metadata.entry_points(group=PLUGIN_GROUP):
        return (), ()
    from buddy.compiler.protocol.plugin_code import import_seconds

    function = "buddy.compiler.graph.plugins:plugin_presets"
    seconds = import_seconds() + _PLUGIN_SECONDS
    try:
        return await call_in_process(function, plugins, tuple[Preset, ...], seconds), ()
    except TookTooLong as error:
        return (), (f"the presets of plug-ins are missing: {error}",)
    except CallFailed as error:
        return (), (f"the presets of plug-ins are missing: the process that loads them ended with {error.how}",)


def merge_passes(
    described: tuple[PassInfo, ...], registered: tuple[PassInfo, ...], tool: str = ""
) -> tuple[PassInfo, ...]:
    """Returns all passes sorted by name, without duplicates.

    `described` are the passes of the compiler worker, including those of the `mlir-opt` called `tool`. `registered` are
    the passes that the bindings have registered. The bindings run a pass that the tool also has; its summary is the
    tool's.
    """
    passes = {pass_info.name: pass_info for pass_info in registered}
    for pass_info in described:
        is_of_tool = bool(tool) and pass_info.origin == tool
        registered_pass = passes.get(pass_info.name) if is_of_tool else None
        if registered_pass is not None:
            passes[pass_info.name] = msgspec.structs.replace(registered_pass, summary=pass_info.summary)
        else:
            passes[pass_info.name] = pass_info
    return tuple(sorted(passes.values(), key=lambda pass_info: pass_info.name))


class CatalogueHandler:
    """Answers `ListPasses` and `ListOps`."""

    def __init__(self, session: EngineSession, send: Callable[[Frame], None]) -> None:
        self._session, self._send = session, send
        # The worker's replies and the errors of plug-ins, by the type of the request and the plug-ins.
        self._described: dict[tuple[type, tuple[PluginFile, ...]], Any] = {}
        self._discovery = PassDiscovery()

    def close(self) -> None:
        self._discovery.close()

    async def list_passes(self, frame: ListPasses, job: Job) -> None:
        described, notes = await self._describe(DescribePasses(), frame, job)
        registered = await self._discovery.registered_passes()
        tool = PurePath(registered.bindings.tool).name if registered.bindings is not None else ""
        if registered.problem:
            notes = (*notes, registered.problem)
        passes = merge_passes(described.passes, registered.passes, tool)
        dialects, bindings, backends = registered.dialects, registered.bindings, described.backends
        self._send(Passes(job.request, passes, notes, dialects, bindings, backends, described.plugins))

    async def list_ops(self, frame: ListOps, job: Job) -> None:
        described, notes = await self._describe(DescribeOps(), frame, job)
        self._send(Ops(job.request, described.ops, notes))

    async def _describe(self, request: Message, frame: ListPasses | ListOps, job: Job) -> tuple[Any, tuple[str, ...]]:
        """Returns the worker's reply with the plug-ins that `frame` names loaded, and the errors of these plug-ins."""
        plugins, _ = resolve_plugins(frame.plugins, frame.directory)
        await self._session.host_start.wait_until_allowed()
        key = type(request), plugins
        if key not in self._described:
            async with self._session.compiler.worker.lock:
                job.started = True
                notes = await self._session.compiler.load_plugins(plugins, job)
                self._described[key] = await self._session.compiler.call(request), notes
        reply_and_notes: tuple[Any, tuple[str, ...]] = self._described[key]
        return reply_and_notes
