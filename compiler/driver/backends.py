"""The backends: the IR that each compiles, its phases, and the steps of compilation that all share.

A recipe names `native` or `iree`; a native program whose passes have outlined GPU kernels is compiled by `gpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from buddy.compiler.codegen import assembly, calling_convention, functions
from buddy.compiler.codegen.calling_convention import EntryConvention
from buddy.compiler.codegen.gpu.kernels import DeviceError, device_code, holds_kernels
from buddy.compiler.codegen.iree.options import IreeProgram
from buddy.compiler.codegen.iree.program import IreeUnsupportedError, program_of
from buddy.compiler.codegen.machines import MachineError, machine_of
from buddy.compiler.driver import diagnosis, snapshots
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.driver.snapshots import Snapshot
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.operation import Op
from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.graph.transform.rewriting import observed
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_llvm
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops import OWN_DIALECTS
from buddy.compiler.ops.imported_module import ImportedIRError, imported_ir_of, lower_imported
from buddy.compiler.ops.lowering import LoweredModule, NodeError, lower
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.artifact import Artifact, EagerCall, TensorSpec
from buddy.compiler.protocol.catalogue import IREE_PHASES
from buddy.compiler.protocol.recipe import IREE, NATIVE, Recipe


def check_target(recipe: Recipe) -> None:
    """Raises `CompilationError` for a target without code generation."""
    try:
        machine_of(recipe.target)
    except MachineError as error:
        raise CompilationError(error.diagnostic) from error


def lowered_graph(
    graph: Graph, recipe: Recipe, context: Any, locations: LocationSets, first: Registry | None
) -> LoweredModule:
    """Returns top-level IR: the graph's nodes lowered one by one, or the IR that was imported with the graph.

    Raises `CompilationError` for a node that can neither be compiled nor run in eager, for an unsupported target
    dialect, and for an invalid imported module.
    """
    try:
        given = imported_ir_of(graph, recipe)
        if given is not None:
            return lower_imported(graph, given, context, locations)
        if recipe.dialect not in OWN_DIALECTS:
            raise CompilationError(diagnosis.no_lowerings(recipe.dialect))
        return lower(graph, recipe, context, locations, first)
    except ImportedIRError as error:
        raise CompilationError(error.diagnostic) from error
    except NodeError as error:
        raise CompilationError(diagnosis.of_node(error)) from error


def check_code(
    module: Any, entry: EntryConvention | None, graph: Graph, recipe: Recipe, locations: LocationSets
) -> EntryConvention:
    """Returns `entry`, after checks that the module can be translated to machine code and called.

    Raises `CompilationError` if ops of other dialects than LLVM's are left, if the module does not follow the calling
    convention `entry`, or if the sizes of its results differ from the graph's.
    """
    left = diagnosis.leftover_ops(module, recipe, locations)
    if left is not None:
        raise CompilationError(left)
    if entry is None:
        raise CompilationError(diagnosis.no_entry(graph._func_name))
    results = [op for op in graph.results if isinstance(op, Op)]
    passed = [(number, op, spec_of(op)) for number, op in enumerate(results) if 0 not in spec_of(op).shape]
    arity = len(entry.arguments) + len(entry.symbols) + len(passed) + bool(entry.arena)
    if calling_convention.words_of(module, graph._func_name) != arity:
        raise CompilationError(diagnosis.wrong_convention(graph._func_name, arity))
    for (number, op, spec), written in zip(passed, entry.results, strict=False):
        room = spec.bytes
        if room is not None and written is not None and room != written:
            raise CompilationError(diagnosis.wrong_result_size(op.stable, number, written, room))
    return entry


def artifact_of(
    graph: Graph, recipe: Recipe, module: Any, entry: EntryConvention, calls: Sequence[EagerCall],
    objects: Sequence[functions.FunctionObject],
) -> Artifact:  # fmt: skip
    """Returns the artifact of a module that has passed `check_code`, with its compiled `objects`."""
    placeholders = [spec_of(op) for op in graph.placeholders]
    results = [spec_of(op) for op in graph.results if isinstance(op, Op)]
    images = [found.data for found in objects]
    return calling_convention.artifact(
        graph._func_name, entry, module, images, placeholders, results, calls, recipe.threads, symbols_of(graph),
        observed(graph), recipe.target,
    )  # fmt: skip


def spec_of(op: Op) -> TensorSpec:
    return TensorSpec(tuple(map(plain_size, op.tensor_meta.shape)), op.tensor_meta.dtype.value)


Level = Literal["toplevel", "llvm"]
Product = TypeVar("Product", covariant=True)
# Called with the snapshot of each phase as soon as the phase has finished.
OnPhase = Callable[[Snapshot], None]


@dataclass(frozen=True)
class Code:
    """What a backend compiles: the module (an operation) of a graph, at the level that the backend takes.

    `entry` is the calling convention of its entry and `calls` are its calls of eager; both are only for LLVM's level.
    """

    graph: Graph
    recipe: Recipe
    module: Any
    locations: LocationSets
    entry: EntryConvention | None = None
    calls: Sequence[EagerCall] = ()


class Backend(Protocol[Product]):
    """Compiles the IR of level `takes`: top-level IR, or the LLVM dialects after the recipe's passes.

    `phases` are the stages that it adds.
    """

    @property
    def name(self) -> str: ...
    @property
    def takes(self) -> Level: ...
    @property
    def phases(self) -> tuple[str, ...]: ...

    def check(self, code: Code) -> None:
        """Raises `CompilationError` for an unsupported module."""

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Product:
        """Compiles a module that has passed `check`; without `on_phase`, no phase is printed.

        Raises `CompilationError`.
        """


class _Native:
    """Compiles to objects for a CPU, by LLVM."""

    name: str = NATIVE
    takes: Level = "llvm"
    phases: tuple[str, ...] = ("ir", "asm")

    def check(self, code: Code) -> None:
        check_code(code.module, code.entry, code.graph, code.recipe, code.locations)

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Artifact:
        if on_phase is not None:
            on_phase(_translate(code))
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
    """Compiles to PTX for an NVIDIA GPU, and the steps of the host."""

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
    """Creates the program for `iree-compile`, which runs in a separate process (`engine/iree.py`)."""

    name: str = IREE
    takes: Level = "toplevel"
    phases: tuple[str, ...] = IREE_PHASES

    def check(self, code: Code) -> None:
        """Checks nothing: `compile` finds ops that IREE does not support."""

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> IreeProgram:
        try:
            return program_of(code.graph, code.module, code.locations)
        except IreeUnsupportedError as error:
            todo = "give those ops a lowering, extract a part without them, or choose the native backend"
            raise CompilationError(Diagnostic(str(error), "the program for IREE", todo, node=error.node)) from error


NATIVE_BACKEND, GPU_BACKEND = _Native(), _Gpu()
# By the name in a recipe.
BACKENDS: dict[str, Backend[Any]] = {NATIVE: NATIVE_BACKEND, IREE: _Iree()}


def backend_of(module: Any) -> Backend[Artifact]:
    """Returns the backend for a module after the recipe's passes: the GPU's if it holds kernels."""
    return GPU_BACKEND if holds_kernels(module) else NATIVE_BACKEND


def _translate(code: Code) -> Snapshot:
    start = time.perf_counter()
    try:
        content = functions.to_llvm_ir(code.module)
    except (ir.MLIRError, RuntimeError, ValueError) as error:
        raise CompilationError(diagnosis.of_translation(str(error))) from error
    seconds = time.perf_counter() - start
    return snapshots.of_text("translate", "ir", print_llvm(content, code.locations), seconds, "llvm")
