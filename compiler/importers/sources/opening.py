"""Opens a file by its kind: each kind has one loader, which returns a program or raises an error."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.importers.sources.kinds import DetectedKind
from buddy.compiler.importers.sources.program import CapturedProgram, SourceError, source_error
from buddy.compiler.protocol.recipe import Frontend

# By kind: the module whose `load` opens it, with its own imports.
_LOADERS = {
    "mlir": "mlir_file",
    "exported": "exported_program",
    "torchscript": "torchscript",
    "weights": "weights",
    "onnx": "onnx_file",
}


@dataclass(frozen=True)
class Opening:
    """A request to open a file.

    `name` is the part after the path (`file.mlir:name`), `title` the original spelling. With `trusts`, pickles in it
    may run code.
    """

    path: Path
    name: str = ""
    title: str = ""
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False
    tell: Callable[[str], None] = lambda _text: None

    @property
    def stem(self) -> str:
        """The name of a program of this file: its name without suffixes."""
        return self.path.name.partition(".")[0] or self.path.name


def open_file(opening: Opening, sniffed: DetectedKind) -> CapturedProgram:
    """The program in a file that is not a script. Raises `SourceError`."""
    loader = _LOADERS.get(sniffed.kind)
    if loader is None:
        raise _no_program(opening, sniffed)
    opening.tell(f"reading {opening.title}")
    program = importlib.import_module(f"buddy.compiler.importers.sources.{loader}").load(opening)
    assert isinstance(program, CapturedProgram)
    program.files = (str(opening.path.resolve()),)
    return program


def _no_program(opening: Opening, sniffed: DetectedKind) -> SourceError:
    todo = (
        "give a Python script (.py), a program of torch.export.save (.pt2) or torch.jit.save (.pt), MLIR as text or "
        "bytecode, or an ONNX model"
    )
    what = f"{opening.title} is {sniffed.words or 'of a kind'}, which contains no program that can be opened"
    return source_error(what, opening.title, todo)
