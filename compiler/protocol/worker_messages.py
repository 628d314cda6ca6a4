"""The messages between the engine and its workers, encoded as frames by `buddy.compiler.protocol.connection`.

The host worker runs the user's program, and the compiler worker compiles graphs without running user code. A worker
answers each request with any number of notes and then exactly one `Reply`; `FailureReply` is the reply to a request
that failed. The engine passes graphs and artifacts on as opaque bytes.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol import (
    Assignment,
    BisectionResult,
    Criterion,
    Diagnostic,
    ExportedFile,
    GraphInfo,
    OpInfo,
    Part,
    PassInfo,
    RunReport,
    Stage,
)
from buddy.compiler.protocol.catalogue import FlagInfo
from buddy.compiler.protocol.numerics import NumericsReport, Reference
from buddy.compiler.protocol.plain_values import BackendInfo, ImportedIR, PluginInfo
from buddy.compiler.protocol.profile import ProfileReport
from buddy.compiler.protocol.recipe import NATIVE, Frontend, PluginFile, Recipe
from buddy.compiler.protocol.run_report import InputChoice, Mark, NodeCounts


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Base of all messages."""


class Reply(Message, frozen=True):
    """Base of the messages that end a request."""


class TextData(msgspec.Struct, frozen=True):
    """A stage's text, like `text.store.StageText`; `line_sets` holds native unsigned 32-bit numbers.

    `machine` is the machine code of all lines, one after another; `machine_sizes` has one byte per line, the size of
    its code. Both are empty for a text without machine code.
    """

    name: str
    content: str
    line_sets: bytes = b""
    sets: tuple[tuple[str, ...], ...] = ((),)
    derived: dict[int, tuple[str, ...]] = {}
    machine: bytes = b""
    machine_sizes: bytes = b""


class StageData(msgspec.Struct, frozen=True):
    """A stage, and its text unless the engine already has it."""

    stage: Stage
    text: TextData | None = None


# ---- engine to any worker -------------------------------------------------------------------------------------------


class LoadProgram(Message, frozen=True):
    """Load plug-ins, run a source and capture its graphs; answered by `ProgramLoaded`.

    The fields up to `trusts` are those of `protocol.Open`. `known_graph` is `ProgramLoaded.known_graph` of an earlier
    load, or b"": if the program still computes the same results, its graph is not captured again.
    """

    source: str
    arguments: tuple[str, ...]
    directory: str
    plugins: tuple[PluginFile, ...] = ()
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False
    known_graph: bytes = b""


class ImportGraph(Message, frozen=True):
    """Import the captured graph number `graph` by torch-mlir in addition; answered by `GraphWithImport`."""

    graph: int


class NativeCode(msgspec.Struct, frozen=True):
    """This compiler's code for a recipe and the compile time, or the reason why compilation failed."""

    artifact: bytes = b""
    seconds: float = 0.0
    problem: str = ""


class Execute(Message, frozen=True):
    """Run graph number `graph` of the loaded program in a separate process and compare it with eager.

    Answered by `Executed`.

    `values_folder` is the folder to save inputs and outputs in, or ""; with `values`, the answer contains them. If
    `backend` is another compiler, `artifact` is its code, and `native` is this compiler's code, which runs interleaved
    with it. `equal_nan`, `runtimes` and `mark` are those of `Run`.
    """

    graph: int
    artifact: bytes
    repeats: int
    threads: int
    nodes: NodeCounts
    compile_seconds: float
    timeout: float
    inputs: InputChoice = InputChoice()
    values: bool = False
    values_folder: str = ""
    native: NativeCode | None = None
    equal_nan: bool = False
    runtimes: tuple[str, ...] = ()
    mark: Mark = "auto"
    backend: str = NATIVE


class PrepareRun(Message, frozen=True):
    """Run graph number `graph` of the loaded program in eager and in double precision, in a separate process.

    Saves what the verdict of an `Execute` on the same inputs needs. Answered by `Done`.
    """

    graph: int
    threads: int
    timeout: float
    inputs: InputChoice = InputChoice()


class ProfileGraph(Message, frozen=True):
    """Profile graph number `graph` of the loaded program in a separate process; answered by `GraphProfiled`.

    `plain` is the artifact without counters, `counted` the artifact with them.
    """

    graph: int
    plain: bytes
    counted: bytes
    repeats: int
    threads: int
    timeout: float
    inputs: InputChoice = InputChoice()


class CompareGraphNodes(Message, frozen=True):
    """Compile graph number `graph` with instrumentation, run it and compare its nodes, in a separate process.

    Answered by `GraphNodesCompared`. The other fields are those of `protocol.CompareNodes`.
    """

    graph: int
    recipe: Recipe
    reference: Reference
    own_errors: bool
    every: bool
    timeout: float
    inputs: InputChoice = InputChoice()


class CompileInHost(Message, frozen=True):
    """Compile graph number `graph` in the host; answered like `CompileGraph`.

    Only the host has the ops, passes and lowerings that the program's script has registered.
    """

    graph: int
    recipe: Recipe
    known_texts: tuple[str, ...]


class ExportProgram(Message, frozen=True):
    """Export graph number `graph` of the loaded program, compiled with `recipe`, as files.

    Answered by `ProgramExported`. `llvm_ir` and `mlir` are the texts of these stages. The fields from `kinds` on are
    those of `protocol.Export`.
    """

    graph: int
    recipe: Recipe
    artifact: bytes
    assignments: tuple[Assignment, ...]
    llvm_ir: str
    mlir: str
    kinds: tuple[str, ...]
    folder: str
    directory: str
    name: str
    force: bool
    command: str


class ExtractNodes(Message, frozen=True):
    """Extract nodes of graph number `graph` of the loaded program as another graph; answered by `NodesExtracted`."""

    graph: int
    nodes: tuple[str, ...]


class MakeScript(Message, frozen=True):
    """Write graph number `graph` of the loaded program as a script; answered by `ScriptMade`."""

    graph: int


class StartBisection(Message, frozen=True):
    """Start a bisection of graph number `graph` in a separate process, which reports over the socket `address`.

    Answered by `Done` when the process has started.
    """

    graph: int
    recipe: Recipe
    criterion: Criterion
    address: str


class StartTuning(Message, frozen=True):
    """Start a separate process that tries recipes on graph number `graph`, as requested over the socket `address`.

    Answered by `Done` when the process has started.
    """

    graph: int
    address: str


class StopRunner(Message, frozen=True):
    """Kill the runner; the request that it is executing, such as `Execute` or `CompileInHost`, fails."""


class LoadPlugins(Message, frozen=True):
    """Load plug-ins, in a process that has loaded no others; answered by `PluginsLoaded`."""

    plugins: tuple[PluginFile, ...]


class StoreGraph(Message, frozen=True):
    """Store an encoded graph under `key`; answered by `GraphsStored`. May evict the least recently used graph."""

    key: str
    graph: bytes


class CompileGraph(Message, frozen=True):
    """Compile graph `key`; answered by `Assignments`, a `StageNote` per stage, then `CompileDone`.

    `known_texts` names the texts that the engine already has. Without `stages`, stages are sent only if the compilation
    fails.
    """

    key: str
    recipe: Recipe
    known_texts: tuple[str, ...]
    stages: bool = True


class CollectRemarks(Message, frozen=True):
    """Collect LLVM's remarks on the code of graph `key`; answered by `CodeRemarks`."""

    key: str
    recipe: Recipe


class CollectRemarksInHost(Message, frozen=True):
    """Collect LLVM's remarks in the host, for a graph that `CompileInHost` compiles; answered by `CodeRemarks`."""

    graph: int
    recipe: Recipe


class DescribePasses(Message, frozen=True):
    """List the pass catalogue; answered by `PassList`."""


class DescribeOps(Message, frozen=True):
    """List the ops; answered by `OpList`."""


HostRequest = (
    LoadProgram
    | ImportGraph
    | Execute
    | PrepareRun
    | ProfileGraph
    | CompareGraphNodes
    | CompileInHost
    | ExportProgram
    | CollectRemarksInHost
    | ExtractNodes
    | MakeScript
    | StartBisection
    | StartTuning
    | StopRunner
)
CompilerRequest = LoadPlugins | StoreGraph | CompileGraph | CollectRemarks | DescribePasses | DescribeOps


# ---- any worker to the engine ---------------------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """The worker has started and imported its modules, in this many seconds."""

    seconds: float


class Activity(Message, frozen=True):
    """The current activity of the worker for the request; the fields are those of `Progress`."""

    activity: str
    done: float = -1.0
    part: Part | Literal[""] = ""


class LogText(Message, frozen=True):
    """A traceback or a similar text, for the log only."""

    text: str


class FailureReply(Reply, frozen=True):
    """The request failed. `stages` are those that a compilation had completed."""

    diagnostic: Diagnostic
    stages: tuple[StageData, ...] = ()


class Done(Reply, frozen=True):
    """The request succeeded and has no result."""


class GraphsStored(Reply, frozen=True):
    """The keys of all graphs that the compiler worker stores."""

    keys: tuple[str, ...]


class CapturedGraphData(msgspec.Struct, frozen=True):
    """A captured graph: its description `info`, the encoded Buddy graph, the stage `fx`, and its Python `code`."""

    info: GraphInfo
    graph: bytes
    fx: StageData
    code: TextData


class PythonText(msgspec.Struct, frozen=True, omit_defaults=True):
    """The Python code that nodes come from, as it was captured, under the name `path` of their locations.

    `problem` is the reason why `content` is empty. `is_file` is false for code without a file; `changed` means that the
    file was written after the program had started, so its code may be other than the code that ran.
    """

    path: str
    content: str = ""
    problem: str = ""
    is_file: bool = True
    changed: bool = False


class ProgramLoaded(Reply, frozen=True):
    """The captured graphs of a program.

    `registrations` is a hash of the code by which the script added to the registries, "" if it added nothing. `files`
    are the source files of the program, `texts` the Python code that nodes of the graphs come from.

    `known_graph` describes the graph for later loads; it is b"" if the graph must be captured each time. If `is_reused`
    is set, the graph was not captured again, and the host can only run it.
    """

    graphs: tuple[CapturedGraphData, ...]
    notes: tuple[str, ...]
    seconds: float
    registrations: str = ""
    files: tuple[str, ...] = ()
    texts: tuple[PythonText, ...] = ()
    known_graph: bytes = b""
    is_reused: bool = False


class GraphImported(Reply, frozen=True):
    """A graph's import by another frontend."""

    imported: ImportedIR


class GraphWithImport(Reply, frozen=True):
    """A captured graph together with its import by another frontend."""

    graph: CapturedGraphData


class ProgramExported(Reply, frozen=True):
    """The files that were written to `folder`."""

    folder: str
    files: tuple[ExportedFile, ...]


class NodesExtracted(Reply, frozen=True):
    """The extracted nodes as another graph of the program."""

    graph: CapturedGraphData


class ScriptMade(Reply, frozen=True):
    """The fields are those of `protocol.Script`."""

    name: str
    text: str
    values: bytes


class BisectionDone(Reply, frozen=True):
    """The result of the bisection."""

    finding: BisectionResult


class RunnerState(Message, frozen=True):
    """The runner started (`running`), exited for a `reason`, or was stopped by a signal."""

    running: bool
    reason: str = ""
    stopped: bool = False


class Executed(Reply, frozen=True):
    """The result of a run. `values` is a `.npz` of inputs and outputs, if requested."""

    report: RunReport
    values: bytes = b""


class GraphNodesCompared(Reply, frozen=True):
    """The comparison of nodes with the reference."""

    report: NumericsReport


class GraphProfiled(Reply, frozen=True):
    """The profile of a run."""

    report: ProfileReport


class Assignments(Message, frozen=True):
    """The lowerings of all nodes, sent before the first stage."""

    assignments: tuple[Assignment, ...]


class StepNote(Message, frozen=True):
    """The compiler starts step `step` of the recipe, or `recipe.LOWERING_STEP` or `recipe.CODE_STEP`."""

    step: int


class StageNote(Message, frozen=True):
    """The compiler has completed a stage."""

    data: StageData


class CompileDone(Reply, frozen=True):
    """The result of a compilation; most fields are those of `protocol.Compiled`."""

    stages: tuple[StageData, ...]
    artifact: bytes
    assignments: tuple[Assignment, ...]
    remarks: tuple[tuple[str, str, str], ...]
    seconds: float
    reused: int


class CodeRemarks(Reply, frozen=True):
    """LLVM's remarks, in the form of `protocol.Compiled.remarks`."""

    remarks: tuple[tuple[str, str, str], ...]


class PluginsLoaded(Reply, frozen=True):
    """The errors of the plug-ins that failed to load, including plug-ins of installed packages."""

    problems: tuple[Diagnostic, ...]


class InductorFlags(Message, frozen=True):
    """The versions of Inductor's packages, its settings, and the reason why it rejects a recipe's flags, if it does."""

    versions: dict[str, str]
    flags: tuple[FlagInfo, ...]
    problem: str = ""


class PassList(Reply, frozen=True):
    """The passes, the backends that a recipe may name, and the plug-ins of installed packages."""

    passes: tuple[PassInfo, ...]
    backends: tuple[BackendInfo, ...] = ()
    plugins: tuple[PluginInfo, ...] = ()


class OpList(Reply, frozen=True):
    """The ops that can be compiled."""

    ops: tuple[OpInfo, ...]


CompilerNote = Activity | LogText | Assignments | StepNote | StageNote
HostMessage = (
    Ready
    | CompilerNote
    | RunnerState
    | ProgramLoaded
    | Executed
    | GraphProfiled
    | GraphNodesCompared
    | CompileDone
    | CodeRemarks
    | GraphWithImport
    | NodesExtracted
    | ProgramExported
    | ScriptMade
    | Done
    | FailureReply
)
# The messages of a bisection process.
BisectionMessage = Activity | LogText | BisectionDone | FailureReply
CompilerMessage = (
    Ready | CompilerNote | CompileDone | CodeRemarks | PluginsLoaded | PassList | OpList | GraphsStored | FailureReply
)
