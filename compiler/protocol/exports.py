"""Frames that write a compiled program as files."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.frame import Frame, Request
from buddy.compiler.protocol.recipe import Recipe

ExportKind = Literal["asm", "object", "static", "shared", "llvm-ir", "mlir", "bytecode", "wheel"]
EXPORT_KINDS: tuple[ExportKind, ...] = ("asm", "object", "static", "shared", "llvm-ir", "mlir", "bytecode", "wheel")


class ExportedFile(msgspec.Struct, frozen=True):
    """A file that was written, by its name in the folder, and its size in bytes."""

    name: str
    size: int


class Export(Request["Exported"], frozen=True):
    """Write the graph of `recipe` as files of these kinds to `folder`, on the engine's machine: `Exported`.

    `directory` is what `folder` is relative to, "" for the engine's own. Functions and files are called after `name`,
    "" stands for the source's. `stage` names the text that `mlir` and `bytecode` are of, "" the first of MLIR. What is
    in the way is written over by `force` alone; `command` is told in the README.
    """

    recipe: Recipe
    kinds: tuple[ExportKind, ...]
    folder: str
    directory: str = ""
    name: str = ""
    stage: str = ""
    force: bool = False
    command: str = ""


class Exported(Frame, frozen=True):
    """What was written, and where."""

    request: int
    folder: str
    files: tuple[ExportedFile, ...]
