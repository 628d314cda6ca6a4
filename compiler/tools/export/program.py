"""Writes the requested files of a compiled program, and the sources to build and call it."""

from __future__ import annotations

import io
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from traceback import format_exc
from typing import TYPE_CHECKING

import numpy as np
import torch

from buddy.compiler.codegen.machines import Machine, MachineError, machine_of
from buddy.compiler.graph.plugins import plugin_exporters
from buddy.compiler.protocol import EXPORT_KINDS, Assignment, ExportedFile
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import Recipe
from buddy.compiler.runtime.torch_values import dense_bytes, resolve_lazy
from buddy.compiler.support.files import EXPORT, scratch_folder
from buddy.compiler.tools.export import packages, texts
from buddy.compiler.tools.export.interface import ExportError, ProgramInterface, interface_of
from buddy.compiler.tools.export.native import NativeProgram

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

# The kinds that include C sources, weights and examples.
_KINDS_WITH_C = frozenset({"asm", "object", "static", "shared"})
_LIBRARY_KINDS = frozenset({"static", "shared", "wheel"})
# The seed of eager's random numbers in the example results.
_SEED = 0


@dataclass(frozen=True)
class CompiledProgram:
    """A captured graph, and the result of compiling it with `recipe`.

    `llvm_ir` and `mlir` are the texts of these stages. The README names `origin`, the program that was compiled, and
    `command`, the command line of the export.
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
    """A request to write files of `kinds`, named after `name`, into `folder`; `force` overwrites existing files."""

    folder: Path
    name: str
    kinds: tuple[str, ...]
    force: bool = False


# Called with a text that says what is done now.
OnProgress = Callable[[str], None]


def export(
    program: CompiledProgram, order: ExportOrder, on_progress: OnProgress = lambda _what: None
) -> list[ExportedFile]:
    """Writes all files of `order`, or none of them if an error occurs.

    Raises `ExportError` if the program cannot be exported as these kinds of files, or a file exists and must not be
    overwritten; `OSError` if the folder is not writable.
    """
    machine = _find_machine(program.recipe.target)
    interface = interface_of(order.name, program.captured.graph, program.artifact, program.assignments)
    folder = order.folder.absolute()
    if folder.exists() and not folder.is_dir():
        raise ExportError(f"{folder} is not a folder", "the export", "name another one (-o)")
    folder.parent.mkdir(parents=True, exist_ok=True)
    _check_kinds(order.kinds)
    with scratch_folder(EXPORT, folder.parent) as scratch:
        writer = _Writer(program, order, interface, machine, Path(scratch), on_progress)
        # Before the long work; and after it, with the files of plug-ins, whose names are known only then.
        _check_overwriting(folder, writer.file_names(), order.force)
        with torch.no_grad():
            plugin_files = list(_write_by_plugins(program, order, Path(scratch), writer.file_names()))
            writer.write(plugin_files)
        names = [*writer.file_names(), *plugin_files]
        _check_overwriting(folder, names, order.force)
        return _move_files(Path(scratch), folder, names)


def _check_kinds(kinds: Collection[str]) -> None:
    known = (*EXPORT_KINDS, *sorted(plugin_exporters()))
    unknown = [kind for kind in kinds if kind not in known]
    if unknown:
        todo = f"name one of {', '.join(known)}, or load the plug-in that has it (--plugin)"
        raise ExportError(f"unknown kind {unknown[0]!r}", "the export", todo)


def _write_by_plugins(
    program: CompiledProgram, order: ExportOrder, folder: Path, used_names: Collection[str]
) -> Iterator[str]:
    """Writes the files of the kinds of plug-ins, and yields their names.

    Raises `ExportError` if an exporter raises, or does not write the files that it names.
    """
    for kind in order.kinds:
        if (write := plugin_exporters().get(kind)) is None:
            continue
        with tempfile.TemporaryDirectory(dir=folder) as kind_folder:
            try:
                names = list(write(program, Path(kind_folder), order.name))
            except BuddyError:
                raise
            except Exception as error:
                what = f"the exporter {kind!r} raised {type(error).__name__}: {error}"
                raise ExportError(what, write.__module__, "correct the plug-in", format_exc()) from error
            for name in names:
                if Path(name).name != name or not (Path(kind_folder) / name).is_file() or name in used_names:
                    what = f"the exporter {kind!r} names the file {name!r}, which it has not written or may not write"
                    raise ExportError(what, write.__module__, "correct the plug-in")
                shutil.move(Path(kind_folder) / name, folder / name)
                yield name


class _Writer:
    """Writes the files of an order to `folder`, except those of plug-ins."""

    def __init__(
        self,
        program: CompiledProgram,
        order: ExportOrder,
        interface: ProgramInterface,
        machine: Machine,
        folder: Path,
        on_progress: OnProgress,
    ) -> None:
        self._program, self._kinds, self._interface = program, frozenset(order.kinds), interface
        self._machine, self._folder, self._on_progress, self._name = machine, folder, on_progress, order.name

    def file_names(self) -> list[str]:
        """Returns the names of the files to write, in the order of the report."""
        name, kinds = self._name, self._kinds
        file_of_kind = {
            "asm": f"{name}.s", "object": f"{name}.o", "static": f"lib{name}.a", "shared": f"lib{name}.so",
            "llvm-ir": f"{name}.ll", "mlir": f"{name}.mlir", "bytecode": f"{name}.mlirbc",
            "wheel": packages.wheel_name(name, self._machine),
        }  # fmt: skip
        files = [file for kind, file in file_of_kind.items() if kind in kinds]
        if kinds & _KINDS_WITH_C:
            files += [f"{name}.h", f"{name}.c", f"{name}.safetensors", "main.c", "main.cpp", "npy.h"]
            files += ["CMakeLists.txt"] * bool(self._code_file)
            files += [f"example/input{i}.npy" for i in range(len(self._interface.inputs))]
            if self._program.captured.eager is not None:
                files += [f"example/output{i}.npy" for i in range(len(self._interface.outputs))]
        return [*files, "README.md"]

    def write(self, plugin_files: Sequence[str] = ()) -> None:
        """Writes the files; the README also lists `plugin_files`, those of plug-ins."""
        name, kinds = self._name, self._kinds
        if "mlir" in kinds:
            self._write_text(f"{name}.mlir", self._program.mlir)
        if "bytecode" in kinds:
            self._on_progress("writing MLIR's bytecode")
            self._path(f"{name}.mlirbc").write_bytes(_bytecode(self._program.mlir))
        if "llvm-ir" in kinds:
            self._write_text(f"{name}.ll", self._native.llvm_ir)
        if "asm" in kinds:
            self._on_progress("generating assembly")
            self._write_text(f"{name}.s", self._native.assembly())
        if "object" in kinds:
            self._path(f"{name}.o").write_bytes(self._object)
        if kinds & _KINDS_WITH_C:
            self._write_c()
        self._write_libraries()
        program, files = self._program, [*self.file_names(), *plugin_files]
        self._write_text(
            "README.md", texts.readme_text(self._interface, program.origin, self._machine, files, program.command)
        )

    def _write_c(self) -> None:
        name = self._name
        self._write_text(f"{name}.h", self._header)
        self._write_text(f"{name}.c", texts.loader_source(self._interface, self._native.uses_tiles))
        for file in ("main.c", "main.cpp", "npy.h"):
            self._write_text(file, texts.c_source(file, name))
        if self._code_file:
            self._write_text("CMakeLists.txt", texts.cmake_text(self._interface, self._code_file))
        self._on_progress("writing weights")
        self._write_weights(self._path(f"{name}.safetensors"))
        self._write_examples()

    def _write_libraries(self) -> None:
        name, kinds = self._name, self._kinds
        if not kinds & _LIBRARY_KINDS:
            return
        self._on_progress("building the library")
        openmp = self._interface.threads > 1
        sources = packages.BuildSources(
            name, self._header, texts.loader_source(self._interface, self._native.uses_tiles), self._object
        )
        if "static" in kinds:
            self._path(f"lib{name}.a").write_bytes(packages.static_library(sources, self._machine, openmp))
        if kinds & {"shared", "wheel"}:
            library = packages.shared_library(sources, self._machine, openmp)
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
        tensors, (_, weight_sources) = self._program.captured.tensors, self._interface.sources
        stored = {}
        for weight, source in zip(self._interface.weights, weight_sources, strict=True):
            shape = [size for size in weight.shape if isinstance(size, int)]
            data = dense_bytes(tensors[source])
            stored[weight.name] = packages.StoredTensor(weight.element.safetensors, weight.element.bytes, shape, data)
        packages.write_safetensors(path, stored, {"format": "pt", "program": self._name})

    def _write_examples(self) -> None:
        """Writes the inputs of the capture, and eager's results for them, as `.npy` files."""
        captured, interface = self._program.captured, self._interface
        results: list[torch.Tensor] = []
        if captured.eager is not None:
            torch.manual_seed(_SEED)
            results = [value for value in captured.eager(captured.tensors) if isinstance(value, torch.Tensor)]
        input_sources, _ = interface.sources
        inputs = [captured.tensors[source] for source in input_sources]
        for kind, tensors in (("input", inputs), ("output", results)):
            for i, tensor in enumerate(tensors):
                np.save(self._path(f"example/{kind}{i}.npy"), _to_numpy(tensor))

    @property
    def _code_file(self) -> str:
        """Returns the name of the file of compiled code that the user can build the program from; "" without one."""
        if "object" in self._kinds:
            return f"{self._name}.o"
        return f"{self._name}.s" if "asm" in self._kinds else ""

    @cached_property
    def _header(self) -> str:
        return texts.header_source(self._interface, self._program.origin, self._machine)

    @cached_property
    def _native(self) -> NativeProgram:
        return NativeProgram(self._program.llvm_ir, self._interface, self._machine, self._program.recipe.opt_level)

    @cached_property
    def _object(self) -> bytes:
        self._on_progress("generating machine code")
        return self._native.object()

    def _write_text(self, name: str, text: str) -> None:
        self._path(name).write_text(text, encoding="utf-8")

    def _path(self, name: str) -> Path:
        path = self._folder / name
        path.parent.mkdir(exist_ok=True)
        return path


def _find_machine(target: str) -> Machine:
    try:
        return machine_of(target)
    except MachineError as error:
        diagnostic = error.diagnostic
        raise ExportError(diagnostic.what, diagnostic.where, diagnostic.todo) from error


def _check_overwriting(folder: Path, file_names: Collection[str], force: bool) -> None:
    """Raises `ExportError` if files in `folder` would be overwritten without `force`, or cannot be overwritten."""
    for file in file_names:
        path = folder / file
        if path.parent.exists() and not path.parent.is_dir():
            raise ExportError(
                f"{path.parent} is a file, but must be a folder", "the export", "name another folder (-o)"
            )
        if path.is_dir() and not path.is_symlink():
            raise ExportError(f"{path} is a folder, but must be a file", "the export", "name another folder (-o)")
    existing = [file for file in file_names if os.path.lexists(folder / file)]
    if existing and not force:
        todo = "name another folder (-o), or overwrite them (--force)"
        raise ExportError(
            f"{folder} holds {', '.join(existing[:3])}{', …' * (len(existing) > 3)} already", "the export", todo
        )


def _move_files(scratch: Path, folder: Path, file_names: Sequence[str]) -> list[ExportedFile]:
    """Moves the files from `scratch` to `folder`; returns them with their sizes in bytes."""
    exported = []
    for file in file_names:
        target = folder / file
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.move(scratch / file, target)
        exported.append(ExportedFile(file, target.stat().st_size))
    return exported


def _bytecode(text: str) -> bytes:
    """Returns MLIR's bytecode of a module given as text."""
    from buddy.compiler.mlir.bindings import ir
    from buddy.compiler.ops.lowering import new_context

    bytecode = io.BytesIO()
    with new_context(), ir.Location.unknown():
        ir.Module.parse(text).operation.write_bytecode(bytecode)
    return bytecode.getvalue()


def _to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Returns a tensor as the compiled program reads it: complex numbers as pairs, bfloat16 and float8 as bits."""
    dense = resolve_lazy(tensor.detach())
    dense = torch.view_as_real(dense) if dense.is_complex() else dense
    if dense.dtype is torch.bfloat16:
        dense = dense.view(torch.uint16)
    elif dense.dtype.is_floating_point and dense.dtype.itemsize == 1:
        dense = dense.view(torch.uint8)
    return dense.contiguous().numpy()
