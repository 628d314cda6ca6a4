"""The frames that a client (workbench, command line) and the engine exchange. Imports neither torch nor MLIR.

A frame on the wire is a 4-byte little-endian length and a MessagePack map whose `type` field names the frame. The first
frame each way is a greeting that carries `PROTOCOL_VERSION`; a peer of another version is refused with both named.
Requests carry a `request` number chosen by the client; every frame that answers one repeats it.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.plain_values import Assignment, Diagnostic, GraphInfo, OpInfo, PassInfo, Preset, Stage
from buddy.compiler.plain_values import NodeRow as NodeRow
from buddy.compiler.plain_values import OptionInfo as OptionInfo
from buddy.compiler.recipe import PassStep, PluginFile, Recipe
from buddy.compiler.run_report import InputChoice, RunReport
from buddy.compiler.run_report import Memory as Memory
from buddy.compiler.run_report import OutputReport as OutputReport
from buddy.compiler.run_report import Timing as Timing

PROTOCOL_VERSION = 2
MAX_FRAME = 1 << 30


class Frame(msgspec.Struct, frozen=True, tag_field="type", tag=True, omit_defaults=True):
    """Base of all frames."""


# ---- client to engine -----------------------------------------------------------------------------------------------


class Hello(Frame, frozen=True, omit_defaults=False):
    """The greeting; its version is written out even where it is the default."""

    version: int = PROTOCOL_VERSION
    client: str = "buddy-tui"


class Open(Frame, frozen=True):
    """Run `source` and capture its graphs. Answered by `Progress`, `Printout`, then `Captured` or `Failed`.

    `plugins` are loaded first. One that has another hash than its file is told of in the notes.
    """

    request: int
    source: str
    arguments: tuple[str, ...] = ()
    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()


class Compile(Frame, frozen=True):
    """Compile a recipe: `Assigned`, a `StageDone` per stage, then `Compiled` or `Failed`.

    A newer `Compile` replaces one that has not begun; one that runs is finished unless cancelled. One `beside` the
    recipe on the screen, for comparing, replaces none and is replaced by none.
    """

    request: int
    recipe: Recipe
    beside: bool = False


class Run(Frame, frozen=True):
    """Compile if needed, run, and compare with eager: the frames of `Compile`, then `Ran` or `Failed`.

    `beside` is as for `Compile`. With `values`, `Ran` brings inputs and outputs, too.
    """

    request: int
    recipe: Recipe
    repeats: int = 10
    timeout: float = 120.0
    beside: bool = False
    inputs: InputChoice = InputChoice()
    values: bool = False


class Cancel(Frame, frozen=True):
    """Stop request number `target`; 0 stops everything under way. The request ends with `Failed(cancelled=True)`."""

    target: int = 0


class FetchLines(Frame, frozen=True):
    request: int
    text: str
    start: int
    count: int


class FetchText(Frame, frozen=True):
    """The whole of a text in one `Text` frame: for `dump` and for writing a stage to a file."""

    request: int
    text: str


class Search(Frame, frozen=True):
    """Line numbers in `text` that hold `pattern` (a plain string, or a regular expression)."""

    request: int
    text: str
    pattern: str
    regex: bool = False
    ignore_case: bool = False
    limit: int = 10_000


class SearchEach(Frame, frozen=True):
    """Search several texts, equal ones once: `FoundEach`, with the first `excerpts` lines found in each text.

    Texts that are no longer kept are left out.
    """

    request: int
    texts: tuple[str, ...]
    pattern: str
    regex: bool = False
    ignore_case: bool = False
    excerpts: int = 200
    limit: int = 10_000


class ListSymbols(Frame, frozen=True):
    """The functions, globals and graphs of `text`: `Symbols`."""

    request: int
    text: str
    language: str


class FindRegion(Frame, frozen=True):
    """The region that line `line` of `text` opens, or else is in: `Region`."""

    request: int
    text: str
    line: int


class FetchCharacters(Frame, frozen=True):
    """`count` characters of a line from `start`, constants and all: `Characters`."""

    request: int
    text: str
    line: int
    start: int = 0
    count: int = 1 << 16


class Reprint(Frame, frozen=True):
    """Print a text of MLIR anew in MLIR's generic form, as a text of its own: `Reprinted`."""

    request: int
    text: str


class DescribeOp(Frame, frozen=True):
    """What the dialect's own documentation says of the op `name`, such as `linalg.generic`: `OpSummary`."""

    request: int
    name: str


class FindNode(Frame, frozen=True):
    """Line numbers in `text` that come from the FX node with the stable name `node`; answered by `Found`."""

    request: int
    text: str
    node: str
    limit: int = 10_000


class Compare(Frame, frozen=True):
    """Where the text `after` differs from `before`: line by line, or `structural`; answered by `Compared`.

    Structural differences leave out lines of `language` in which only numbering, the order of attributes, locations or
    comments changed.
    """

    request: int
    before: str
    after: str
    how: Literal["line", "structural"] = "line"
    language: str = "mlir"


class ListPasses(Frame, frozen=True):
    request: int
    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()


class ListOps(Frame, frozen=True):
    request: int
    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()


class ListPresets(Frame, frozen=True):
    request: int


class CheckIr(Frame, frozen=True):
    """Whether `content` is a module that parses and verifies; answered by `IrChecked`."""

    request: int
    content: str


class TryPasses(Frame, frozen=True):
    """What each of `candidates` would do to the module `text`: a `Tried` each, then `TriedAll`.

    A candidate gets `each` seconds, all of them together `timeout`.
    """

    request: int
    text: str
    candidates: tuple[PassStep, ...]
    threads: int = 1
    each: float = 5.0
    timeout: float = 60.0


class Shutdown(Frame, frozen=True):
    """End the engine and its workers."""


# ---- engine to client -----------------------------------------------------------------------------------------------


class Welcome(Frame, frozen=True):
    version: int
    engine: str
    pid: int
    target: str = ""
    packages: dict[str, str] = {}
    cores: int = 1


class Progress(Frame, frozen=True):
    """What a request is doing now; `done` in 0..1 where it is known, else -1."""

    request: int
    what: str
    done: float = -1.0


class Printout(Frame, frozen=True):
    """Text that the user's program printed."""

    text: str
    stream: Literal["stdout", "stderr"] = "stdout"


class Captured(Frame, frozen=True):
    """The graphs of a program, and the plug-ins as they were loaded, which recipes of it must name."""

    request: int
    graphs: tuple[GraphInfo, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    plugins: tuple[PluginFile, ...] = ()


class Assigned(Frame, frozen=True):
    request: int
    graph: int
    assignments: tuple[Assignment, ...]


class StageDone(Frame, frozen=True):
    request: int
    graph: int
    stage: Stage


# Who remarks on a choice of the recipe that could not be followed; all other remarks come from passes.
IN_VAIN = "recipe"
# How a node that a graph pass took out is lowered: others do its work.
FOLDED = "folded"


class Compiled(Frame, frozen=True):
    """The compilation is whole: all its stages in order, and how long it took (`reused` stages cost nothing).

    `remarks` are (pass or `IN_VAIN`, node, text).
    """

    request: int
    graph: int
    stages: tuple[Stage, ...]
    seconds: float
    reused: int = 0
    remarks: tuple[tuple[str, str, str], ...] = ()


class Ran(Frame, frozen=True):
    """`values` is a `.npz` of `input/NAME`, `output/NAME` and `eager/NAME`, where it was asked for."""

    request: int
    report: RunReport
    values: bytes = b""


class Failed(Frame, frozen=True):
    """The request ended without its result. Stages sent before stay valid; `stages` may add the IR at the failure."""

    request: int
    diagnostic: Diagnostic
    cancelled: bool = False
    stages: tuple[Stage, ...] = ()


class WorkerState(Frame, frozen=True):
    """A worker (`host`, `compiler`, `runner`) changed state; `what` says why, in words for a person."""

    worker: str
    state: Literal["starting", "ready", "busy", "dead"]
    what: str = ""


class Lines(Frame, frozen=True):
    """Lines `start`… of a text. `nodes[i]` are indices into `names`, the FX nodes that line `start + i` comes from."""

    request: int
    text: str
    start: int
    lines: tuple[str, ...]
    total: int
    nodes: tuple[tuple[int, ...], ...] = ()
    names: tuple[str, ...] = ()


class Text(Frame, frozen=True):
    request: int
    text: str
    content: str


class Found(Frame, frozen=True):
    request: int
    text: str
    lines: tuple[int, ...]
    more: bool = False


class Hits(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was found in a text: the lines' numbers (`more` if there are others), and the first of the lines."""

    text: str
    lines: tuple[int, ...]
    excerpts: tuple[str, ...]
    more: bool = False


class FoundEach(Frame, frozen=True):
    """The texts that hold the pattern, in the order in which they were given."""

    request: int
    hits: tuple[Hits, ...]


class Symbol(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named piece of a text, with its first and last line."""

    name: str
    kind: Literal["function", "global", "graph"]
    first: int
    last: int


class Symbols(Frame, frozen=True):
    request: int
    text: str
    symbols: tuple[Symbol, ...]


class Region(Frame, frozen=True):
    """The lines that open and close a region; -1 where there is none."""

    request: int
    text: str
    first: int = -1
    last: int = -1


class Characters(Frame, frozen=True):
    """`content` from character `start` of a line that has `total`."""

    request: int
    text: str
    line: int
    start: int
    content: str
    total: int


class Reprinted(Frame, frozen=True):
    """The text `form` says what `text` says, in `lines` lines."""

    request: int
    text: str
    form: str
    lines: int


class OpSummary(Frame, frozen=True):
    """`text` is the documentation of op `name` as the dialect has it, "" where the bindings have none."""

    request: int
    name: str
    text: str


class Compared(Frame, frozen=True):
    """Runs of lines that differ, in order: `removed` lines from line `before` on stand against `added` from `after` on.

    `hunks` are `(before, removed, after, added)`; between them the lines correspond one to one. `before_lines` and
    `after_lines` are the lengths of the texts.
    """

    request: int
    before: str
    after: str
    hunks: tuple[tuple[int, int, int, int], ...]
    before_lines: int
    after_lines: int


class IrChecked(Frame, frozen=True):
    """What is wrong with a module, "" where nothing is; line and column count from 1, 0 where none is known."""

    request: int
    line: int = 0
    column: int = 0
    message: str = ""


class Tried(Frame, frozen=True):
    """What candidate `number` would do: ops by how many more there are, or why it failed."""

    request: int
    number: int
    changed: bool = False
    deltas: tuple[tuple[str, int], ...] = ()
    milliseconds: float = 0.0
    problem: str = ""


class TriedAll(Frame, frozen=True):
    """How many of the candidates were tried before the time was up."""

    request: int
    tried: int
    candidates: int


class Passes(Frame, frozen=True):
    request: int
    passes: tuple[PassInfo, ...]
    notes: tuple[str, ...] = ()


class Ops(Frame, frozen=True):
    request: int
    ops: tuple[OpInfo, ...]
    notes: tuple[str, ...] = ()


class Presets(Frame, frozen=True):
    request: int
    presets: tuple[Preset, ...]


ClientFrame = (
    Hello
    | Open
    | Compile
    | Run
    | Cancel
    | FetchLines
    | FetchText
    | Search
    | SearchEach
    | ListSymbols
    | FindRegion
    | FetchCharacters
    | Reprint
    | DescribeOp
    | FindNode
    | Compare
    | CheckIr
    | TryPasses
    | ListPasses
    | ListOps
    | ListPresets
    | Shutdown
)
EngineFrame = (
    Welcome
    | Progress
    | Printout
    | Captured
    | Assigned
    | StageDone
    | Compiled
    | Ran
    | Failed
    | WorkerState
    | Lines
    | Text
    | Found
    | FoundEach
    | Symbols
    | Region
    | Characters
    | Reprinted
    | OpSummary
    | Compared
    | IrChecked
    | Tried
    | TriedAll
    | Passes
    | Ops
    | Presets
)
