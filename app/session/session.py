"""The session with the engine: sends requests, and handles the answers. Does not import Textual."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from buddy.app.actions import key_of
from buddy.app.session.engine_options import NO_LOG, LogOptions, RemoteHost
from buddy.app.session.line_cache import PAGE_LINES, PREFETCH_LINES, LineCache
from buddy.app.session.monitors import FileStates, FileWatcher, Heartbeat, change_text
from buddy.app.session.requests import UnavailableError
from buddy.app.session.state import STATE_TOPICS, STATUS, State, Topic
from buddy.app.workspace.presets import apply_overrides
from buddy.app.workspace.workspace import Workspace
from buddy.compiler import protocol as p
from buddy.compiler.protocol.dump_files import is_dump
from buddy.compiler.protocol.numerics import NumericsReport, Reference
from buddy.compiler.protocol.recipe import TORCH_MLIR, Frontend, PluginFile, Recipe
from buddy.compiler.protocol.run_report import InputChoice, Mark

if TYPE_CHECKING:
    from buddy.app.session.client import EngineClient, EngineLocation

# Edits that follow each other faster than this are compiled together.
COALESCE_SECONDS = 0.15
# An engine that exits is restarted, unless it has been restarted `MAX_RESTARTS` times within the time window.
MAX_RESTARTS = 3
RESTART_WINDOW_SECONDS = 20.0
# The time limit of a comparison of every node, which compiles each node separately, as a multiple of that of a run.
_COMPARISON_TIME_FACTOR = 5

Answer = TypeVar("Answer")
FrameCallback = Callable[[Any], object]


class Session:
    """One program in one engine: opens it, compiles and runs its recipes, and restarts an engine that exits.

    `location` is the command that starts the engine, or the host that it runs on; `None` means a process of this
    installation. `directory` is the folder that the source is relative to. After every frame, `notify` is called with
    the topics of `state` that have changed. `say` is called with messages to the user.

    For opening the program: `shapes` replace those of the model's arguments, such as `x=4x128`. `is_trusted` allows
    pickles in the file to run code. With `reopens_saved_graphs`, the graphs of an earlier session are shown until the
    script has run. With `follows_file`, a log of another compiler is read on when it has grown. `overrides` are the
    fields of the recipe that the command line sets. While it is `watching`, changed files are loaded again.

    For runs: `timeout` is in seconds. With `equal_nan`, NaN counts as equal to NaN. `runtimes` are the other runtimes
    to compare with, and `mark` says which of their intermediate values are compared (`run_report.Mark`). With
    `auto_run`, a graph that has been run is run again after each edit. `file_states` are the program's files when it
    was opened.
    """

    def __init__(
        self, workspace: Workspace, notify: Callable[[frozenset[Topic]], None], location: EngineLocation | None = None,
        log: LogOptions = NO_LOG, directory: str = "",
    ) -> None:  # fmt: skip
        self.workspace = workspace
        self.state = State()
        # The files of another engine may be on another machine: its dumps are recognised when they have been opened.
        self.state.opens_dump = location is None and is_dump(Path(directory, workspace.source))
        self.cache = LineCache(self._fetch_lines, lambda _hash: self.notify(frozenset({"lines"})), self._search_text)
        self.notify = notify
        self.auto_run = False
        self.timeout = p.Run(0, Recipe()).timeout
        self.watching = False
        self.say: Callable[[str], object] = lambda text: None
        self.file_states = FileStates()
        self.equal_nan = False
        self.runtimes: tuple[str, ...] = ()
        self.mark: Mark = "auto"
        self.shapes: tuple[str, ...] = ()
        self.is_trusted = False
        self.reopens_saved_graphs = False
        self.follows_file = False
        self.overrides: Mapping[str, Any] = {}
        self._opened_frontend: Frontend = "dynamo"
        self._location, self._log, self.directory = location, log, directory
        self._watcher = FileWatcher(workspace, self.state, directory, self.reload, lambda text: self.say(text))
        self._heartbeat = Heartbeat(self._handle_silence)
        self._client: EngineClient | None = None
        # When the last engines were started, by `time.monotonic`.
        self._start_times: list[float] = []
        self._restart_requested = asyncio.Event()
        # Set while an edit waits to be compiled together with later ones; see `compile_edit`.
        self._compile_timer: asyncio.TimerHandle | None = None
        self._last_compile_time = 0.0
        self._failed_permanently = False
        self._closing = False
        self._closing_tasks: dict[EngineClient, asyncio.Future[None]] = {}

    @property
    def is_local(self) -> bool:
        """Whether the engine is a process of this installation, so that the source is a path on this machine."""
        return self._location is None

    @property
    def is_remote(self) -> bool:
        """Whether the engine runs on another machine, whose files this one may not have."""
        return isinstance(self._location, RemoteHost)

    @property
    def inputs(self) -> InputChoice:
        """The inputs of the next run."""
        return self.state.next_inputs

    @inputs.setter
    def inputs(self, inputs: InputChoice) -> None:
        self.state.next_inputs = inputs

    # ---- starting and ending -------------------------------------------------------------------------------------

    async def keep_running(self) -> None:
        """Keeps an engine running until `close`. Restarts an engine that exits, unless this happens repeatedly."""
        while not self._closing:
            self._start_times = [*self._start_times[-MAX_RESTARTS:], time.monotonic()]
            await self._run_engine()
            await self._wait_for_restart()
            self._restart_requested.clear()

    async def _wait_for_restart(self) -> None:
        """Waits for the user to restart the engine if it exits repeatedly or cannot start."""
        if self._needs_user and not self._restart_requested.is_set() and not self._closing:
            self.notify(STATE_TOPICS)
            await self._restart_requested.wait()

    async def _run_engine(self) -> None:
        """Starts an engine, opens the program, and handles the frames of the engine until it exits."""
        from buddy.app.session.client import EngineClient, EngineError

        client = self._client = EngineClient(
            self._location, self._log, self._handle_connection, reopens_saved_graphs=self.reopens_saved_graphs
        )
        self._failed_permanently = False
        if not isinstance(self._location, RemoteHost):
            # The transport of a remote engine has its own heartbeat, with longer limits.
            self._heartbeat.start(client)
        try:
            self.state.apply(await client.start())
            self._initialize(client)
            async for frame in client.frames():
                self._handle_frame(frame)
            self._report_exit("the engine closed the connection")
        except (EngineError, OSError) as error:
            self._failed_permanently = getattr(error, "is_permanent", False)
            self._report_exit(str(error))
        finally:
            self._watcher.stop()
            self._heartbeat.stop()
            await self._close_client(client)

    def _report_exit(self, reason: str) -> None:
        """Reports an exit that the user did not request."""
        if self._closing:
            return
        if self._restart_requested.is_set():
            self._reset_state()
            return
        todo = (
            f"press {key_of('rerun')} to restart it; details are in its log"
            if self._needs_user
            else "restarting the engine"
        )
        self.state.record_engine_exit(p.Diagnostic(f"the engine exited: {reason}", todo=todo))
        self.cache.clear()
        self.notify(STATE_TOPICS)

    def _reset_state(self) -> None:
        """Resets the state for another engine. The current one may still be exiting."""
        self.state.record_restart()
        self.cache.clear()
        self.notify(STATE_TOPICS)

    @property
    def _needs_user(self) -> bool:
        """Whether the engine is not restarted until the user requests it."""
        return self._failed_permanently or self._exits_often()

    def _exits_often(self) -> bool:
        """Whether the engine was restarted `MAX_RESTARTS` times in the last `RESTART_WINDOW_SECONDS`."""
        return (
            len(self._start_times) > MAX_RESTARTS
            and time.monotonic() - self._start_times[-MAX_RESTARTS] < RESTART_WINDOW_SECONDS
        )

    def _initialize(self, client: EngineClient) -> None:
        """Requests presets, passes and ops, and opens the program."""
        _send_if_running(client, p.ListPresets(client.new_request_id(), self.directory, self.workspace.plugins))
        self.state.captured = False
        self.state.record_start("open", self._open(client))
        self._request_catalogues(client)
        if self.watching:
            self._watcher.start(client)
        self.notify(STATE_TOPICS)

    def _request_catalogues(self, client: EngineClient) -> None:
        """Requests the lists of passes and ops, which plug-ins may extend."""
        for frame in (p.ListPasses, p.ListOps):
            _send_if_running(client, frame(client.new_request_id(), self.directory, self.workspace.plugins))

    def _open(self, client: EngineClient) -> int:
        """Requests to open the program. Returns the number of the request."""
        request, workspace = client.new_request_id(), self.workspace
        frontend = workspace.recipe.frontend if workspace.is_loaded else self.overrides.get("frontend", "dynamo")
        self._opened_frontend = frontend
        source, arguments, plugins = workspace.source, workspace.arguments, workspace.plugins
        frame = p.Open(
            request, source, arguments, self.directory, plugins, self.shapes, frontend, self.is_trusted,
            self.reopens_saved_graphs, self.follows_file,
        )  # fmt: skip
        _send_if_running(client, frame)
        return request

    # ---- watching ------------------------------------------------------------------------------------------------

    def toggle_watching(self) -> None:
        """Starts or stops reloading the program when its files change."""
        self.watching = not self.watching
        if not self.watching:
            self._watcher.stop()
        elif self._client is not None and self.state.engine == "ready":
            self._watcher.start(self._client)

    def reload(self, files: tuple[str, ...]) -> None:
        """Opens the program again after `files` changed. Until it is captured, the current results are shown."""
        client, workspace = self._client, self.workspace
        if client is None or self.state.engine != "ready":
            return
        for request in [number for number, job in self.state.jobs.items() if job == "open"]:
            _send_if_running(client, p.Cancel(request))
        if any(plugin.path in files for plugin in workspace.plugins):
            # Drop the hashes of the contents: they are those before the change.
            workspace.plugins = tuple(PluginFile(plugin.path, passes=plugin.passes) for plugin in workspace.plugins)
            self._request_catalogues(client)
        self.say(change_text(files))
        self._reopen(client)

    def capture_with_shapes(self, shapes: tuple[str, ...]) -> None:
        """Captures the program again with other argument shapes; an empty tuple restores those of the file."""
        self.shapes = shapes
        if self._client is not None and self.state.engine == "ready":
            self._reopen(self._client)

    def _reopen(self, client: EngineClient) -> None:
        """Opens the program again. The results stay, but are outdated."""
        self.state.record_reload(self._open(client))
        self.notify(STATE_TOPICS)

    def _handle_connection(self, error: str) -> None:
        """Handles a lost connection to a remote engine; with an empty `error`, a restored one.

        Requests stay valid: they are answered after the reconnect.
        """
        self.state.connection_error = error
        self.state.silent_seconds = self._client.silent_seconds if self._client is not None else 0
        self.notify(STATUS)

    def _handle_silence(self, seconds: int) -> None:
        """Shows for how many seconds the engine has not answered; 0 if it answers again. Only the user kills it."""
        self.state.silent_seconds = seconds
        self.notify(STATUS)

    def reconnect(self) -> None:
        if self._client is not None:
            self._client.reconnect_now()

    def start_over(self) -> None:
        """Replaces the engine, and runs the script again. An engine that does not answer is killed."""
        self._start_times.clear()
        self._restart_requested.set()
        if self._client is not None and self.state.silent_seconds:
            self._client.kill()
        elif self._client is not None and self.state.engine != "lost":
            self._start_closing(self._client)
            self._reset_state()

    async def close(self) -> None:
        """Stops the engine. Returns when its process has exited."""
        self._closing = True
        if self._client is not None:
            await self._close_client(self._client)

    async def _close_client(self, client: EngineClient) -> None:
        """Closes a client completely, even if the caller is cancelled."""
        await asyncio.shield(self._start_closing(client))

    def _start_closing(self, client: EngineClient) -> asyncio.Future[None]:
        """Starts to close a client, unless it is being closed. Returns the task."""
        if client not in self._closing_tasks:
            self._closing_tasks = {client: asyncio.ensure_future(client.close())}
        return self._closing_tasks[client]

    # ---- frames --------------------------------------------------------------------------------------------------

    def _handle_frame(self, frame: p.Frame) -> None:
        """Applies a frame that no request waits for to the state, then updates the workspace and the panes."""
        if self._restart_requested.is_set():
            return  # from an engine that has been replaced
        restored_graphs = self.state.graphs if self.state.restored_at else None
        has_failed_to_open = isinstance(frame, p.Failed) and self.state.jobs.get(frame.request) == "open"
        topics = self.state.apply(frame)
        if has_failed_to_open:
            self._record_files(self._watcher.program_files())
        if isinstance(frame, p.Presets):
            self._begin_workspace(frame)
        if isinstance(frame, p.Captured):
            self._record_files(frame.files)
            self.workspace.plugins = frame.plugins
            if restored_graphs not in (None, frame.graphs):
                self.say("The script has other graphs than in the last session: these are shown now")
        if isinstance(frame, p.Captured | p.Reopened):
            self.workspace.set_graphs(frame.graphs)
        if isinstance(frame, p.Reopened):
            self._record_files(frame.files)
            for graph in range(len(frame.graphs)):
                self.state.restore_report(graph)
        if isinstance(frame, p.Captured | p.Reopened | p.Presets):
            self._show_saved_graph()
            self.compile_current()
        if topics:
            self.notify(topics)

    def _record_files(self, files: Sequence[str]) -> None:
        """Records the current states of the program's files, to detect later changes.

        Ignores files of a remote engine, whose paths may name other files on this machine, and a followed log, which
        the engine watches.
        """
        self.file_states.record(() if self.is_remote or self.follows_file else files)

    def _begin_workspace(self, frame: p.Presets) -> None:
        """Loads the saved recipes, unless they are loaded. Opens the program again if they need another frontend."""
        if not self.workspace.is_loaded and frame.presets:
            default = next((preset for preset in frame.presets if preset.name == "default"), frame.presets[0])
            self.workspace.load(default.recipe)
            self._apply_overrides(frame.presets)
            if self._needs_reopening and self._client is not None:
                self._reopen(self._client)

    def _apply_overrides(self, presets: Sequence[p.Preset]) -> None:
        """Applies the command line's fields to the recipe, as an edit that can be undone."""
        if not self.overrides:
            return
        values = " ".join(str(value) for value in self.overrides.values())
        try:
            recipe = apply_overrides(self.workspace.recipe, presets, self.overrides)
        except ValueError as error:
            self.say(str(error))
        else:
            self.workspace.edit(recipe, f"command line: {values}")

    def _show_saved_graph(self) -> None:
        """Shows the graph that was shown last, or the first graph if it no longer exists."""
        if self.state.captured and self.workspace.graph >= len(self.state.graphs):
            self.workspace.show_graph(0)
        self.state.graph = self.workspace.graph

    # ---- user actions --------------------------------------------------------------------------------------------

    def show_graph(self, graph: int) -> None:
        """Shows another graph of the program, and compiles it unless its recipe is compiled or being compiled."""
        if self._compile_timer is not None:
            # An edit of the previous graph waits: compile it now.
            self._compile_timer.cancel()
            self.compile_current()
        self.workspace.show_graph(graph)
        self.state.graph = graph
        if self.state.compiled_recipe != self.workspace.recipe and "compile" not in self.state.running_jobs(graph):
            self.compile_current()
        self.notify(STATE_TOPICS)

    def run_all(self) -> None:
        """Runs every graph of the program, each with its own recipe."""
        if self._can_compile:
            for graph in range(len(self.state.graphs)):
                self._request_job("run", self.workspace.recipe_of(graph))

    def compile_edit(self) -> None:
        """Compiles the edited recipe, at most once in `COALESCE_SECONDS`. Opens the program again if necessary."""
        if self._compile_timer is not None:
            self._compile_timer.cancel()
        if self._client is not None and self._needs_reopening and self.state.engine == "ready":
            self._reopen(self._client)
            return
        wait = self._last_compile_time + COALESCE_SECONDS - time.monotonic()
        if wait <= 0:
            self.compile_current()
        else:
            self._compile_timer = asyncio.get_running_loop().call_later(wait, self.compile_current)

    @property
    def _needs_reopening(self) -> bool:
        """Whether the recipe's frontend needs the program to be opened again.

        For the frontend torch-mlir, TorchDynamo captures the program too. So a switch from it to dynamo needs this only
        if the program could not be opened.
        """
        frontend, has_failed = self.workspace.recipe.frontend, "open" in self.state.problems
        is_captured_by_dynamo = (frontend, self._opened_frontend) == ("dynamo", TORCH_MLIR)
        return frontend != self._opened_frontend and (has_failed or not is_captured_by_dynamo)

    def compile_current(self) -> None:
        """Compiles the current recipe. With `auto_run`, also runs it if this session has run the graph before."""
        self._compile_timer = None
        if self.auto_run and self.state.report is not None and self.state.graph_state.restored_run is None:
            if self._can_compile:
                self._request_job("run", self.workspace.recipe)
        elif self._can_compile:
            self._request_job("compile", self.workspace.recipe)

    def run(self) -> None:
        """Runs the current recipe, also by the other `runtimes`, which automatic runs after edits leave out."""
        if self._can_compile:
            self._request_job("run", self.workspace.recipe, self.runtimes)

    @property
    def _can_compile(self) -> bool:
        """Whether a recipe, a captured graph and a running engine are available."""
        return (
            self.workspace.is_loaded
            and self.state.captured
            and bool(self.state.graphs)
            and self.state.engine == "ready"
        )

    def _request_job(self, job: Literal["compile", "run"], recipe: Recipe, runtimes: tuple[str, ...] = ()) -> None:
        """Requests to compile or run `recipe`.

        `runtimes` are other runtimes for a run, besides this compiler and eager.
        """
        client = self._client
        if client is None:
            return
        request = client.new_request_id()
        self._last_compile_time = time.monotonic()
        self.state.record_start(job, request, recipe, self.inputs)
        run = p.Run(
            request,
            recipe,
            timeout=self.timeout,
            inputs=self.inputs,
            store_values=True,
            equal_nan=self.equal_nan,
            runtimes=runtimes,
            mark=self.mark,
        )
        _send_if_running(client, run if job == "run" else p.Compile(request, recipe))
        self.notify(STATE_TOPICS)

    def cancel(self) -> None:
        if self._client is not None:
            _send_if_running(self._client, p.Cancel(0))
            self.notify(STATUS)

    # ---- requests with an answer ---------------------------------------------------------------------------------

    def add_extracted_graph(self, extracted: p.Extracted, recipe: Recipe) -> None:
        """Adds an extracted graph, which is compiled by `recipe`, to the graphs of the program."""
        self.state.add_extracted_graph(extracted)
        self.workspace.add_graph(recipe)

    async def request(self, frame: p.Request[Answer], on_frame: FrameCallback = lambda _frame: None) -> Answer:
        """Numbers a request, sends it, and returns the answer; `on_frame` is called with each frame before the answer.

        Raises `UnavailableError` if there is no answer, like all methods below.
        """
        from buddy.app.session.client import EngineError, RequestFailed

        if self._client is None or self.state.engine != "ready":
            raise UnavailableError("the engine is not running")
        try:
            return await self._client.request(frame, on_frame)
        except (EngineError, RequestFailed) as error:
            raise UnavailableError(str(error), getattr(error, "cancelled", False)) from error

    async def _fetch_lines(self, text_hash: str, start: int, count: int) -> p.Lines:
        return await self.request(p.FetchLines(0, text_hash, start, count))

    async def _search_text(self, text_hash: str, pattern: str, regex: bool, ignore_case: bool) -> p.SearchResult:
        return await self.request(p.Search(0, text_hash, pattern, regex, ignore_case))

    async def fetch_text(self, text_hash: str) -> str:
        return (await self.request(p.FetchText(0, text_hash))).content

    async def open_python(self, path: str) -> p.PythonOpened:
        """Returns the Python file `path` that nodes of the graph on the screen come from, as it was when captured."""
        workspace = self.workspace
        return await self.request(p.OpenPython(0, workspace.source, workspace.arguments, self.state.graph, path))

    async def find_main_line(self, text_hash: str, node: str, fallback_nodes: tuple[str, ...] = ()) -> int:
        """Returns the number (from 0) of the line that represents `node` in a text, and caches the lines around it.

        Without such a line, returns that of the first of `fallback_nodes` that has one, or -1.
        """
        frame = p.FindMainLine(0, text_hash, node, PAGE_LINES, PREFETCH_LINES, fallback_nodes)
        answer = await self.request(frame, self.cache.add)
        return answer.lines[0] if answer.lines else -1

    async def compile_for_comparison(self, recipe: Recipe, on_frame: FrameCallback = lambda _frame: None) -> p.Compiled:
        """Compiles a recipe without showing it; `on_frame` is called with each frame before the answer."""
        return await self.request(p.Compile(0, recipe, for_comparison=True), on_frame)

    async def run_for_comparison(self, recipe: Recipe) -> p.RunReport:
        """Runs a recipe without showing it."""
        frame = p.Run(0, recipe, for_comparison=True, inputs=self.inputs, equal_nan=self.equal_nan)
        return (await self.request(frame)).report

    async def run_with_values(self, recipe: Recipe) -> p.Ran:
        """Runs a recipe once without showing it.

        The answer contains the inputs and outputs as the content of a `.npz`.
        """
        frame = p.Run(0, recipe, 1, for_comparison=True, inputs=self.inputs, values=True, equal_nan=self.equal_nan)
        return await self.request(frame)

    async def compare_nodes(self, recipe: Recipe, reference: Reference, on_frame: FrameCallback) -> NumericsReport:
        """Compares every node of `recipe` with the reference, and records the report, which the graph table shows.

        `on_frame` is called with the progress.
        """
        timeout = _COMPARISON_TIME_FACTOR * self.timeout
        frame = p.CompareNodes(0, recipe, reference, timeout=timeout, inputs=self.inputs)
        report = (await self.request(frame, on_frame)).report
        self.state.graph_state_of(recipe.graph).record_comparison(recipe, report)
        self.notify(frozenset({"graph", "outputs"}))
        return report

    async def profile(self, recipe: Recipe, on_frame: FrameCallback) -> p.ProfileReport:
        """Profiles a recipe without showing it; `on_frame` is called with the progress."""
        return (await self.request(p.Profile(0, recipe, timeout=self.timeout, inputs=self.inputs), on_frame)).report

    def display_path(self, path: str) -> str:
        """Returns a path on the engine's machine relative to `directory` if the file is in it, or else unchanged."""
        return path.removeprefix(f"{self.directory.rstrip('/')}/") if self.directory else path


def _send_if_running(client: EngineClient, frame: p.Frame) -> None:
    """Sends a frame. If the engine has just exited, does nothing, because the exit is reported separately."""
    from buddy.app.session.client import EngineError

    with contextlib.suppress(EngineError):
        client.send(frame)
