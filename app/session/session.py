"""The session with the engine: sends requests, and handles the answers. No Textual."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from buddy.app.session.file_watch import FileStates, Watcher, change_text
from buddy.app.session.log_file import NO_LOG, LogOptions
from buddy.app.session.progress import Heartbeat
from buddy.app.session.stages import AHEAD, PAGE, LineCache, UnavailableError
from buddy.app.session.state import ALL, STATUS, State, Topic
from buddy.app.session.transport import RemoteHost
from buddy.app.workspace.frontends import apply_overrides
from buddy.app.workspace.workspace import Workspace
from buddy.compiler import protocol as p
from buddy.compiler.protocol.numerics import NumericsReport, Reference
from buddy.compiler.protocol.recipe import TORCH_MLIR, Frontend, PluginFile, Recipe
from buddy.compiler.protocol.run_report import InputChoice

if TYPE_CHECKING:
    from buddy.app.session.client import EngineClient, Place

COALESCE_SECONDS = 0.15
MAX_STARTS = 3
START_WINDOW_SECONDS = 20.0
# Time limit of a comparison of every node, as a multiple of a run's: it compiles each node separately.
_COMPARING = 5

Answer = TypeVar("Answer")
Changed = Callable[[frozenset[Topic]], None]


class Session:
    """One program in one engine. After every frame, `changed` is called with the changed parts of `state`.

    `wanted` are the fields of the recipe that the command line sets.
    """

    def __init__(
        self, workspace: Workspace, changed: Changed, place: Place | None = None, log: LogOptions = NO_LOG,
        directory: str = "",
    ) -> None:  # fmt: skip
        self.workspace = workspace
        self.state = State()
        self.cache = LineCache(self._fetch_lines, lambda text: self.changed(frozenset({"lines"})))
        self.changed = changed
        self.auto_run = False
        self.timeout = p.Run(0, Recipe()).timeout
        self.watching = False
        self.say: Callable[[str], object] = lambda text: None
        self.disk = FileStates()
        self.equal_nan = False
        self.shapes: tuple[str, ...] = ()
        self.trusts = False
        self.wanted: Mapping[str, Any] = {}
        self._opened_by: Frontend = "dynamo"
        self._place, self._log, self._directory = place, log, directory
        self._watcher = Watcher(workspace, self.state, directory, self.reload, lambda text: self.say(text))
        self._heartbeat = Heartbeat(self._silence_changed)
        self._client: EngineClient | None = None
        self._start_times: list[float] = []
        self._restart_requested = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._sent_at = 0.0
        self._permanent_failure = False
        self._closing = False
        self._closing_tasks: dict[EngineClient, asyncio.Future[None]] = {}

    @property
    def inputs(self) -> InputChoice:
        """The inputs of the next run."""
        return self.state.wanted_inputs

    @inputs.setter
    def inputs(self, chosen: InputChoice) -> None:
        self.state.wanted_inputs = chosen

    # ---- life ----------------------------------------------------------------------------------------------------

    async def keep_running(self) -> None:
        """Keep an engine running until `close`. Restarts an engine that exits, unless this happens repeatedly."""
        while not self._closing:
            self._start_times = [*self._start_times[-MAX_STARTS:], time.monotonic()]
            await self._run_engine()
            await self._wait_for_restart()
            self._restart_requested.clear()

    async def _wait_for_restart(self) -> None:
        """Wait for the user to restart the engine if it exits repeatedly or cannot start."""
        if self._needs_user and not self._restart_requested.is_set() and not self._closing:
            self.changed(ALL)
            await self._restart_requested.wait()

    async def _run_engine(self) -> None:
        from buddy.app.session.client import EngineClient, EngineLost

        client = self._client = EngineClient(self._place, self._log, self._link_changed)
        self._permanent_failure = False
        if not isinstance(self._place, RemoteHost):
            # The transport of a remote engine has its own heartbeat, with longer limits.
            self._heartbeat.start(client)
        try:
            self.state.apply(await client.start())
            self._initialize(client)
            async for frame in client.frames():
                self._handle_frame(frame)
            self._report_exit("the engine closed the connection")
        except (EngineLost, OSError) as error:
            self._permanent_failure = getattr(error, "lasting", False)
            self._report_exit(str(error))
        finally:
            self._watcher.stop()
            self._heartbeat.stop()
            await self._close_client(client)

    def _report_exit(self, why: str) -> None:
        if self._closing:
            return
        if self._restart_requested.is_set():
            return self._reset_state()
        todo = "press R to restart it; details are in its log" if self._needs_user else "restarting the engine"
        self.state.record_engine_exit(p.Diagnostic(f"the engine exited: {why}", todo=todo))
        self.cache.forget()
        self.changed(ALL)

    def _reset_state(self) -> None:
        """Reset the state for another engine. The current one may still be exiting."""
        self.state.record_restart()
        self.cache.forget()
        self.changed(ALL)

    @property
    def _needs_user(self) -> bool:
        return self._permanent_failure or self._exits_often()

    def _exits_often(self) -> bool:
        return (
            len(self._start_times) > MAX_STARTS
            and time.monotonic() - self._start_times[-MAX_STARTS] < START_WINDOW_SECONDS
        )

    def _initialize(self, client: EngineClient) -> None:
        """Request presets, passes and ops, and open the program."""
        here, workspace = self._directory, self.workspace
        _post(client, p.ListPresets(client.next_request()))
        for frame in (p.ListPasses, p.ListOps):
            _post(client, frame(client.next_request(), here, workspace.plugins))
        self.state.captured = False
        self.state.record_start("open", self._open(client))
        if self.watching:
            self._watcher.start(client)
        self.changed(ALL)

    def _open(self, client: EngineClient) -> int:
        """Open the program. Returns the number of the request."""
        request, workspace = client.next_request(), self.workspace
        source, arguments, plugins = workspace.source, workspace.arguments, workspace.plugins
        self._opened_by = workspace.recipe.frontend if workspace.ready else self.wanted.get("frontend", "dynamo")
        how = self.shapes, self._opened_by, self.trusts
        _post(client, p.Open(request, source, arguments, self._directory, plugins, *how))
        return request

    # ---- watching ------------------------------------------------------------------------------------------------

    def toggle_watching(self) -> None:
        """Start or stop reloading the program when its files change."""
        self.watching = not self.watching
        if not self.watching:
            self._watcher.stop()
        elif self._client is not None and self.state.engine == "ready":
            self._watcher.start(self._client)

    def reload(self, files: tuple[str, ...]) -> None:
        """Open the program again after `files` changed. Recipes and current results stay until then."""
        client, workspace = self._client, self.workspace
        if client is None or self.state.engine != "ready":
            return
        for request in [number for number, job in self.state.jobs.items() if job == "open"]:
            _post(client, p.Cancel(request))
        if any(plugin.path in files for plugin in workspace.plugins):
            workspace.plugins = tuple(PluginFile(each.path, passes=each.passes) for each in workspace.plugins)
            for frame in (p.ListPasses, p.ListOps):
                _post(client, frame(client.next_request(), self._directory, workspace.plugins))
        self.say(change_text(files))
        self._reopen(client)

    def capture_with(self, shapes: tuple[str, ...]) -> None:
        """Capture the program with other argument shapes; an empty tuple restores its own."""
        self.shapes = shapes
        if self._client is not None and self.state.engine == "ready":
            self._reopen(self._client)

    def _reopen(self, client: EngineClient) -> None:
        self.state.record_reload(self._open(client))
        self.changed(ALL)

    def _link_changed(self, what: str) -> None:
        """Handle a lost or restored connection to a remote engine. Requests are answered after the reconnect."""
        self.state.link = what
        self.state.silent = self._client.unanswered if self._client is not None else 0
        self.changed(STATUS)

    def _silence_changed(self, seconds: int) -> None:
        """Handle an engine that has not answered for some seconds, or (0) answers again. Only the user can kill it."""
        self.state.silent = seconds
        self.changed(STATUS)

    def reconnect(self) -> None:
        """Reconnect to the engine at once."""
        if self._client is not None:
            self._client.reconnect_now()

    def start_over(self) -> None:
        """Start another engine, and run the script again."""
        self._start_times.clear()
        self._restart_requested.set()
        if self._client is not None and self.state.silent:
            self._client.kill()
        elif self._client is not None and self.state.engine != "lost":
            self._closing_task(self._client)
            self._reset_state()

    async def close(self) -> None:
        """Stop the engine. Returns when its process has exited."""
        self._closing = True
        if self._client is not None:
            await self._close_client(self._client)

    async def _close_client(self, client: EngineClient) -> None:
        """Close a client completely, even if the caller is cancelled."""
        await asyncio.shield(self._closing_task(client))

    def _closing_task(self, client: EngineClient) -> asyncio.Future[None]:
        """The task that closes a client. There is only one, for all callers."""
        if client not in self._closing_tasks:
            self._closing_tasks = {client: asyncio.ensure_future(client.close())}
        return self._closing_tasks[client]

    # ---- frames --------------------------------------------------------------------------------------------------

    def _handle_frame(self, frame: p.Frame) -> None:
        if self._restart_requested.is_set():
            return  # from an engine that has been replaced
        topics = self.state.apply(frame)
        if isinstance(frame, p.Presets):
            self._begin_workspace(frame)
        if isinstance(frame, p.Captured):
            # A remote path may name a different file on this machine.
            self.disk.take(() if isinstance(self._place, RemoteHost) else frame.files)
            self.workspace.plugins = frame.plugins
            self.workspace.set_graphs(frame.graphs)
        if isinstance(frame, p.Captured | p.Presets):
            self._choose_graph()
            self.build()
        if topics:
            self.changed(topics)

    def _begin_workspace(self, frame: p.Presets) -> None:
        if not self.workspace.ready and frame.presets:
            default = next((preset for preset in frame.presets if preset.name == "default"), frame.presets[0])
            self.workspace.begin(default.recipe)
            self._apply_overrides(frame.presets)
            if self._needs_opening and self._client is not None:
                self._reopen(self._client)

    def _apply_overrides(self, presets: Sequence[p.Preset]) -> None:
        """Apply the command line's fields to the recipe, as an edit that can be undone."""
        if not self.wanted:
            return
        words = " ".join(str(value) for value in self.wanted.values())
        try:
            self.workspace.edit(apply_overrides(self.workspace.recipe, presets, self.wanted), f"command line: {words}")
        except ValueError as error:
            self.say(str(error))

    def _choose_graph(self) -> None:
        """Show the graph that was shown last, or the first graph if it no longer exists."""
        if self.state.captured and self.workspace.graph >= len(self.state.graphs):
            self.workspace.show(0)
        self.state.graph = self.workspace.graph

    # ---- user actions --------------------------------------------------------------------------------------------

    def show_graph(self, graph: int) -> None:
        """Show another graph of the program. Compiles it unless it has been compiled with its current recipe."""
        if self._timer is not None:
            self._timer.cancel()
            self.build()
        self.workspace.show(graph)
        self.state.graph = graph
        if self.state.compiled != self.workspace.recipe and "compile" not in self.state.under_way(graph):
            self.build()
        self.changed(ALL)

    def run_all(self) -> None:
        """Run every graph of the program, each with its own recipe."""
        if self._can_build:
            for graph in range(len(self.state.graphs)):
                self._send("run", self.workspace.recipe_of(graph))

    def edited(self) -> None:
        """Compile the changed recipe at once, or, in a burst of edits, after the burst."""
        if self._timer is not None:
            self._timer.cancel()
        if self._client is not None and self._needs_opening and self.state.engine == "ready":
            self._reopen(self._client)
            return
        wait = self._sent_at + COALESCE_SECONDS - time.monotonic()
        if wait <= 0:
            self.build()
        else:
            self._timer = asyncio.get_running_loop().call_later(wait, self.build)

    @property
    def _needs_opening(self) -> bool:
        """Whether the recipe's frontend needs the program to be opened again.

        For torch-mlir, TorchDynamo has captured the program, so a switch to dynamo needs this only after a failure.
        """
        wanted, failed = self.workspace.recipe.frontend, "open" in self.state.problems
        return wanted != self._opened_by and (failed or (wanted, self._opened_by) != ("dynamo", TORCH_MLIR))

    def build(self) -> None:
        """Compile the current recipe, and also run it if the user wants a run after every edit."""
        self._timer = None
        if self.auto_run and self.state.report is not None:
            self.run()
        elif self._can_build:
            self._send("compile", self.workspace.recipe)

    def run(self) -> None:
        if self._can_build:
            self._send("run", self.workspace.recipe)

    @property
    def _can_build(self) -> bool:
        return self.workspace.ready and self.state.captured and bool(self.state.graphs) and self.state.engine == "ready"

    def _send(self, job: str, recipe: Recipe) -> None:
        client = self._client
        if client is None:
            return
        request = client.next_request()
        self._sent_at = time.monotonic()
        self.state.record_start("run" if job == "run" else "compile", request, recipe, self.inputs)
        run = p.Run(request, recipe, timeout=self.timeout, inputs=self.inputs, keep=True, equal_nan=self.equal_nan)
        _post(client, run if job == "run" else p.Compile(request, recipe))
        self.changed(ALL)

    def cancel(self) -> None:
        """Cancel all running requests."""
        if self._client is not None:
            _post(self._client, p.Cancel(0))
            self.changed(STATUS)

    # ---- requests with an answer ---------------------------------------------------------------------------------

    def add_extract(self, found: p.Extracted, recipe: Recipe) -> None:
        """Add an extracted graph to the program, with `recipe`."""
        self.state.add_extract(found)
        self.workspace.adopt(recipe)

    async def request(self, frame: p.Request[Answer], came: Callable[[Any], object] = lambda _frame: None) -> Answer:
        """Number a frame, send it, and return the answer; `came` is called with each frame before the answer.

        Raises `UnavailableError` if there is no answer, like all requests below.
        """
        from buddy.app.session.client import EngineLost, RequestFailed

        if self._client is None or self.state.engine != "ready":
            raise UnavailableError("the engine is not running")
        try:
            return await self._client.request(frame, came)
        except (EngineLost, RequestFailed) as error:
            raise UnavailableError(str(error), getattr(error, "cancelled", False)) from error

    async def _fetch_lines(self, text: str, start: int, count: int) -> p.Lines:
        return await self.request(p.FetchLines(0, text, start, count))

    async def whole_text(self, text: str) -> str:
        return (await self.request(p.FetchText(0, text))).content

    async def open_python(self, path: str) -> p.PythonOpened:
        """The text of a Python file that nodes of the graph on the screen come from."""
        workspace = self.workspace
        return await self.request(p.OpenPython(0, workspace.source, workspace.arguments, self.state.graph, path))

    async def find_place(self, text: str, node: str) -> int:
        """The main line of a node, or -1. Also caches the lines around it."""
        found = await self.request(p.FindPlace(0, text, node, PAGE, AHEAD), self.cache.take)
        return found.lines[0] if found.lines else -1

    async def compile_beside(self, recipe: Recipe, came: Callable[[Any], object] = lambda _frame: None) -> p.Compiled:
        """Compile a recipe for a comparison; `came` is called with each stage. Does not change the screen."""
        return await self.request(p.Compile(0, recipe, beside=True), came)

    async def run_beside(self, recipe: Recipe) -> p.RunReport:
        """Run a recipe for a comparison."""
        frame = p.Run(0, recipe, beside=True, inputs=self.inputs, equal_nan=self.equal_nan)
        return (await self.request(frame)).report

    async def run_values(self, recipe: Recipe) -> p.Ran:
        """Run once. Returns inputs and outputs as a file."""
        frame = p.Run(0, recipe, 1, beside=True, inputs=self.inputs, values=True, equal_nan=self.equal_nan)
        return await self.request(frame)

    async def compare_nodes(
        self, recipe: Recipe, reference: Reference, came: Callable[[Any], object]
    ) -> NumericsReport:
        """Compare every node of `recipe` with the reference; `came` gets progress. Also updates the graph table."""
        frame = p.CompareNodes(0, recipe, reference, timeout=_COMPARING * self.timeout, inputs=self.inputs)
        report = (await self.request(frame, came)).report
        self.state.of(recipe.graph).record_comparison(recipe, report)
        self.changed(frozenset({"graph", "outputs"}))
        return report

    async def profile(self, recipe: Recipe, came: Callable[[Any], object]) -> p.ProfileReport:
        """Profile a recipe. Does not change the screen."""
        return (await self.request(p.Profile(0, recipe, timeout=self.timeout, inputs=self.inputs), came)).report

    def display_path(self, path: str) -> str:
        """A path on the engine's machine, relative to the folder of the program if it is inside."""
        return path.removeprefix(f"{self._directory.rstrip('/')}/") if self._directory else path


def _post(client: EngineClient, frame: p.Frame) -> None:
    """Send a frame. Ignores an engine that has just exited, because its end is reported separately."""
    from buddy.app.session.client import EngineLost

    with contextlib.suppress(EngineLost):
        client.send(frame)
