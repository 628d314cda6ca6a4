"""Frames about whole programs: they open, compile, run and export them, extract subgraphs, and write graphs as scripts.

Also parses the shapes of inputs in the syntax of the command line.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.plain_values import Assignment, GraphInfo, Stage
from buddy.compiler.protocol.recipe import Frontend, PluginFile, Recipe
from buddy.compiler.protocol.run_report import InputChoice, Mark, RunReport

# ---- open, compile, run ----------------------------------------------------------------------------------------------


# Stands for the pass in remarks on choices of the recipe that were not applied; all other remarks come from passes.
NOT_APPLIED = "recipe"
# The lowering of a node that a graph pass removed: other nodes do its work.
FOLDED = "folded"
# The reason for the lowering `eager` of a node for which the recipe chooses it.
BY_HAND = "chosen by hand"
# The page of the documentation that reasons for fallbacks and their fixes refer to.
OPERATOR_GUIDE = "docs/how-to/adding-an-operator.md"


class Open(Request["Captured"], frozen=True):
    """Run `source` and capture its graphs. Answered by `Progress`, `Printout`, then `Captured` or `Failed`.

    A script gets the command-line arguments `arguments`. Relative paths start at `directory`. `plugins` are loaded
    first; `Captured.notes` reports a plug-in whose file no longer has the given hash. `shapes`, such as `x=4x128`,
    replace the shapes of the tensors that the script calls its model with. `frontend` is the frontend of the recipes
    that will be compiled: it captures the graphs, or imports them after their capture. If the user `trusts` the file,
    pickles in it may run code.

    With `reopens`, graphs and compilations are saved on disk, and those of earlier sessions are used. `Reopened` comes
    first if an earlier session has opened the same program and none of its files has changed.

    With `reuses`, the graph of an earlier session is not captured again if a call of the model still gives the graph's
    results bit by bit. It is for clients that only run the program.

    A dump of another compiler is indexed. If that takes a while, `Reopened` comes first with the graphs known so far.
    With `follows`, the engine reads on whenever a log has grown, and sends `Captured` again each time.
    """

    source: str
    arguments: tuple[str, ...] = ()
    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False
    reopens: bool = False
    follows: bool = False
    reuses: bool = False


class Compile(Request["Compiled"], frozen=True):
    """Compile a recipe; answered by `Assigned`, a `StageDone` per stage, then `Compiled` or `Failed`.

    A newer `Compile` replaces one that has not started; a running one is finished unless cancelled. A compilation
    `for_comparison` with the recipe on the screen replaces no other `Compile`, and none replaces it.
    """

    recipe: Recipe
    for_comparison: bool = False


class Run(Request["Ran"], frozen=True):
    """Compile if needed, run, and compare with eager; answered by the frames of `Compile`, then `Ran` or `Failed`.

    `for_comparison` is as in `Compile`. With `values`, `Ran` also carries inputs and outputs; with `store_values`, the
    engine stores them for `FetchValues` until the next such run of the graph. NaN counts as equal to NaN only with
    `equal_nan`. `timeout` is in seconds. `repeats` is the number of timed runs; 0 means 10 runs, or fewer that together
    take one second, but at least 3. `runtimes` names other runtimes to compare with, and `mark` says which of their
    intermediate values are compared; the run may then take five times `timeout`, for the export and the search. Without
    `stages`, the stages after `fx` may be missing: compiling without printing the IR takes half the time.
    """

    recipe: Recipe
    repeats: int = 0
    timeout: float = 120.0
    for_comparison: bool = False
    inputs: InputChoice = InputChoice()
    values: bool = False
    store_values: bool = False
    equal_nan: bool = False
    runtimes: tuple[str, ...] = ()
    mark: Mark = "auto"
    stages: bool = True


class Captured(Frame, frozen=True):
    """The graphs of a program, and the loaded plug-ins, which the program's recipes must name.

    `files` are the absolute paths of the script and of its imports outside installed packages.
    """

    request: int
    graphs: tuple[GraphInfo, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    plugins: tuple[PluginFile, ...] = ()
    files: tuple[str, ...] = ()


class Reopened(Frame, frozen=True):
    """The graphs that an earlier session has captured, to show until `Captured`, whose graphs may differ.

    They can be compiled. Requests that need the running program wait for `Captured`. `saved_at` is in seconds since the
    epoch; it is 0 for a dump, whose first graphs are sent while it is indexed.
    """

    request: int
    graphs: tuple[GraphInfo, ...]
    notes: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    saved_at: float = 0.0


class Assigned(Frame, frozen=True):
    """The lowerings of all nodes of a graph."""

    request: int
    graph: int
    assignments: tuple[Assignment, ...]


class StageDone(Frame, frozen=True):
    """A stage of a compilation is complete."""

    request: int
    graph: int
    stage: Stage


class Compiled(Frame, frozen=True):
    """The compilation is complete: all its stages in order, and its duration. `reused` stages came from the cache.

    `remarks` are tuples (pass or `NOT_APPLIED`, node, text). `notes` say how the steps of a dump were run again.
    """

    request: int
    graph: int
    stages: tuple[Stage, ...]
    seconds: float
    reused: int = 0
    remarks: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()


class Ran(Frame, frozen=True):
    """`values` is a `.npz` of `input/NAME`, `output/NAME` and `eager/NAME`, if requested."""

    request: int
    report: RunReport
    values: bytes = b""


# `NAME=DIMS`, `NAME=DTYPE` or `NAME=DIMSxDTYPE`, such as `x=4x128xf32`. A dtype follows `x`, or without dims, `=`.
_SHAPE = re.compile(r"(\w+)=(\d+(?:x\d+)*)?(?:(?<=\d)x|(?<==))?([a-z]+[0-9][a-z0-9]*)?")


@dataclass(frozen=True)
class InputShape:
    """A shape for a parameter: `name` is its name, or its index from 0; `dtype` is spelled as in MLIR, or ""."""

    name: str
    shape: tuple[int, ...]
    dtype: str = ""


def parse_input_shape(text: str) -> InputShape:
    """Parses a shape word, such as `x=4x128xf32`. Raises `ValueError` for other texts."""
    match = _SHAPE.fullmatch(text.strip())
    if match is None or not (match[2] or match[3]):
        raise ValueError(f"{text!r} is not a shape")
    return InputShape(match[1], tuple(map(int, match[2].split("x"))) if match[2] else (), match[3] or "")


def find_input_shape(words: Sequence[InputShape], name: str, number: int) -> InputShape | None:
    """Returns the first of `words` for the parameter called `name`, with index `number`, or `None`."""
    return next((word for word in words if word.name in (name, str(number))), None)


def check_input_names(words: Sequence[InputShape], names: Sequence[str]) -> None:
    """Raises `ValueError` if a word names none of the parameters; `names` are the parameters' names, in order."""
    valid_names = {*names, *map(str, range(len(names)))}
    for word in words:
        if word.name not in valid_names:
            raise ValueError(f"unknown input {word.name}; the inputs are {', '.join(names) or 'none'}")


# ---- exports, subgraphs and scripts ----------------------------------------------------------------------------------


ExportKind = Literal["asm", "object", "static", "shared", "llvm-ir", "mlir", "bytecode", "wheel"]
EXPORT_KINDS: tuple[ExportKind, ...] = ("asm", "object", "static", "shared", "llvm-ir", "mlir", "bytecode", "wheel")


class ExportedFile(msgspec.Struct, frozen=True):
    """A written file: its name in the folder, and its size in bytes."""

    name: str
    size: int


class Export(Request["Exported"], frozen=True):
    """Write the graph of `recipe` as files of these kinds to `folder`, on the engine's machine; answered by `Exported`.

    `folder` is relative to `directory`, or to the engine's current directory if that is "". Functions and files are
    named after `name`, or after the source if `name` is "". `stage` names the stage whose IR the kinds `mlir` and
    `bytecode` write; "" is the first stage of MLIR. Existing files are overwritten only with `force`. `command` is the
    command line that the exported README repeats. A kind is one of `EXPORT_KINDS`, or that of a plug-in's exporter.
    """

    recipe: Recipe
    kinds: tuple[str, ...]
    folder: str
    directory: str = ""
    name: str = ""
    stage: str = ""
    force: bool = False
    command: str = ""


class Exported(Frame, frozen=True):
    """The written files, and their folder."""

    request: int
    folder: str
    files: tuple[ExportedFile, ...]


class Extract(Request["Extracted"], frozen=True):
    """Make a graph of the `nodes` (stable or FX names) of the graph of `recipe`, with their real inputs.

    Answered by `Extracted`. The new graph is another graph of the program until the program is opened again. A second
    request for the same nodes returns the same graph.
    """

    recipe: Recipe
    nodes: tuple[str, ...]


class Extracted(Frame, frozen=True):
    """The new graph, and its number as recipes name it."""

    request: int
    graph: int
    info: GraphInfo


class WriteScript(Request["Script"], frozen=True):
    """Write the graph of `recipe` as a script that needs only torch; answered by `Script`."""

    recipe: Recipe


class Script(Frame, frozen=True):
    """A script to be saved as `name`.py, and the tensors that it reads, to be saved next to it as `name`.npz."""

    request: int
    name: str
    text: str
    values: bytes
