"""The host worker: runs the user's script, captures its graphs, and holds weights, inputs and the eager callables.

Compiled code runs in a forked process, since it may crash. The host uses one thread: if it had used torch's thread
pool, a forked process would hang in its first parallel op.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
import time
from array import array
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from buddy.compiler.engine.runner_process import (
    collect_remarks_in_child,
    compare_nodes_in_child,
    compile_in_child,
    export_in_child,
    prepare_in_child,
    profile_in_child,
    run_in_child,
    start_bisection,
    start_tuning,
)
from buddy.compiler.graph import plugins
from buddy.compiler.protocol import Diagnostic, Stage
from buddy.compiler.protocol.errors import BuddyError, diagnostic_of
from buddy.compiler.protocol.recipe import OWN_FRONTENDS
from buddy.compiler.protocol.worker_messages import (
    Activity,
    CapturedGraphData,
    CollectRemarksInHost,
    CompareGraphNodes,
    CompileInHost,
    Execute,
    ExportProgram,
    ExtractNodes,
    FailureReply,
    GraphWithImport,
    HostRequest,
    ImportGraph,
    LoadProgram,
    LogText,
    MakeScript,
    NodesExtracted,
    PrepareRun,
    ProfileGraph,
    ProgramLoaded,
    PythonText,
    Ready,
    Reply,
    ScriptMade,
    StageData,
    StartBisection,
    StartTuning,
    TextData,
)
from buddy.compiler.support.processes.channel import Channel, make_text_data, serves, traceback_of

if TYPE_CHECKING:
    from buddy.compiler.importers.sources.program import CapturedProgram
    from buddy.compiler.protocol import NodeRow
    from buddy.compiler.protocol.worker_messages import Message
    from buddy.compiler.runtime.captured import CapturedGraph


# How long the host waits for a first request, in seconds. If none arrives, the host captures a small program.
_WARM_UP_DELAY = 0.05


class ImportFailed(BuddyError):
    """The frontend can import none of a program's graphs; `diagnostic` is the reason for the first graph."""


class Host:
    """Answers requests about the program that was loaded last."""

    def __init__(self, channel: Channel, problem: Diagnostic | None = None) -> None:
        """`problem` is the reason why no program can be loaded, if any; the host then rejects all requests with it."""
        self._channel, self._problem = channel, problem
        self._program: Any = None

    def serve(self) -> None:
        while (request := self._channel.receive()) is not None:
            # Other messages, such as a `StopRunner` whose request has been answered meanwhile, get no reply.
            if self._problem is not None:
                self._channel.send(FailureReply(self._problem))
            elif isinstance(request, LoadProgram):
                self._channel.send(self._load(request))
            elif type(request) in _CHILD_HANDLERS:
                self._channel.send(self._handle_in_child(request, _CHILD_HANDLERS[type(request)]))
            elif isinstance(request, ExtractNodes | MakeScript | StartBisection | StartTuning):
                self._channel.send(self._handle_in_host(request))

    def _load(self, request: LoadProgram) -> Reply:
        started, started_at = time.perf_counter(), time.time()
        try:
            problems = _load_plugins(request)
            registrations_before = plugins.plugin_registrations()
            program = self._program = _load_program(request, self._progress)
            if request.frontend not in OWN_FRONTENDS:
                self._import_graphs(request.frontend)
            return ProgramLoaded(
                graphs=tuple(_graph_data(captured) for captured in program.graphs),
                notes=(*map(str, problems), *program.notes),
                registrations=_hash_registrations(program, registrations_before),
                files=program.files,
                texts=_python_texts(program, started_at),
                seconds=time.perf_counter() - started,
                known_graph=program.known_graph,
                is_reused=program.is_reused,
            )
        except BaseException as error:
            self._channel.send(LogText(traceback_of(error)))
            source = request.source
            what, todo = f"{source} could not be loaded", "see the log for its traceback"
            return FailureReply(diagnostic_of(error, what, source, todo))
        finally:
            _flush()

    def _import_graphs(self, frontend: str) -> None:
        """Imports each graph with `frontend`; adds a note for each that is rejected.

        Raises `ImportFailed` if all graphs are rejected.
        """
        from buddy.compiler.frontend.torch_dialect import import_in_child

        without_import = [captured for captured in self._program.graphs if captured.graph.imported_ir is None]
        self._progress(f"importing by {frontend}")
        diagnostics = []
        for captured in without_import:
            reply = import_in_child(self._channel, captured)
            if isinstance(reply, FailureReply):
                diagnostics.append(reply.diagnostic)
            else:
                captured.graph.imported_ir = reply.imported
        if without_import and len(diagnostics) == len(without_import):
            raise ImportFailed(diagnostics[0])
        self._program.notes.extend(map(str, diagnostics))

    def _handle_in_host(self, request: Any) -> Reply:
        """Handles a request about a graph in this process, without a fork."""
        if self._program is None or request.graph >= len(self._program.graphs):
            return _not_loaded(request.graph)
        captured = self._program.graphs[request.graph]
        if (rejection := _rejection(captured, request)) is not None:
            return rejection
        try:
            if isinstance(request, MakeScript):
                return _make_script(captured)
            if isinstance(request, StartBisection):
                return start_bisection(captured, request)
            if isinstance(request, StartTuning):
                return start_tuning(captured, request)
            self._program.graphs.append(_extract(captured, request))
            return NodesExtracted(_graph_data(self._program.graphs[-1]))
        except Exception as error:
            self._channel.send(LogText(traceback_of(error)))
            return FailureReply(Diagnostic(str(error), captured.info.name, "choose other nodes"))

    def _handle_in_child(self, request: Any, handle: Callable[[Channel, Any, Any], Reply]) -> Reply:
        """Handles a request about a graph by `handle`, which forks a child process for it."""
        if self._program is None or request.graph >= len(self._program.graphs):
            return _not_loaded(request.graph)
        captured = self._program.graphs[request.graph]
        return _rejection(captured, request) or handle(self._channel, captured, request)

    def _progress(self, activity: str) -> None:
        """Reports an activity. Importers call the run of a script "running …"; the others are parts of the capture."""
        self._channel.send(Activity(activity, part="script" if activity.startswith("running ") else "capture"))


def _import_graph(channel: Channel, captured: CapturedGraph, _request: ImportGraph) -> Reply:
    """Adds the import by torch-mlir to the graph, unless the graph has it."""
    from buddy.compiler.frontend.torch_dialect import import_in_child

    if captured.graph.imported_ir is None:
        reply = import_in_child(channel, captured)
        if isinstance(reply, FailureReply):
            return reply
        captured.graph.imported_ir = reply.imported
    return GraphWithImport(_graph_data(captured))


# The functions that handle requests about a graph in a fork of this process; each gets the channel to the engine, the
# graph and the request.
_CHILD_HANDLERS: dict[type, Callable[[Channel, Any, Any], Reply]] = {
    ImportGraph: _import_graph,
    Execute: run_in_child,
    PrepareRun: prepare_in_child,
    ProfileGraph: profile_in_child,
    CompareGraphNodes: compare_nodes_in_child,
    ExportProgram: export_in_child,
    CompileInHost: compile_in_child,
    CollectRemarksInHost: collect_remarks_in_child,
}


def _load_plugins(request: LoadProgram) -> tuple[Diagnostic, ...]:
    """Loads the installed plug-ins and those of the request; returns the problems of those that cannot be loaded."""
    return plugins.plugin_problems([*plugins.installed_plugins(), *map(plugins.load_plugin_file, request.plugins)])


def _not_loaded(graph: int) -> FailureReply:
    return FailureReply(Diagnostic(f"graph {graph} is not loaded", todo="open the source again"))


def _rejection(captured: CapturedGraph, request: Message) -> FailureReply | None:
    """Returns the rejection of a request that needs PyTorch ops or an eager program that the graph lacks, or `None`."""
    starts_as_ir = captured.graph.imported_ir is not None and not captured.graph.imported_ir.frontend
    name = captured.info.name
    if starts_as_ir and isinstance(request, CompareGraphNodes | ExtractNodes | MakeScript):
        what = f"{name} starts as IR: its nodes are not PyTorch ops, so they cannot run one by one"
        return FailureReply(Diagnostic(what, name, "open the model that the IR was made from, if you have it"))
    if captured.eager is None and isinstance(request, StartBisection | StartTuning):
        what = f"{name} has no eager program to compare with"
        return FailureReply(Diagnostic(what, name, "open the model that the graph was made from, if you have it"))
    return None


def _extract(captured: CapturedGraph, request: ExtractNodes) -> CapturedGraph:
    from buddy.compiler.tools.extract import extract

    return extract(captured, request.nodes)


def _make_script(captured: CapturedGraph) -> ScriptMade:
    from buddy.compiler.tools.extract import Subgraph, make_script

    script = make_script(Subgraph(captured.graph, captured.tensors, captured.numbers))
    return ScriptMade(script.name, script.text, script.values)


def _hash_registrations(program: CapturedProgram, before: dict[plugins.RegistrationKey, object]) -> str:
    """Returns a hash of the code by which a program's script has added to the registries, "" if it added nothing.

    `before` are the registrations before the script ran.
    """
    preferred = [lowering for captured in program.graphs for lowering in (captured.user_lowerings() or {}).values()]
    return plugins.code_hash([*plugins.registered_since(before).values(), *preferred])


def _load_program(request: LoadProgram, progress: Callable[[str], None]) -> CapturedProgram:
    from buddy.compiler.importers.sources import load_program

    shapes, frontend, trusts = request.shapes, request.frontend, request.trusts
    return load_program(
        request.source, request.arguments, request.directory, progress, shapes, frontend, trusts, request.known_graph
    )


def _python_texts(program: CapturedProgram, started_at: float) -> tuple[PythonText, ...]:
    """Returns the code that the nodes of a program come from.

    `started_at` is the time at which the program was started, in seconds since the epoch.
    """
    from buddy.compiler.importers.sources.program import python_texts

    return python_texts([captured.info for captured in program.graphs], program.files, started_at)


def _graph_data(captured: CapturedGraph) -> CapturedGraphData:
    from buddy.compiler.graph.serialization import to_bytes

    code = _code_text(captured)
    info = msgspec.structs.replace(captured.info, code=code.name)
    return CapturedGraphData(info, to_bytes(captured.graph), _fx_stage(captured), code)


def _code_text(captured: CapturedGraph) -> TextData:
    """Returns the ATen graph as Python text, with the node of each line."""
    from buddy.compiler.frontend.graph_info import code_lines

    rows = captured.info.rows
    line_sets = array("I", code_lines(captured.code, rows))
    return make_text_data(captured.code, line_sets.tobytes(), _node_sets(rows))[0]


def _fx_stage(captured: CapturedGraph) -> StageData:
    """Returns the ATen graph in the format of `print_tabular`: a heading, a rule, then one line per node."""
    table = captured.table.rstrip("\n") + "\n"
    rows = captured.info.rows
    line_sets = array("I", [0, 0, *range(1, len(rows) + 1)])  # the heading and the rule have no node
    text, lines = make_text_data(table, line_sets.tobytes(), _node_sets(rows))
    ops = sum(row.opcode.startswith("call_") for row in rows)
    return StageData(Stage(0, "fx", "torch", text.name, lines, ops=ops, language="fx", origins=(len(rows), 0, 0)), text)


def _node_sets(rows: Sequence[NodeRow]) -> tuple[tuple[str, ...], ...]:
    """Returns the sets of nodes that lines of a text refer to by number: 0 is empty, n has the node of row n - 1."""
    return ((), *((row.stable,) for row in rows))


def _flush() -> None:
    """Flushes the output of the script, which may have closed or replaced its streams."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()


def _warm_up() -> Diagnostic | None:
    """Imports what every program needs; returns the error if torch or MLIR's bindings cannot be imported."""
    try:
        import torch
    except (ImportError, OSError) as error:  # not installed; a library of it is missing or of another machine
        what = f"PyTorch cannot be imported: {str(error).strip() or type(error).__name__}"
        return Diagnostic(what, sys.executable, f"install it for this Python: {sys.executable} -m pip install torch")

    from buddy.compiler.mlir.bindings import BindingsError

    torch.set_num_threads(1)
    try:
        for module in ("importers.sources", "frontend", "runtime"):
            importlib.import_module(f"buddy.compiler.{module}")
    except BindingsError as error:
        return error.diagnostic
    plugins.installed_plugins()
    return None


def _capture_small_program() -> None:
    """Captures a small program, because the first capture takes a second longer, for Dynamo's imports and setup."""
    import torch
    from torch.nn import functional

    from buddy.compiler.frontend.capture import capture

    def program(x: torch.Tensor) -> torch.Tensor:
        return functional.layer_norm(functional.gelu(functional.linear(x, x)), (2,))

    capture(program, (torch.ones(2, 2),))


# The thresholds of the garbage collector for its three generations; those of Python 3.11 are 700, 10 and 10.
_COLLECTOR_THRESHOLDS = (10_000, 20, 20)


@serves(HostRequest)
def serve(channel: Channel) -> None:
    """Runs the process of the host until the engine closes the channel."""
    started = time.perf_counter()
    # Python would buffer output to a pipe in blocks; the user expects to see each line as it is printed.
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    # Imports make hardly any garbage. Without the modules' objects, later collections take a fraction of the time.
    gc.disable()
    problem = _warm_up()
    gc.freeze()
    # A capture creates a million objects, few of them garbage: with Python's own thresholds it takes 6 % longer.
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)
    gc.enable()
    channel.send(Ready(time.perf_counter() - started))
    if problem is None and not channel.has_input(_WARM_UP_DELAY):
        _capture_small_program()
    Host(channel, problem).serve()
