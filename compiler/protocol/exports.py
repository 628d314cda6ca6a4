"""Frames that export a compiled program as files."""

from __future__ import annotations

from typing import Literal

import msgspec

from buddy.compiler.protocol.frame import Frame, Request
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
    named after `name`, or after the source if it is "". `stage` names the text for `mlir` and `bytecode`; "" is the
    first stage of MLIR. Existing files are overwritten only with `force`. `command` is printed in the README.
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
    """The written files, and their folder."""

    request: int
    folder: str
    files: tuple[ExportedFile, ...]
