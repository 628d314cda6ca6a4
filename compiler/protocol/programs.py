"""Frames that open a program, compile its graphs and run them."""

from __future__ import annotations

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.plain_values import Assignment, GraphInfo, Stage
from buddy.compiler.protocol.recipe import Frontend, PluginFile, Recipe
from buddy.compiler.protocol.run_report import InputChoice, RunReport

# Who remarks on a choice of the recipe that could not be followed; all other remarks come from passes.
IN_VAIN = "recipe"
# How a node that a graph pass took out is lowered: others do its work.
FOLDED = "folded"


class Open(Request["Captured"], frozen=True):
    """Run `source` and capture its graphs. Answered by `Progress`, `Printout`, then `Captured` or `Failed`.

    `plugins` are loaded first. One that has another hash than its file is told of in the notes. `shapes`, each as
    `x=4x128`, stand in for those of the tensors that the script has its model called with. `frontend` is that of the
    recipes to come: graphs are captured by it, or imported besides. Where the user `trusts` the file, pickles in it may
    run code.
    """

    source: str
    arguments: tuple[str, ...] = ()
    directory: str = ""
    plugins: tuple[PluginFile, ...] = ()
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False


class Compile(Request["Compiled"], frozen=True):
    """Compile a recipe: `Assigned`, a `StageDone` per stage, then `Compiled` or `Failed`.

    A newer `Compile` replaces one that has not begun; one that runs is finished unless cancelled. One `beside` the
    recipe on the screen, for comparing, replaces none and is replaced by none.
    """

    recipe: Recipe
    beside: bool = False


class Run(Request["Ran"], frozen=True):
    """Compile if needed, run, and compare with eager: the frames of `Compile`, then `Ran` or `Failed`.

    `beside` is as for `Compile`. With `values`, `Ran` brings inputs and outputs, too; with `keep`, the engine keeps
    them for `FetchValues` until the graph's next such run. NaN equals NaN only with `equal_nan`.
    """

    recipe: Recipe
    repeats: int = 10
    timeout: float = 120.0
    beside: bool = False
    inputs: InputChoice = InputChoice()
    values: bool = False
    keep: bool = False
    equal_nan: bool = False


class Captured(Frame, frozen=True):
    """The graphs of a program, and the plug-ins as they were loaded, which recipes of it must name.

    `files` are whole paths of the script and of what it imports that belongs to no installed package.
    """

    request: int
    graphs: tuple[GraphInfo, ...]
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    plugins: tuple[PluginFile, ...] = ()
    files: tuple[str, ...] = ()


class Assigned(Frame, frozen=True):
    request: int
    graph: int
    assignments: tuple[Assignment, ...]


class StageDone(Frame, frozen=True):
    request: int
    graph: int
    stage: Stage


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
