"""The server of `buddy-tui mcp`: its tools, resources, progress and errors. Imports the package `mcp`, an extra."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mcp_types as types
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.context import Context
from mcp.server.mcpserver.exceptions import ResourceError, ToolError, UnexpectedResourceError, UnexpectedToolError
from mcp.server.mcpserver.resources import ResourceSecurity

from buddy.app.cli.agent import AgentProgram, Folder
from buddy.app.cli.arguments import version
from buddy.app.cli.mcp_tools import Json, Tools
from buddy.app.session.client import EngineError
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import to_toml

if TYPE_CHECKING:
    from pydantic import AnyUrl


_INSTRUCTIONS = """\
Tools to study how a PyTorch program or an MLIR module is compiled. Call open_program first. The program's recipe has
passes, and lowerings of nodes; edit it with set_pass, set_nodes, set_recipe and set_pipeline. run compiles the recipe,
runs it and compares each output with eager PyTorch. If the result is a mismatch, call bisect: it names the pass or the
lowering. Then disable it with set_pass, run again, and call write_recipe. Stages are named by number, by name (`lower`,
`canonicalize#2`) or by phase (`llvm`). Lines count from 1.
"""
_STAGE_URI = "buddy://stage/{stage}"


class AgentServer(MCPServer):
    """A server of one program. Calls wait for each other; errors say what to do; progress goes to the client."""

    def __init__(self, program: AgentProgram) -> None:
        super().__init__("buddy-tui", instructions=_INSTRUCTIONS, version=version().split()[-1], log_level="WARNING")
        self._program = program

    async def call_tool(self, name: str, arguments: Json, context: Context | None = None) -> Any:
        async with self._program.busy, self._reporting(context):
            try:
                return await super().call_tool(name, arguments, context)
            except UnexpectedToolError as error:
                if not _is_expected(error):
                    raise
                raise ToolError(_error_text(error)) from error

    async def read_resource(self, uri: AnyUrl | str, context: Context | None = None) -> Any:
        async with self._program.busy:
            try:
                return await super().read_resource(uri, context)
            except UnexpectedResourceError as error:
                if not _is_expected(error):
                    raise
                raise ResourceError(_error_text(error)) from error

    async def list_resources(self) -> list[types.Resource]:
        """The fixed resources, and the stages of the current recipe, if it has been compiled."""
        stages = [
            types.Resource(
                uri=_STAGE_URI.format(stage=stage.index), name=f"{stage.index}-{stage.name}", mime_type="text/plain",
                description=f"{stage.phase}, {stage.language}, {stage.lines} lines",
            )
            for stage in self._program.compiled_stages()
        ]  # fmt: skip
        return [*await super().list_resources(), *stages]

    @contextlib.asynccontextmanager
    async def _reporting(self, context: Context | None) -> AsyncIterator[None]:
        """While active, sends the progress of the program to the client, which waits for the answer to a call."""
        texts: asyncio.Queue[str] = asyncio.Queue()

        async def send() -> None:
            number = 0
            while context is not None:
                text, number = await texts.get(), number + 1
                await context.report_progress(number, message=text)

        self._program.report = texts.put_nowait
        sending = asyncio.create_task(send())
        try:
            yield
        finally:
            self._program.report = lambda _text: None
            sending.cancel()


def _is_expected(error: Exception) -> bool:
    """Whether an error of a tool has a cause that the agent can do something about. Others are errors in our code."""
    return isinstance(error.__cause__, (BuddyError, OSError, ValueError))


def _error_text(error: Exception) -> str:
    """The text of an error for the agent: what happened, where, what to do, and the end of the details."""
    cause = error.__cause__
    if isinstance(cause, EngineError):
        return f"the engine has exited: {cause.reason} · call open_program again"
    if not isinstance(cause, BuddyError):
        return f"{type(cause).__name__}: {cause}"
    detail = "\n".join(cause.diagnostic.detail.strip().splitlines()[-10:])
    return f"{cause.diagnostic}\n{detail}".strip()


def make_server(program: AgentProgram) -> AgentServer:
    """A server with all tools and resources."""
    server, tools = AgentServer(program), Tools(program)
    for tool, hints in _tools_with_hints(tools):
        server.add_tool(tool, annotations=hints)

    @server.resource("buddy://recipe", mime_type="application/toml", description="the current recipe")
    async def recipe() -> str:
        return to_toml(program.recipe)

    @server.resource("buddy://output", description="the last lines that the program has printed")
    async def output() -> str:
        return "\n".join(program.output)

    @server.resource(
        _STAGE_URI,
        description="a stage in full, by number, name or phase",
        security=ResourceSecurity(exempt_params={"stage"}),
    )
    async def stage(stage: str) -> str:
        return await program.engine.client.fetch_text((await program.stage(stage)).text)

    return server


def _tools_with_hints(tools: Tools) -> Iterable[tuple[Any, types.ToolAnnotations]]:
    """Yields each tool with hints for the client: whether it changes nothing, or may overwrite files."""
    reading = (
        tools.list_nodes, tools.list_stages, tools.read_stage, tools.search, tools.diff, tools.trace,
        tools.list_passes, tools.find_passes, tools.run, tools.profile, tools.numerics,
    )  # fmt: skip
    editing = (
        tools.choose_graph, tools.set_pass, tools.set_nodes, tools.set_recipe, tools.set_pipeline, tools.undo,
        tools.bisect,
    )  # fmt: skip
    writing = (tools.open_program, tools.write_recipe, tools.write_report)
    yield from ((tool, types.ToolAnnotations(read_only_hint=True, open_world_hint=False)) for tool in reading)
    yield from ((tool, types.ToolAnnotations(destructive_hint=False, open_world_hint=False)) for tool in editing)
    yield from ((tool, types.ToolAnnotations(destructive_hint=True, open_world_hint=False)) for tool in writing)


async def serve(folder: Path, timeout: float) -> None:
    """Serves on stdin and stdout until the client closes them."""
    program = AgentProgram(Folder(folder), timeout)
    try:
        await make_server(program).run_stdio_async()
    finally:
        await program.close()
