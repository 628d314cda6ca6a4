"""Opens files: each kind of file has one loader."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.importers.sources.program import CapturedProgram
from buddy.compiler.protocol.recipe import Frontend
from buddy.compiler.protocol.source_files import DetectedKind, no_program_error

# For each kind of file, the module and the function that open it; the module is imported when it is needed.
_LOADERS = {
    "mlir": "mlir_file:load",
    "exported": "exported_program:load",
    "torchscript": "torchscript:load",
    "weights": "modules:load_pickle",
    "onnx": "onnx_file:load",
}


@dataclass(frozen=True)
class Opening:
    """A request to open a file.

    `name` is the part after the path (`file.mlir:name`), `title` the path as the user wrote it. With `trusts`, pickles
    in the file may run code. `report` is called with each step of opening.
    """

    path: Path
    name: str = ""
    title: str = ""
    shapes: tuple[str, ...] = ()
    frontend: Frontend = "dynamo"
    trusts: bool = False
    report: Callable[[str], None] = lambda _text: None

    @property
    def stem(self) -> str:
        """The name of a program of this file: its name without suffixes."""
        return self.path.name.partition(".")[0] or self.path.name


def open_file(opening: Opening, detected: DetectedKind) -> CapturedProgram:
    """Returns the program in a file that is not a script. Raises `SourceError`."""
    loader = _LOADERS.get(detected.kind)
    if loader is None:
        raise no_program_error(opening.title, detected)
    opening.report(f"reading {opening.title}")
    module, _, function = loader.partition(":")
    load = getattr(importlib.import_module(f"{__package__}.{module}"), function)
    program = load(opening)
    assert isinstance(program, CapturedProgram)
    program.files = (str(opening.path.resolve()),)
    return program
