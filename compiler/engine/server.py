"""The engine's server: greets the client, and starts a job for each of its requests."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Coroutine
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING, Any, Literal, cast

import msgspec

from buddy.compiler.engine.backends import reject_other_backends
from buddy.compiler.engine.catalogue import CatalogueHandler, presets_of_plugins
from buddy.compiler.engine.connection import ClientConnection
from buddy.compiler.engine.dumps import DumpHandler
from buddy.compiler.engine.file_watching import WatchHandler
from buddy.compiler.engine.host_requests import (
    ExportHandler,
    NumericsHandler,
    ProfileHandler,
    SubgraphHandler,
    TuneHandler,
)
from buddy.compiler.engine.one_shot_requests import DynamoHandler, IrCheckHandler, PassTrialHandler, ReprintHandler
from buddy.compiler.engine.origins import ProvenanceHandler
from buddy.compiler.engine.programs import resolve_plugins
from buddy.compiler.engine.session import EngineSession
from buddy.compiler.engine.texts import TextHandler
from buddy.compiler.engine.worker import WorkerListener
from buddy.compiler.protocol import (
    PROTOCOL_VERSION,
    Bisect,
    Cancel,
    CheckFlags,
    CheckIr,
    ClientFrame,
    Compare,
    CompareNodes,
    Compile,
    DescribeBackend,
    DescribeOp,
    Diagnostic,
    ExplainCode,
    ExplainDynamo,
    Export,
    Extract,
    Failed,
    FetchCharacters,
    FetchLines,
    FetchText,
    FetchValues,
    FindJumps,
    FindMainLine,
    FindNode,
    FindOrigins,
    FindRegion,
    FollowNode,
    Hello,
    ListOps,
    ListPasses,
    ListPresets,
    ListSymbols,
    ListTypes,
    ListValues,
    MapDifferences,
    Open,
    OpenPython,
    Ops,
    Passes,
    Ping,
    Pong,
    Presets,
    Printout,
    Profile,
    Reprint,
    Run,
    Search,
    SearchEach,
    Shutdown,
    TryPasses,
    Tune,
    WatchFiles,
    Welcome,
    WriteScript,
)
from buddy.compiler.protocol.connection import FrameDecoder, FrameError, LogLevel, WireError, version_of_peer
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import INDUCTOR
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.support.processes.jobs import Job, JobFailed, RequestJobs
from buddy.compiler.support.target import cores, host

if TYPE_CHECKING:
    from buddy.compiler.protocol.connection import Frame


log = logging.getLogger("buddy.engine")
# While the client has more unread bytes than this, the output of workers is not read.
_MAX_BACKLOG_BYTES = 4 << 20
Stream = Literal["stdout", "stderr"]
_VERSION_HINT = "use the same version of buddy-tui on both sides"
# The exceptions raised by decoding bytes that are not MessagePack, or not of the expected type. `TypeError` is raised
# for an unhashable key.
_UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, TypeError)


class Greeting(msgspec.Struct):
    """The fields of the client's greeting that the server reads; `Hello` describes them."""

    type: str
    version: int = 0
    log: LogLevel = "info"
    reopens: bool = False


class ClientRejected(BuddyError):
    """The client's first frame is not a valid greeting; the text is the reason."""


class Server:
    """Serves one client, from its greeting to its end."""

    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self._store = TextStore()
        listener = WorkerListener(self._send, self._send_output, lambda: connection.backlog > _MAX_BACKLOG_BYTES)
        self._dynamo = DynamoHandler(self._send, partial(self._send_output, "script"), listener.congested)
        self._session = EngineSession(self._send, self._store, listener)
        self._texts = TextHandler(self._store, self._send)
        self._dumps = DumpHandler(self._send, self._store)
        self._reprinting = ReprintHandler(self._store, self._send)
        programs = self._session.programs
        self._origins = ProvenanceHandler(self._store, self._send, programs.rows_of, programs.python_text)
        self._subgraphs = SubgraphHandler(self._session, self._send)
        self._exports = ExportHandler(self._session, self._store, self._send)
        self._numerics = NumericsHandler(self._session, self._send)
        self._checks, self._trials = IrCheckHandler(self._send), PassTrialHandler(self._store, self._send)
        self._profiles = ProfileHandler(self._session, self._send, self._store)
        self._tuning = TuneHandler(self._session, self._send)
        self._catalogue = CatalogueHandler(self._session, self._send)
        self._watching = WatchHandler(self._send)
        self._jobs = RequestJobs(self._send)
        self._has_greeted = False
        # A decoder for each output stream of each worker; the key is the worker's name followed by the stream's.
        self._utf8_decoders: dict[str, codecs.IncrementalDecoder] = {}
        self._decoder = FrameDecoder(ClientFrame)

    async def serve(self) -> int:
        """Serves until the client disconnects or sends `Shutdown`, or a signal arrives; returns the exit code."""
        await self._connection.open()
        self._session.host_start.schedule()
        try:
            await self._run_until_disconnected(self._handle_frames())
            return 0
        except (WireError, ClientRejected) as error:
            log.error("%s", error)
            self._send_now(Failed(0, Diagnostic(str(error), "the connection to the engine", _VERSION_HINT)))
            return 1
        finally:
            self._has_greeted = False
            await self._jobs.close()
            self._catalogue.close()
            self._dumps.close()
            await self._session.close()
            await self._connection.flush(1.0)

    async def _run_until_disconnected(self, conversation: Coroutine[object, object, None]) -> None:
        """Runs `conversation` until it ends, the connection is lost, or a signal ends the engine."""
        conversation_task = asyncio.ensure_future(conversation)
        lost_task = asyncio.ensure_future(self._connection.lost.wait())
        for signal_number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(signal_number, self._connection.lost.set)
        await asyncio.wait([conversation_task, lost_task], return_when=asyncio.FIRST_COMPLETED)
        lost_task.cancel()
        if not conversation_task.done():
            conversation_task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await conversation_task

    async def _handle_frames(self) -> None:
        async for body in self._connection.bodies():
            if not self._has_greeted:
                self._greet(body)
                continue
            try:
                frame = self._decoder.decode(body)
            except FrameError as error:
                self._send(Failed(request_of(body), Diagnostic(str(error), "the engine", _VERSION_HINT)))
                continue
            if isinstance(frame, Shutdown):
                return
            self._answer(frame)

    def _greet(self, body: bytes) -> None:
        """Answers the client's greeting with the engine's, and the states of its workers. Raises `ClientRejected`."""
        greeting = greeting_of(body)
        log.setLevel(greeting.log.upper())
        if not greeting.reopens:
            self._session.host_start.start_now()
        self._has_greeted = True
        version = _version("buddy-tui")
        self._send(Welcome(PROTOCOL_VERSION, version, os.getpid(), host().name, _packages(), cores()))
        for worker in (self._session.compiler.worker, self._session.host):
            if worker.generation:
                self._send(worker.state)

    # ---- requests ------------------------------------------------------------------------------------------------

    def _answer(self, frame: Any) -> None:
        """Answers a frame of the client at once, or starts a job for it."""
        if isinstance(frame, Hello):  # a second greeting gets no answer
            return
        if isinstance(frame, Ping):
            self._send(Pong(frame.request))
        elif isinstance(frame, Cancel):
            self._jobs.cancel(frame.target)
            if frame.target == 0:  # the client has cancelled all requests
                self._session.replace_unstarted_workers()
        else:
            log.debug("request %d: %s", frame.request, type(frame).__name__)
            work, slot = self._handler_of(frame)
            self._jobs.start(frame.request, work, slot)

    def _handler_of(self, frame: Any) -> tuple[Callable[[Job], Any], Any]:
        """Returns the handler of `frame`, and its slot (see `_slot`)."""
        handler = self._dump_handler_of(frame) or self._handlers()[type(frame)]
        if not _supports_backend(frame):
            handler = reject_other_backends(_NATIVE_ONLY[type(frame)])
        return lambda job: handler(frame, job), _slot(frame)

    def _handlers(self) -> dict[type, Callable[[Any, Job], Any]]:
        """Returns the handlers of requests by the type of the frame."""
        session, texts = self._session, self._texts
        return {
            Open: self._open,
            Compile: session.compile,
            Run: session.run,
            ExplainCode: session.explain_code,
            ListPasses: self._list_passes,
            ListOps: self._list_ops,
            ListPresets: self._list_presets,
            FetchLines: texts.fetch_lines,
            FetchText: texts.fetch_text,
            FetchCharacters: texts.fetch_characters,
            Search: texts.search,
            SearchEach: texts.search_each,
            ListSymbols: texts.list_symbols,
            ListTypes: texts.list_types,
            FindRegion: texts.find_region,
            Reprint: self._reprinting.reprint,
            DescribeOp: self._reprinting.describe_op,
            FindNode: texts.find_node,
            FindMainLine: texts.find_main_line,
            FollowNode: self._origins.follow_node,
            FindOrigins: self._origins.find_origins,
            FindJumps: self._origins.find_jumps,
            OpenPython: self._origins.open_python,
            Compare: texts.compare,
            CheckIr: self._checks.check_ir,
            TryPasses: self._trials.try_passes,
            Extract: self._subgraphs.extract,
            Export: self._exports.export,
            WriteScript: self._subgraphs.write_script,
            CompareNodes: self._numerics.compare_nodes,
            Bisect: self._subgraphs.bisect,
            ListValues: session.values.list_values,
            FetchValues: session.values.fetch_values,
            MapDifferences: session.values.map_differences,
            WatchFiles: self._watching.watch,
            Profile: self._profiles.profile,
            Tune: self._tuning.tune,
            DescribeBackend: session.backends.describe,
            CheckFlags: session.backends.check_flags,
            ExplainDynamo: self._dynamo.explain_dynamo,
        }

    def _dump_handler_of(self, frame: Frame) -> Callable[[Any, Job], Any] | None:
        """Returns the handler of a frame about a dump; `None` for other frames."""
        recipe = getattr(frame, "recipe", None)
        if recipe is None or not self._dumps.is_dump_of(recipe):
            return None
        return self._dumps.compile if isinstance(frame, Compile) else reject_dump

    async def _list_passes(self, frame: ListPasses, job: Job) -> None:
        """Lists the passes. A dump has no pipeline, so the workers that know the passes are not started for it."""
        if self._dumps.is_dump:
            self._send(Passes(frame.request, ()))
        else:
            await self._catalogue.list_passes(frame, job)

    async def _list_ops(self, frame: ListOps, job: Job) -> None:
        if self._dumps.is_dump:
            self._send(Ops(frame.request, ()))
        else:
            await self._catalogue.list_ops(frame, job)

    async def _open(self, frame: Open, job: Job) -> None:
        self._watching.record_opening()
        if (dump_format := self._dumps.detect_format(frame)) is not None:
            with self._session.host_start.postponed():
                await self._dumps.open(frame, dump_format, job)
            return
        await self._session.open(frame, job)

    async def _list_presets(self, frame: ListPresets, job: Job) -> None:
        from buddy.compiler.protocol.presets import presets

        plugins, _ = resolve_plugins(frame.plugins, frame.directory)
        plugin_presets, notes = await presets_of_plugins(plugins)
        self._send(Presets(frame.request, (*presets().values(), *plugin_presets), notes))

    # ---- sending -------------------------------------------------------------------------------------------------

    def _send(self, frame: Frame) -> None:
        """Sends a frame, but nothing before the greeting or while the engine ends."""
        if self._has_greeted:
            self._send_now(frame)

    def _send_now(self, frame: Frame) -> None:
        """Sends a frame. In place of a frame that is too large, sends `Failed`."""
        try:
            self._connection.send(frame)
        except FrameError as error:
            request = getattr(frame, "request", 0)
            self._connection.send(Failed(request, Diagnostic(str(error), "the engine", "fetch it in parts")))

    def _send_output(self, worker: str, stream: str, data: bytes) -> None:
        """Logs the output of a worker; sends that of the user's program to the client."""
        text = self._decode(worker + stream, data)
        is_from_program = worker in ("host", "script")
        if is_from_program:
            self._send(Printout(text, cast(Stream, stream)))
        # The output of a program may be private: it is logged only at the most detailed level.
        log.log(logging.DEBUG if is_from_program else logging.INFO, "%s %s: %s", worker, stream, text.rstrip())

    def _decode(self, key: str, data: bytes) -> str:
        """Decodes the next piece of a stream of UTF-8, which may end within a character; replaces invalid bytes."""
        if key not in self._utf8_decoders:
            self._utf8_decoders[key] = codecs.getincrementaldecoder("utf-8")("replace")
        return self._utf8_decoders[key].decode(data)


async def reject_dump(_frame: Frame, _job: Job) -> None:
    """Rejects a request that needs a pipeline. Raises `JobFailed`."""
    what = "this is a dump of another compiler: it has stages to read and compare, but no pipeline and no code to run"
    raise JobFailed(Diagnostic(what, "the dump", "open a script or a model file instead"))


# Requests that apply to this compiler's own code only, with their names in messages.
_NATIVE_ONLY: dict[type, str] = {
    Profile: "a profile",
    CompareNodes: "comparing every node",
    Bisect: "a bisection",
    Tune: "tuning",
    ExplainCode: "a list of LLVM's remarks",
}


def _supports_backend(frame: Any) -> bool:
    """Returns whether the backend that the recipe of a request names supports the request; true without a recipe."""
    if type(frame) not in _NATIVE_ONLY or frame.recipe.runs_passes:
        return True
    return isinstance(frame, CompareNodes) and frame.recipe.backend == INDUCTOR


def _slot(frame: Frame) -> Any:
    """Returns the slot of a request; a newer request replaces an unstarted one in the same slot.

    The `Compile` requests of one graph share a slot. Other requests have none (`None`).
    """
    if not isinstance(frame, Compile) or frame.for_comparison:
        return None
    return (frame.recipe.source, frame.recipe.arguments, frame.recipe.graph)


def greeting_of(body: bytes) -> Greeting:
    """Decodes the greeting from a first frame. Raises `ClientRejected`."""
    version = version_of_peer(body, Hello.__name__)
    if version not in (0, PROTOCOL_VERSION):
        raise ClientRejected(f"the client speaks protocol {version}, this engine {PROTOCOL_VERSION}")
    try:
        greeting = msgspec.msgpack.decode(body, type=Greeting)
    except _UNREADABLE as error:
        raise ClientRejected(f"the first frame is not a greeting: {error}") from error
    if greeting.type != "Hello":
        raise ClientRejected(f"the first frame must be a greeting, not {greeting.type!r}")
    if greeting.version != PROTOCOL_VERSION:
        raise ClientRejected("the greeting has no protocol version")
    return greeting


def request_of(body: bytes) -> int:
    """Returns the request number of a frame that does not decode to a known type, 0 if it has none."""
    with contextlib.suppress(*_UNREADABLE):
        fields = msgspec.msgpack.decode(body)
        if isinstance(fields, dict) and isinstance(fields.get("request"), int):
            return int(fields["request"])
    return 0


def _packages() -> dict[str, str]:
    """Returns the versions of the packages that results may depend on."""
    return {name: _version(name) for name in ("torch", "torch-mlir", "llvmlite", "numpy")}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
