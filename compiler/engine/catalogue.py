"""The catalogue of passes (those of the compiler worker and all that the bindings have), and presets of plug-ins."""

from __future__ import annotations

import asyncio
from importlib import metadata

import msgspec

from buddy.compiler.passes import discovery
from buddy.compiler.passes.discovery import RegisteredPasses
from buddy.compiler.protocol.plain_values import PassInfo, Preset
from buddy.compiler.protocol.recipe import PLUGIN_GROUP, PluginFile
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process

# The time limit for the search through the bindings' libraries, which takes some seconds, once per installation.
_SEARCH_SECONDS = 180.0
# That of loading plug-ins for their presets.
_PLUGIN_SECONDS = 60.0


class Discovery:
    """Finds the passes that the bindings have registered, once per engine: on disk, or by a separate process."""

    def __init__(self) -> None:
        self._task: asyncio.Task[RegisteredPasses] | None = None

    async def registered_passes(self) -> RegisteredPasses:
        if self._task is None:
            self._task = asyncio.create_task(_load_or_discover())
        return await asyncio.shield(self._task)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _load_or_discover() -> RegisteredPasses:
    if (cached := discovery.cached_passes()) is not None:
        return cached
    try:
        return await call_in_process(
            "buddy.compiler.passes.discovery:registered", None, RegisteredPasses, _SEARCH_SECONDS
        )
    except TookTooLong as error:
        return RegisteredPasses(problem=f"the bindings' libraries could not be searched: {error}")
    except CallFailed:
        return RegisteredPasses(problem="the process that searches the bindings' libraries exited without an answer")


async def presets_of_plugins(plugins: tuple[PluginFile, ...]) -> tuple[tuple[Preset, ...], tuple[str, ...]]:
    """Returns the presets of installed plug-ins and of `plugins`, which a separate process loads, and its errors."""
    if not plugins and not metadata.entry_points(group=PLUGIN_GROUP):
        return (), ()
    function = "buddy.compiler.graph.plugins:plugin_presets"
    try:
        return await call_in_process(function, plugins, tuple[Preset, ...], _PLUGIN_SECONDS), ()
    except TookTooLong as error:
        return (), (f"the presets of plug-ins are missing: {error}",)
    except CallFailed as error:
        return (), (f"the presets of plug-ins are missing: the process that loads them ended with {error.how}",)


def merge_passes(
    described: tuple[PassInfo, ...], registered: tuple[PassInfo, ...], tool: str = ""
) -> tuple[PassInfo, ...]:
    """Returns all passes sorted by name, without duplicates.

    `described` are those of the compiler worker, including the ones of the `mlir-opt` called `tool`, and `registered`
    those that the bindings have registered. A pass that both the bindings and the tool have is run by the bindings, and
    has the tool's summary.
    """
    passes = {info.name: info for info in registered}
    for info in described:
        same = passes.get(info.name) if tool and info.origin == tool else None
        passes[info.name] = msgspec.structs.replace(same, summary=info.summary) if same is not None else info
    return tuple(sorted(passes.values(), key=lambda info: info.name))
