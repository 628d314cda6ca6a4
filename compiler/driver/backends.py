"""The backends: which IR each takes, its phases, and how it compiles that.

A recipe names `native` or `iree`; a native program whose passes have made GPU kernels is compiled by `gpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from buddy.compiler.codegen import assembly, calling_convention, functions
from buddy.compiler.codegen.calling_convention import EntryConvention
from buddy.compiler.codegen.gpu.kernels import DeviceError, device_code, holds_kernels
from buddy.compiler.codegen.iree.artifact import IreeProgram
from buddy.compiler.codegen.iree.program import IreeUnsupportedError, program_of
from buddy.compiler.driver import diagnosis, snapshots
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.driver.phases import artifact_of, check_code, spec_of
from buddy.compiler.driver.snapshots import Snapshot
from buddy.compiler.graph.graph import Graph
from buddy.compiler.graph.operation import Op
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_llvm
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.artifact import Artifact, EagerCall
from buddy.compiler.protocol.backends import IREE_PHASES
from buddy.compiler.protocol.recipe import IREE, NATIVE, Recipe

Level = Literal["toplevel", "llvm"]
Product = TypeVar("Product", covariant=True)
# Called with each phase, printed, as soon as it is done.
OnPhase = Callable[[Snapshot], None]


@dataclass(frozen=True)
class Code:
    """What a backend compiles: the module (an operation) of a graph, at the level that the backend takes.

    `entry` is how its entry is called and `calls` are those of eager, as far as the module is at LLVM's level.
    """

    graph: Graph
    recipe: Recipe
    module: Any
    locations: LocationSets
    entry: EntryConvention | None = None
    calls: Sequence[EagerCall] = ()


class Backend(Protocol[Product]):
    """`takes` says which IR it compiles: top-level IR, or what the recipe's passes leave in LLVM's dialects.

    `phases` are the stages that it adds behind that.
    """

    @property
    def name(self) -> str: ...
    @property
    def takes(self) -> Level: ...
    @property
    def phases(self) -> tuple[str, ...]: ...

    def check(self, code: Code) -> None:
        """Raises `CompilationError` for a module that it does not take."""

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Product:
        """Compile a module that has passed `check`; without `on_phase`, no phase is printed.

        Raises `CompilationError`.
        """


class _Native:
    """Objects for a CPU, by LLVM."""

    name: str = NATIVE
    takes: Level = "llvm"
    phases: tuple[str, ...] = ("ir", "asm")

    def check(self, code: Code) -> None:
        check_code(code.module, code.entry, code.graph, code.recipe, code.locations)

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Artifact:
        if on_phase is not None:
            on_phase(_translated(code))
        start = time.perf_counter()
        objects = functions.compile_functions(code.module, code.locations, code.recipe.opt_level, code.recipe.target)
        seconds = time.perf_counter() - start
        if on_phase is not None:
            text = assembly.print_assembly(objects, code.locations)
            made = tuple((found.name, 1e3 * found.seconds) for found in objects if not found.reused)
            on_phase(snapshots.of_text("codegen", "asm", text, seconds, "asm", made))
        assert code.entry is not None
        return artifact_of(code.graph, code.recipe, code.module, code.entry, code.calls, objects)


class _Gpu:
    """PTX for an NVIDIA GPU, and what the host does with its kernels."""

    name = "gpu"
    takes: Level = "llvm"
    phases: tuple[str, ...] = ("ir", "ptx")

    def check(self, code: Code) -> None:
        if code.entry is None:
            raise CompilationError(diagnosis.no_entry(code.graph._func_name))

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Artifact:
        try:
            found = device_code(code.module, code.locations, code.recipe.opt_level)
        except DeviceError as error:
            raise CompilationError(error.diagnostic) from error
        if on_phase is not None:
            on_phase(snapshots.of_text("translate", "ir", found.llvm, found.llvm_seconds, "llvm"))
            on_phase(snapshots.of_text("codegen", "ptx", found.ptx, found.ptx_seconds, "ptx"))
        graph = code.graph
        assert code.entry is not None
        arguments = calling_convention.arguments(code.entry, [spec_of(op) for op in graph.placeholders])
        results = tuple(spec_of(op) for op in graph.results if isinstance(op, Op))
        return Artifact(graph._func_name, (), arguments, results, device=found.program)


class _Iree:
    """The program for `iree-compile`, whose phases are stages of a process of its own (`engine/iree.py`)."""

    name: str = IREE
    takes: Level = "toplevel"
    phases: tuple[str, ...] = IREE_PHASES

    def check(self, code: Code) -> None:
        """`compile` finds what IREE does not take."""

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> IreeProgram:
        try:
            return program_of(code.graph, code.module, code.locations)
        except IreeUnsupportedError as error:
            todo = "give those ops a lowering, extract a part without them, or choose the native backend"
            raise CompilationError(Diagnostic(str(error), "the hand-over to IREE", todo, node=error.node)) from error


NATIVE_BACKEND, GPU_BACKEND = _Native(), _Gpu()
# By the name in a recipe.
BACKENDS: dict[str, Backend[Any]] = {NATIVE: NATIVE_BACKEND, IREE: _Iree()}


def backend_of(module: Any) -> Backend[Artifact]:
    """The backend for a module that the recipe's passes have left: the GPU's where it holds kernels."""
    return GPU_BACKEND if holds_kernels(module) else NATIVE_BACKEND


def _translated(code: Code) -> Snapshot:
    start = time.perf_counter()
    try:
        content = functions.to_llvm_ir(code.module)
    except (ir.MLIRError, RuntimeError, ValueError) as error:
        raise CompilationError(diagnosis.of_translation(str(error))) from error
    seconds = time.perf_counter() - start
    return snapshots.of_text("translate", "ir", print_llvm(content, code.locations), seconds, "llvm")
