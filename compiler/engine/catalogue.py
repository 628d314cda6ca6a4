"""The full catalogue of passes: those that the compiler describes, and all others that the bindings have registered."""

from __future__ import annotations

import asyncio

import msgspec

from buddy.compiler.passes import discovery
from buddy.compiler.passes.discovery import RegisteredPasses
from buddy.compiler.protocol.plain_values import PassInfo
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process

# The search through the libraries takes seconds, once per installation.
_SEARCH_SECONDS = 180.0


class Discovery:
    """The passes that the bindings have registered: read from disk, or found by a single process per engine."""

    def __init__(self) -> None:
        self._task: asyncio.Task[RegisteredPasses] | None = None

    async def found(self) -> RegisteredPasses:
        if self._task is None:
            self._task = asyncio.create_task(_ask())
        return await asyncio.shield(self._task)

    def close(self) -> None:
        if self._task is not None:
            self._task.cancel()


async def _ask() -> RegisteredPasses:
    if (found := discovery.cached_passes()) is not None:
        return found
    try:
        return await call_in_process(
            "buddy.compiler.passes.discovery:registered", None, RegisteredPasses, _SEARCH_SECONDS
        )
    except TookTooLong as error:
        return RegisteredPasses(problem=f"the bindings' libraries could not be searched: {error}")
    except CallFailed:
        return RegisteredPasses(problem="the process that searches the bindings' libraries exited without an answer")


def merge_passes(
    described: tuple[PassInfo, ...], registered: tuple[PassInfo, ...], tool: str = ""
) -> tuple[PassInfo, ...]:
    """Returns all passes sorted by name, without duplicates.

    A pass that both the bindings and the tool have counts as the bindings', with the tool's description.
    """
    found = {info.name: info for info in registered}
    for info in described:
        own = found.get(info.name) if tool and info.origin == tool else None
        found[info.name] = msgspec.structs.replace(own, summary=info.summary) if own is not None else info
    return tuple(sorted(found.values(), key=lambda info: info.name))
