"""The backends: the IR that each compiles, its phases, and the steps of compilation that all share.

A recipe names `native`, `iree`, or a backend of a plug-in (`register_backend`). A native program whose passes have made
GPU kernels is compiled by `gpu`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from buddy.compiler.codegen import assembly, calling_convention, functions
from buddy.compiler.codegen.calling_convention import EntryConvention
from buddy.compiler.codegen.functions import FunctionObject
from buddy.compiler.codegen.gpu.kernels import DeviceError, device_code, holds_kernels
from buddy.compiler.codegen.iree.options import IreeProgram
from buddy.compiler.codegen.iree.program import IreeUnsupportedError, program_of
from buddy.compiler.codegen.machines import MachineError, machine_of
from buddy.compiler.codegen.objects import ObjectCrash
from buddy.compiler.driver import diagnosis, snapshots
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.driver.snapshots import Snapshot
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.node import Op
from buddy.compiler.graph.plugins import is_built_in, origin
from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.graph.transform.rewriting import observed
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_llvm
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops import OWN_DIALECTS
from buddy.compiler.ops.imported_module import ImportedIRError, imported_ir_of, lower_imported
from buddy.compiler.ops.lowering import LoweredModule, NodeError, lower
from buddy.compiler.ops.registry import Registry
from buddy.compiler.protocol import BackendInfo, Diagnostic
from buddy.compiler.protocol.artifact import Artifact, EagerCall, TensorSpec
from buddy.compiler.protocol.catalogue import IREE_PHASES
from buddy.compiler.protocol.recipe import BACKEND_NAME, IREE, NATIVE, Recipe


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
    """Compiles IR to a product: an `Artifact`, which the runtime loads, or a program for a runtime in another process.

    A recipe names it by `name`; lists show `summary`. `takes` says which IR it compiles: top-level IR, or what the
    recipe's passes leave in LLVM's dialects. `phases` are the stages that it adds behind that.
    """

    @property
    def name(self) -> str: ...
    @property
    def summary(self) -> str: ...
    @property
    def takes(self) -> Level: ...
    @property
    def phases(self) -> tuple[str, ...]: ...

    def check(self, code: Code) -> None:
        """Raises `CompilationError` for an unsupported module."""

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Product:
        """Compile a module that has passed `check`.

        Calls `on_phase`, if given, with a snapshot for each of `phases`, in order. Raises `CompilationError`.
        """


def objects_of(module: Any, locations: LocationSets, opt_level: int, target: str = "") -> list[FunctionObject]:
    """The objects of a module of the LLVM dialect. Raises `CompilationError` if LLVM crashed on a function."""
    try:
        return functions.compile_functions(module, locations, opt_level, target)
    except ObjectCrash as crash:
        raise CompilationError(diagnosis.of_crash(crash)) from crash


class _Native:
    """Compiles to objects for a CPU, by LLVM."""

    name: str = NATIVE
    summary = "this compiler, with the recipe's passes"
    takes: Level = "llvm"
    phases: tuple[str, ...] = ("ir", "asm")

    def check(self, code: Code) -> None:
        check_code(code.module, code.entry, code.graph, code.recipe, code.locations)

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Artifact:
        if on_phase is not None:
            on_phase(_translate(code))
        start = time.perf_counter()
        objects = objects_of(code.module, code.locations, code.recipe.opt_level, code.recipe.target)
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
    summary = "this compiler, for the GPU kernels that the recipe's passes make"
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
    summary = "iree-compile from the top-level IR, phase by phase; runs are compared with this compiler's code"
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
_REGISTRY: dict[str, Backend[Artifact]] = {}
_Class = TypeVar("_Class", bound=type[Any])


def register_backend(cls: _Class) -> _Class:
    """Class decorator: makes a `Backend[Artifact]` of the class, which recipes may then name.

    Raises `ValueError` for a name that a recipe cannot have, for that of a backend of this package, and for a backend
    of top-level IR, whose product would need another runtime.
    """
    found: Backend[Artifact] = cls()
    if not BACKEND_NAME.search(found.name) or found.name in (*BACKENDS, GPU_BACKEND.name):
        raise ValueError(f"backend {found.name!r}: choose a new name of lower-case letters, digits and hyphens")
    if found.takes != "llvm":
        raise ValueError(f"backend {found.name!r} takes {found.takes!r}: a backend of a plug-in takes 'llvm'")
    _REGISTRY[found.name] = found
    return cls


def registered() -> dict[str, Backend[Artifact]]:
    """The backends that `register_backend` has added, by name."""
    return dict(_REGISTRY)


def backend_named(name: str) -> Backend[Any]:
    """The backend that a recipe names. Raises `CompilationError` for an unknown name."""
    found = BACKENDS.get(name) or _REGISTRY.get(name)
    if found is None:
        raise CompilationError(diagnosis.unknown_backend(name, (*BACKENDS, *sorted(_REGISTRY))))
    return found


def backend_of(recipe: Recipe, module: Any) -> Backend[Artifact]:
    """The backend for a module that the recipe's passes have left: the recipe's, or the GPU's where a native recipe
    has made kernels.

    Raises `CompilationError` like `backend_named`.
    """
    found = backend_named(recipe.backend)
    return GPU_BACKEND if found is NATIVE_BACKEND and holds_kernels(module) else found


@contextmanager
def reported(backend: Backend[Any]) -> Iterator[None]:
    """Raises `CompilationError` for any exception of a plug-in's backend."""
    try:
        yield
    except CompilationError:
        raise
    except Exception as error:
        if is_built_in(backend):
            raise
        raise CompilationError(diagnosis.of_plugin_backend(backend.name, error)) from error


def describe_backends() -> tuple[BackendInfo, ...]:
    """The backends that a recipe may name: those of this package, then those of plug-ins."""
    known = [*BACKENDS.values(), *(_REGISTRY[name] for name in sorted(_REGISTRY))]
    return tuple(
        BackendInfo(found.name, found.summary, found.takes, found.phases, origin(("backend", found.name)))
        for found in known
    )


def _translate(code: Code) -> Snapshot:
    start = time.perf_counter()
    try:
        content = functions.to_llvm_ir(code.module)
    except (ir.MLIRError, RuntimeError, ValueError) as error:
        raise CompilationError(diagnosis.of_translation(str(error))) from error
    seconds = time.perf_counter() - start
    return snapshots.of_text("translate", "ir", print_llvm(content, code.locations), seconds, "llvm")
