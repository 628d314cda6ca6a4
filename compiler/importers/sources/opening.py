"""Opens a file by what it is: each kind has one loader, which gives a program or says why there is none."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.importers.sources.kinds import Sniffed
from buddy.compiler.importers.sources.program import Program, SourceError, source_error
from buddy.compiler.protocol.recipe import Frontend

# By kind: the module whose `load` opens it. They import what only they need.
_LOADERS = {
    "mlir": "mlir_file",
    "exported": "exported_program",
    "torchscript": "torchscript",
    "weights": "weights",
    "onnx": "onnx_file",
}


@dataclass(frozen=True)
class Opening:
    """A file to open, as it was asked for.

    `name` is what stands behind it (`file.mlir:name`), `title` how it was spelled. With `trusts`, the user allows
    pickles in it to run code.
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
        """What a program of this file is called: a name without the file's suffixes."""
        return self.path.name.partition(".")[0] or self.path.name


def open_file(opening: Opening, sniffed: Sniffed) -> Program:
    """The program in a file that is no script. Raises `SourceError`."""
    loader = _LOADERS.get(sniffed.kind)
    if loader is None:
        raise _no_program(opening, sniffed)
    opening.tell(f"reading {opening.title}")
    program = importlib.import_module(f"buddy.compiler.importers.sources.{loader}").load(opening)
    assert isinstance(program, Program)
    program.files = (str(opening.path.resolve()),)
    return program


def _no_program(opening: Opening, sniffed: Sniffed) -> SourceError:
    todo = (
        "give a Python script (.py), a program of torch.export.save (.pt2) or torch.jit.save (.pt), MLIR as text or "
        "bytecode, or an ONNX model"
    )
    what = f"{opening.title} is {sniffed.words or 'of a kind'}, which holds no program that can be opened"
    return source_error(what, opening.title, todo)
