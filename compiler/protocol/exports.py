"""Frames that export a compiled program, extract a subgraph, or write a graph as a script."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.connection import Frame, Request
from buddy.compiler.protocol.plain_values import GraphInfo
from buddy.compiler.protocol.recipe import Recipe

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
