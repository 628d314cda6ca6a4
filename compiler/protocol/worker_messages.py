"""What the engine and its workers say to each other, framed as everything else is (`buddy.compiler.protocol.wire`).

A worker answers each request with any number of notes and then exactly one `Reply`; `Refused` is the reply of a request
that failed. Graphs and artifacts go through the engine as bytes that it never looks into.
"""

from __future__ import annotations

import msgspec

from buddy.compiler.protocol import (
    Assignment,
    Criterion,
    Diagnostic,
    ExportedFile,
    ExportKind,
    Finding,
    GraphInfo,
    OpInfo,
    PassInfo,
    RunReport,
    Stage,
)
from buddy.compiler.protocol.imported_ir import GivenIR
from buddy.compiler.protocol.numerics_report import NumericsReport, Reference
from buddy.compiler.protocol.profile_report import ProfileReport
from buddy.compiler.protocol.recipe import Frontend, PluginFile, Recipe
from buddy.compiler.protocol.run_report import InputChoice


class Message(msgspec.Struct, frozen=True, tag_field="type", tag=True):
    """Base of all messages."""


class Reply(Message, frozen=True):
    """Base of those that end a request."""


class TextData(msgspec.Struct, frozen=True):
    """A stage's text, as `StageText`; `line_sets` holds native unsigned 32-bit numbers.

    `machine` is the machine code of all lines, `machine_sizes` a byte a line that has some or none of it.
    """

    name: str
    content: str
    line_sets: bytes = b""
    sets: tuple[tuple[str, ...], ...] = ((),)
    derived: dict[int, tuple[str, ...]] = {}
    machine: bytes = b""
    machine_sizes: bytes = b""


class StageData(msgspec.Struct, frozen=True):
    """A stage, and its text unless the engine has said that it holds it."""

    stage: Stage
    text: TextData | None = None


# ---- engine to any worker -------------------------------------------------------------------------------------------


class Load(Message, frozen=True):
    """Load plug-ins, run a source and capture its graphs: `Loaded`."""

    source: str
    arguments: tuple[str, ...]
    directory: str
    plugins: tuple[PluginFile, ...] = ()
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False


class ImportGraph(Message, frozen=True):
    """Have torch-mlir import a graph that was captured for this compiler: `GraphWithImport`."""

    graph: int


class NativeCode(msgspec.Struct, frozen=True):
    """What this compiler made of a recipe, and in what time, or why it made nothing."""

    artifact: bytes = b""
    seconds: float = 0.0
    problem: str = ""


class Execute(Message, frozen=True):
    """Run graph number `graph` of the loaded program and compare with eager, in a process of its own: `Executed`.

    `keep` is a folder to leave inputs and outputs in, "" for none. An artifact of
    another backend than this compiler runs beside the `native` code.
    """

    graph: int
    artifact: bytes
    repeats: int
    threads: int
    nodes: tuple[int, int]
    compile_seconds: float
    timeout: float
    inputs: InputChoice = InputChoice()
    values: bool = False
    keep: str = ""
    native: NativeCode | None = None
    equal_nan: bool = False


class Measure(Message, frozen=True):
    """Run graph number `graph` of the loaded program with counters and without, in a process of its own: `Measured`."""

    graph: int
    plain: bytes
    counted: bytes
    repeats: int
    threads: int
    timeout: float
    inputs: InputChoice = InputChoice()


class WatchNodes(Message, frozen=True):
    """Compile graph number `graph` so that it shows its values, run it and compare, in a process of its own: `Watched`.

    The fields are those of `protocol.CompareNodes`.
    """

    graph: int
    recipe: Recipe
    reference: Reference
    own: bool
    every: bool
    timeout: float
    inputs: InputChoice = InputChoice()


class CompileHere(Message, frozen=True):
    """Compile graph number `graph` of the loaded program with what its script registered, as `CompileGraph` does."""

    graph: int
    recipe: Recipe
    known: tuple[str, ...]


class ExportProgram(Message, frozen=True):
    """Write graph number `graph` of the loaded program, compiled by `recipe`, as files: `ProgramExported`.

    `llvm_ir` and `mlir` are texts of stages; the fields from `kinds` on are those of `protocol.Export`.
    """

    graph: int
    recipe: Recipe
    artifact: bytes
    assignments: tuple[Assignment, ...]
    llvm_ir: str
    mlir: str
    kinds: tuple[ExportKind, ...]
    folder: str
    directory: str
    name: str
    force: bool
    command: str


class ExtractNodes(Message, frozen=True):
    """Make one more graph of some nodes of graph number `graph` of the loaded program: `NodesExtracted`."""

    graph: int
    nodes: tuple[str, ...]


class MakeScript(Message, frozen=True):
    """Graph number `graph` of the loaded program as a script: `ScriptMade`."""

    graph: int


class BeginBisection(Message, frozen=True):
    """Bisect graph number `graph` in a process of its own, which speaks to the socket `address`: `Done` at once."""

    graph: int
    recipe: Recipe
    criterion: Criterion
    address: str


class BeginTuning(Message, frozen=True):
    """Try recipes on graph number `graph` in a process of its own, which speaks to the socket `address`: `Done`."""

    graph: int
    address: str


class StopRunner(Message, frozen=True):
    """Kill the runner; the `Execute` or `CompileHere` under way is refused."""


class UsePlugins(Message, frozen=True):
    """Load plug-ins, in a process that has loaded no others: `PluginsUsed`."""

    plugins: tuple[PluginFile, ...]


class AddGraph(Message, frozen=True):
    """Keep a graph under `key`, in place of the one longest unused where there are many: `GraphsKept`."""

    key: str
    graph: bytes


class CompileGraph(Message, frozen=True):
    """Compile graph `key`: `Assignments`, a `StageNote` per stage, then `CompileDone`.

    `known` names the texts that the engine holds.
    """

    key: str
    recipe: Recipe
    known: tuple[str, ...]


class RemarkCode(Message, frozen=True):
    """Have LLVM say what it does to the code of graph `key`: `CodeRemarks`."""

    key: str
    recipe: Recipe


class RemarkHere(Message, frozen=True):
    """As `RemarkCode`, for graph number `graph` of the loaded program with what its script registered."""

    graph: int
    recipe: Recipe


class DescribePasses(Message, frozen=True):
    """The pass catalogue: `PassList`."""


class DescribeOps(Message, frozen=True):
    """The table of ops: `OpList`."""


HostRequest = (
    Load
    | ImportGraph
    | Execute
    | Measure
    | WatchNodes
    | CompileHere
    | ExportProgram
    | RemarkHere
    | ExtractNodes
    | MakeScript
    | BeginBisection
    | BeginTuning
    | StopRunner
)
CompilerRequest = UsePlugins | AddGraph | CompileGraph | RemarkCode | DescribePasses | DescribeOps


# ---- any worker to the engine ---------------------------------------------------------------------------------------


class Ready(Message, frozen=True):
    """The worker has imported what it needs."""

    seconds: float


class Activity(Message, frozen=True):
    """What the request is doing now; `done` in 0..1 where known, else -1."""

    what: str
    done: float = -1.0


class Trouble(Message, frozen=True):
    """A traceback or the like, for the log alone."""

    text: str


class Refused(Reply, frozen=True):
    diagnostic: Diagnostic
    stages: tuple[StageData, ...] = ()


class Done(Reply, frozen=True):
    pass


class GraphsKept(Reply, frozen=True):
    """The keys of all graphs that the compiler worker has now."""

    keys: tuple[str, ...]


class CapturedGraphData(msgspec.Struct, frozen=True):
    info: GraphInfo
    graph: bytes
    fx: StageData
    code: TextData


class Loaded(Reply, frozen=True):
    """`own` is a hash of the code with which the script added to the registries, "" where it added nothing.

    `files` are those that the program is made of.
    """

    graphs: tuple[CapturedGraphData, ...]
    notes: tuple[str, ...]
    seconds: float
    own: str = ""
    files: tuple[str, ...] = ()


class GraphImported(Reply, frozen=True):
    """What another frontend made of a graph beside its nodes."""

    given: GivenIR


class GraphWithImport(Reply, frozen=True):
    """A graph as it was captured, with what another frontend makes of it beside its nodes."""

    graph: CapturedGraphData


class ProgramExported(Reply, frozen=True):
    folder: str
    files: tuple[ExportedFile, ...]


class NodesExtracted(Reply, frozen=True):
    graph: CapturedGraphData


class ScriptMade(Reply, frozen=True):
    name: str
    text: str
    values: bytes


class BisectionDone(Reply, frozen=True):
    finding: Finding


class RunnerState(Message, frozen=True):
    """The runner began (`running`) or ended, or a signal has stopped it."""

    running: bool
    what: str = ""
    stopped: bool = False


class Executed(Reply, frozen=True):
    """`values` is a `.npz` of inputs and outputs, where it was asked for."""

    report: RunReport
    values: bytes = b""


class Watched(Reply, frozen=True):
    report: NumericsReport


class Measured(Reply, frozen=True):
    report: ProfileReport


class Assignments(Message, frozen=True):
    assignments: tuple[Assignment, ...]


class StepNote(Message, frozen=True):
    """The compiler begins step `step` of the recipe, or `LOWERING` or `CODE`."""

    step: int


class StageNote(Message, frozen=True):
    data: StageData


class CompileDone(Reply, frozen=True):
    stages: tuple[StageData, ...]
    artifact: bytes
    assignments: tuple[Assignment, ...]
    remarks: tuple[tuple[str, str, str], ...]
    seconds: float
    reused: int


class CodeRemarks(Reply, frozen=True):
    """As `Compiled.remarks`."""

    remarks: tuple[tuple[str, str, str], ...]


class PluginsUsed(Reply, frozen=True):
    """What was wrong with those that failed, installed ones among them."""

    problems: tuple[Diagnostic, ...]


class PassList(Reply, frozen=True):
    passes: tuple[PassInfo, ...]


class OpList(Reply, frozen=True):
    ops: tuple[OpInfo, ...]


CompilerNote = Activity | Trouble | Assignments | StepNote | StageNote
HostMessage = (
    Ready
    | CompilerNote
    | RunnerState
    | Loaded
    | Executed
    | Measured
    | Watched
    | CompileDone
    | CodeRemarks
    | GraphWithImport
    | NodesExtracted
    | ProgramExported
    | ScriptMade
    | Done
    | Refused
)
# What a process that bisects says.
BisectionMessage = Activity | Trouble | BisectionDone | Refused
CompilerMessage = (
    Ready | CompilerNote | CompileDone | CodeRemarks | PluginsUsed | PassList | OpList | GraphsKept | Refused
)
