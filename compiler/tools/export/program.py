"""Writes the requested files of a compiled program, and what is needed to build and call it."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from buddy.compiler.codegen.machines import Machine, MachineError, machine_of
from buddy.compiler.protocol import Assignment, ExportedFile, ExportKind
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.runtime.torch_values import dense_bytes
from buddy.compiler.support.files import EXPORT, scratch_folder
from buddy.compiler.tools.export import building, packages, texts
from buddy.compiler.tools.export.errors import ExportError
from buddy.compiler.tools.export.interface import ProgramInterface, interface_of
from buddy.compiler.tools.export.native import NativeProgram

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

# The kinds that include C sources, weights and examples.
_WITH_C = frozenset({"asm", "object", "static", "shared"})
_LIBRARIES = frozenset({"static", "shared", "wheel"})
_SEED = 0


@dataclass(frozen=True)
class CompiledProgram:
    """A program compiled by `recipe`: the captured graph, and the result.

    `llvm_ir` and `mlir` are texts of stages; the README names `origin` and `command`, which created the export.
    """

    captured: CapturedGraph
    recipe: Recipe
    artifact: Artifact
    assignments: Sequence[Assignment]
    llvm_ir: str
    mlir: str
    origin: str
    command: str


@dataclass(frozen=True)
class ExportOrder:
    """What to write, under which name, into which folder; `force` overwrites existing files."""

    folder: Path
    name: str
    kinds: tuple[ExportKind, ...]
    force: bool = False


Tell = Callable[[str], None]


def export(program: CompiledProgram, order: ExportOrder, tell: Tell = lambda _what: None) -> list[ExportedFile]:
    """Writes all files of `order`, or none of them if an error occurs.

    Raises `ExportError` for what cannot be exported in this form, and if a file exists; `OSError` if the folder is not
    writable.
    """
    machine = _machine(program.recipe.target)
    interface = interface_of(order.name, program.captured.graph, program.artifact, program.assignments)
    folder = order.folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"{folder} is not a folder", "the export", "name another one (-o)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with scratch_folder(EXPORT, folder.parent) as made:
        writer = _Writer(program, order, interface, machine, Path(made), tell)
        _check_overwriting(folder, writer.planned(), order.force)
        with torch.no_grad():
            writer.write()
        return _move(Path(made), folder, writer.planned())


class _Writer:
    def __init__(
        self,
        program: CompiledProgram,
        order: ExportOrder,
        interface: ProgramInterface,
        machine: Machine,
        folder: Path,
        tell: Tell,
    ) -> None:
        self._program, self._kinds, self._interface = program, frozenset(order.kinds), interface
        self._machine, self._folder, self._tell, self._name = machine, folder, tell, order.name

    def planned(self) -> list[str]:
        """The files, in the order of the report."""
        name, kinds = self._name, self._kinds
        found = {
            "asm": f"{name}.s", "object": f"{name}.o", "static": f"lib{name}.a", "shared": f"lib{name}.so",
            "llvm-ir": f"{name}.ll", "mlir": f"{name}.mlir", "bytecode": f"{name}.mlirbc",
            "wheel": packages.wheel_name(name, self._machine),
        }  # fmt: skip
        files = [file for kind, file in found.items() if kind in kinds]
        if kinds & _WITH_C:
            files += [f"{name}.h", f"{name}.c", f"{name}.safetensors", "main.c", "main.cpp", "npy.h"]
            files += ["CMakeLists.txt"] * bool(self._code)
            files += [f"example/input{i}.npy" for i in range(len(self._interface.inputs))]
            if self._program.captured.eager is not None:
                files += [f"example/output{i}.npy" for i in range(len(self._interface.outputs))]
        return [*files, "README.md"]

    def write(self) -> None:
        name, kinds = self._name, self._kinds
        if "mlir" in kinds:
            self._text(f"{name}.mlir", self._program.mlir)
        if "bytecode" in kinds:
            self._tell("writing MLIR's bytecode")
            self._path(f"{name}.mlirbc").write_bytes(_bytecode(self._program.mlir))
        if "llvm-ir" in kinds:
            self._text(f"{name}.ll", self._native.llvm_ir)
        if "asm" in kinds:
            self._tell("generating assembly")
            self._text(f"{name}.s", self._native.assembly())
        if "object" in kinds:
            self._path(f"{name}.o").write_bytes(self._object)
        if kinds & _WITH_C:
            self._write_c()
        self._write_libraries()
        program, files = self._program, self.planned()
        self._text("README.md", texts.readme(self._interface, program.origin, self._machine, files, program.command))

    def _write_c(self) -> None:
        name = self._name
        self._text(f"{name}.h", self._header)
        self._text(f"{name}.c", texts.loader(self._interface))
        for file in ("main.c", "main.cpp", "npy.h"):
            self._text(file, texts.source(file, name))
        if self._code:
            self._text("CMakeLists.txt", texts.cmake(self._interface, self._code))
        self._tell("writing weights")
        self._write_weights(self._path(f"{name}.safetensors"))
        self._write_examples()

    def _write_libraries(self) -> None:
        name, kinds = self._name, self._kinds
        if not kinds & _LIBRARIES:
            return
        self._tell("building the library")
        openmp = self._interface.threads > 1
        sources = building.BuildSources(name, self._header, texts.loader(self._interface), self._object)
        if "static" in kinds:
            self._path(f"lib{name}.a").write_bytes(building.static_library(sources, self._machine, openmp))
        if kinds & {"shared", "wheel"}:
            library = building.shared_library(sources, self._machine, openmp)
            if "shared" in kinds:
                self._path(f"lib{name}.so").write_bytes(library)
            if "wheel" in kinds:
                self._write_wheel(library)

    def _write_wheel(self, library: bytes) -> None:
        weights = self._path(f"{self._name}.safetensors")
        if not weights.exists():
            self._write_weights(weights)
        path = self._path(packages.wheel_name(self._name, self._machine))
        packages.write_wheel(path, self._name, self._machine, library, weights, f"Compiled from {self._program.origin}")

    def _write_weights(self, path: Path) -> None:
        tensors, (_, sources) = self._program.captured.tensors, self._interface.sources
        found = {}
        for weight, source in zip(self._interface.weights, sources, strict=True):
            shape = [size for size in weight.shape if isinstance(size, int)]
            data = dense_bytes(tensors[source])
            found[weight.name] = packages.StoredTensor(weight.element.safetensors, weight.element.bytes, shape, data)
        packages.write(path, found, {"format": "pt", "program": self._name})

    def _write_examples(self) -> None:
        captured, interface = self._program.captured, self._interface
        results: list[torch.Tensor] = []
        if captured.eager is not None:
            torch.manual_seed(_SEED)
            results = [value for value in captured.eager(captured.tensors) if isinstance(value, torch.Tensor)]
        given = [captured.tensors[source] for source in interface.sources[0]]
        for kind, tensors in (("input", given), ("output", results)):
            for i, tensor in enumerate(tensors):
                np.save(self._path(f"example/{kind}{i}.npy"), _array(tensor))

    @property
    def _code(self) -> str:
        """The file with compiled code that users may build from, or an empty string."""
        return next((f"{self._name}{s}" for k, s in (("object", ".o"), ("asm", ".s")) if k in self._kinds), "")

    @cached_property
    def _header(self) -> str:
        return texts.header(self._interface, self._program.origin, self._machine)

    @cached_property
    def _native(self) -> NativeProgram:
        return NativeProgram(self._program.llvm_ir, self._interface, self._machine, self._program.recipe.opt_level)

    @cached_property
    def _object(self) -> bytes:
        self._tell("generating machine code")
        return self._native.object()

    def _text(self, name: str, text: str) -> None:
        self._path(name).write_text(text, encoding="utf-8")

    def _path(self, name: str) -> Path:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        return path


def _machine(target: str) -> Machine:
    try:
        return machine_of(target)
    except MachineError as error:
        found = error.diagnostic
        raise ExportError(found.what, found.where, found.todo) from error


def _check_overwriting(folder: Path, planned: Collection[str], force: bool) -> None:
    """Raises `ExportError` if files in `folder` would be overwritten without `force`, or cannot be."""
    folders = [file for file in planned if (folder / file).is_dir() and not (folder / file).is_symlink()]
    files = {parent for file in planned if (parent := (folder / file).parent).exists() and not parent.is_dir()}
    for path in (*(folder / file for file in folders), *files):
        what = f"{path} is a {'file' if path in files else 'folder'}, where the export needs a different kind"
        raise ExportError(what, "the export", "name another folder (-o)")
    there = [file for file in planned if os.path.lexists(folder / file)]
    if there and not force:
        todo = "name another folder (-o), or overwrite them (--force)"
        raise ExportError(
            f"{folder} holds {', '.join(there[:3])}{', …' * (len(there) > 3)} already", "the export", todo
        )


def _move(made: Path, folder: Path, planned: Sequence[str]) -> list[ExportedFile]:
    found = []
    for file in planned:
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(made / file, target)
        found.append(ExportedFile(file, target.stat().st_size))
    return found


def _bytecode(text: str) -> bytes:
    from buddy.compiler.mlir.bindings import ir
    from buddy.compiler.ops.lowering import new_context

    written = io.BytesIO()
    with new_context(), ir.Location.unknown():
        ir.Module.parse(text).operation.write_bytecode(written)
    return written.getvalue()


def _array(tensor: torch.Tensor) -> np.ndarray:
    """A tensor in the compiled program's form: complex numbers as pairs, bfloat16 as its bits."""
    found = tensor.detach().resolve_conj().resolve_neg()
    found = torch.view_as_real(found) if found.is_complex() else found
    if found.dtype is torch.bfloat16:
        found = found.view(torch.uint16)
    return found.contiguous().numpy()
