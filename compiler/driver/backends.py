"""The backends: which IR each one takes, its phases, and the parts of a compilation that several backends share.

A recipe names `native`, `iree`, `inductor`, or a backend of a plug-in (`register_backend`). If the passes of a native
recipe have created GPU kernels, the backend `gpu` compiles the module.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import msgspec

from buddy.compiler.codegen import assembly, calling_convention, functions
from buddy.compiler.codegen.calling_convention import EntryConvention
from buddy.compiler.codegen.functions import FunctionObject
from buddy.compiler.codegen.gpu.kernels import DeviceError, device_code, has_kernels
from buddy.compiler.codegen.iree.options import IreeProgram
from buddy.compiler.codegen.iree.program import IreeUnsupportedError, program_of
from buddy.compiler.codegen.machines import MachineError, machine_of
from buddy.compiler.codegen.objects import ObjectCrash
from buddy.compiler.codegen.objects.llvm_passes import OptimiserError
from buddy.compiler.driver import diagnosis, snapshots
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.driver.snapshots import Snapshot
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.node import Op
from buddy.compiler.graph.plugins import is_built_in, origin
from buddy.compiler.graph.sizes import plain_size
from buddy.compiler.graph.transform.rewriting import observed_nodes
from buddy.compiler.graph.types import TensorMeta
from buddy.compiler.mlir.bindings import ir
from buddy.compiler.mlir.printing import print_llvm, to_llvm_ir
from buddy.compiler.mlir.provenance import LocationSets
from buddy.compiler.ops import OWN_DIALECTS
from buddy.compiler.ops.imported_module import ImportedIRError, imported_ir_of, lower_imported
from buddy.compiler.ops.lowering import LoweredModule, NodeError, lower
from buddy.compiler.ops.utils import Registry
from buddy.compiler.protocol import BackendInfo, Diagnostic
from buddy.compiler.protocol.artifact import Artifact, EagerCall, TensorSpec
from buddy.compiler.protocol.catalogue import INDUCTOR_PHASES, IREE_PHASES
from buddy.compiler.protocol.errors import check_registration
from buddy.compiler.protocol.recipe import BACKEND_NAME, INDUCTOR, IREE, NATIVE, Recipe


def check_target(recipe: Recipe) -> None:
    """Raises `CompilationError` for a target without code generation."""
    try:
        machine_of(recipe.target)
    except MachineError as error:
        raise CompilationError(error.diagnostic) from error


def lower_graph(
    graph: Graph, recipe: Recipe, context: ir.Context, locations: LocationSets, overrides: Registry | None
) -> LoweredModule:
    """Returns top-level IR: the graph's nodes lowered one by one, or the IR that was imported with the graph.

    Raises `CompilationError` for a node that can neither be compiled nor run in eager, for an unsupported target
    dialect, and for an invalid imported module.
    """
    try:
        imported = imported_ir_of(graph, recipe)
        if imported is not None:
            return lower_imported(graph, imported, context, locations)
        if recipe.dialect not in OWN_DIALECTS:
            raise CompilationError(diagnosis.no_lowerings(recipe.dialect))
        return lower(graph, recipe, context, locations, overrides)
    except ImportedIRError as error:
        raise CompilationError(error.diagnostic) from error
    except NodeError as error:
        raise CompilationError(diagnosis.of_node(error)) from error


def check_llvm_module(
    module: ir.Operation, entry: EntryConvention | None, graph: Graph, recipe: Recipe, locations: LocationSets
) -> EntryConvention:
    """Returns `entry`, after checks that the module can be translated to machine code and called.

    Raises `CompilationError` if ops of other dialects than LLVM's are left, if the module does not follow the calling
    convention `entry`, or if the sizes of its results differ from the graph's.
    """
    leftover = diagnosis.leftover_ops(module, recipe, locations)
    if leftover is not None:
        raise CompilationError(leftover)
    if entry is None:
        raise CompilationError(diagnosis.no_entry(graph._func_name))
    if not all(argument.is_chained for argument in entry.arguments):
        raise CompilationError(diagnosis.unchained_packing(graph._func_name))
    results = [op for op in graph.results if isinstance(op, Op)]
    # Results without elements have no out-parameter.
    out_parameters = [(number, op, spec_of(op)) for number, op in enumerate(results) if 0 not in spec_of(op).shape]
    arity = len(entry.arguments) + len(entry.symbols) + len(out_parameters) + bool(entry.arena)
    if calling_convention.count_word_arguments(module, graph._func_name) != arity:
        raise CompilationError(diagnosis.wrong_convention(graph._func_name, arity))
    for (number, op, spec), written_bytes in zip(out_parameters, entry.results, strict=False):
        buffer_bytes = spec.bytes
        if buffer_bytes is not None and written_bytes is not None and buffer_bytes != written_bytes:
            raise CompilationError(diagnosis.wrong_result_size(op.stable, number, written_bytes, buffer_bytes))
    return entry


def artifact_of(
    graph: Graph, recipe: Recipe, module: ir.Operation, entry: EntryConvention, calls: Sequence[EagerCall],
    objects: Sequence[functions.FunctionObject],
) -> Artifact:  # fmt: skip
    """Returns the artifact of a module that has passed `check_llvm_module`, with its compiled `objects`."""
    placeholders = [spec_of(op) for op in graph.placeholders]
    results = [spec_of(op) for op in graph.results if isinstance(op, Op)]
    object_files = [function_object.data for function_object in objects]
    return calling_convention.make_artifact(
        graph._func_name, entry, module, object_files, placeholders, results, calls, recipe.threads, symbols_of(graph),
        observed_nodes(graph), recipe.target,
    )  # fmt: skip


def spec_of(op: Op) -> TensorSpec:
    """Returns the shape and element type of the first result of `op`, with symbolic sizes as text."""
    return spec_of_meta(op.tensor_meta)


def spec_of_meta(meta: TensorMeta) -> TensorSpec:
    """Returns a shape and element type as in an artifact, with symbolic sizes as text."""
    return TensorSpec(tuple(map(plain_size, meta.shape)), meta.dtype.value)


# ---- the interface of a backend --------------------------------------------------------------------------------------

# The IR that a backend compiles: the captured graph, top-level IR, or the LLVM dialect.
Level = Literal["graph", "toplevel", "llvm"]
# The result of a backend.
Product = TypeVar("Product", covariant=True)
# Called with the snapshot of each phase as soon as the phase has finished.
OnPhase = Callable[[Snapshot], None]


@dataclass(frozen=True)
class Code:
    """The input of a backend: the module (an operation) of a graph, at the level that the backend takes.

    `entry` is the calling convention of the module's entry function, and `calls` are the module's calls of eager; both
    are set only at the level `llvm`.
    """

    graph: Graph
    recipe: Recipe
    module: Any
    locations: LocationSets
    entry: EntryConvention | None = None
    calls: Sequence[EagerCall] = ()


class Backend(Protocol[Product]):
    """Compiles IR to a product: an `Artifact`, which the runtime loads, or a program for a runtime in another process.

    A recipe names a backend by its `name`; lists show `summary`. `takes` says what the backend compiles: the captured
    graph, top-level IR, or the LLVM dialect after the recipe's passes. `phases` are the phases of the stages that the
    backend adds after that IR.

    A backend may also have `reads`: those of `BACKEND_FIELDS` that it reads, by default `opt_level` and `target`. A
    recipe that sets another of these fields gets a remark that the field has no effect.
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
        """Compiles a module that has passed `check`.

        Calls `on_phase`, if it is not `None`, with one snapshot or more for each of `phases`, in order. Raises
        `CompilationError`.
        """


# The fields of a recipe that only the backend reads.
BACKEND_FIELDS = ("opt_level", "target", "backend_flags", "llvm_stages", "llvm_disabled")
# The fields that a backend without the attribute `reads` reads.
_DEFAULT_READS = ("opt_level", "target")


def ignored_fields(backend: Backend[Any], recipe: Recipe) -> list[str]:
    """Returns a message for each field that `recipe` sets and `backend` does not read."""
    reads = getattr(backend, "reads", _DEFAULT_READS)
    defaults = {field.name: field.default for field in msgspec.structs.fields(Recipe)}
    values = {name: getattr(recipe, name) for name in BACKEND_FIELDS if name not in reads}
    return [
        f"{name} has no effect: the backend {backend.name} does not read it"
        for name, value in values.items()
        if value != defaults[name]
    ]


def compile_objects(
    module: ir.Operation, locations: LocationSets, opt_level: int, target: str = ""
) -> list[FunctionObject]:
    """Returns the objects of a module of the LLVM dialect. Raises `CompilationError` if LLVM crashes on a function."""
    try:
        return functions.compile_functions(module, locations, opt_level, target)
    except ObjectCrash as crash:
        raise CompilationError(diagnosis.of_crash(crash)) from crash


# ---- the backends of this package ------------------------------------------------------------------------------------


class _Native:
    """Compiles to objects for a CPU, by LLVM."""

    name: str = NATIVE
    summary = "this compiler, with the recipe's passes"
    takes: Level = "llvm"
    phases: tuple[str, ...] = ("ir", "asm")
    reads = ("opt_level", "target", "llvm_stages", "llvm_disabled")

    def check(self, code: Code) -> None:
        check_llvm_module(code.module, code.entry, code.graph, code.recipe, code.locations)

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Artifact:
        if on_phase is not None:
            on_phase(_translate(code))
        start = time.perf_counter()
        if code.recipe.llvm_stages or code.recipe.llvm_disabled:
            objects = _compile_by_pass(code, on_phase)
        else:
            objects = compile_objects(code.module, code.locations, code.recipe.opt_level, code.recipe.target)
        seconds = time.perf_counter() - start
        if on_phase is not None:
            text = assembly.assembly_text(objects, code.locations)
            generated = tuple((function.name, 1e3 * function.seconds) for function in objects if not function.reused)
            on_phase(snapshots.of_text("codegen", "asm", text, seconds, "asm", generated))
        assert code.entry is not None
        return artifact_of(code.graph, code.recipe, code.module, code.entry, code.calls, objects)


def _compile_by_pass(code: Code, on_phase: OnPhase | None) -> list[FunctionObject]:
    """Returns the objects that llvmlite's LLVM makes; calls `on_phase` with a snapshot for each pass, if requested."""
    recipe = code.recipe
    prints = on_phase is not None and recipe.llvm_stages
    try:
        result = functions.compile_by_pass(
            code.module, code.locations, recipe.opt_level, recipe.target, recipe.llvm_disabled, with_stages=prints
        )
    except OptimiserError as error:
        raise CompilationError(diagnosis.of_optimiser(error)) from error
    if unknown := [name for name in recipe.llvm_disabled if name not in result.pass_names]:
        raise CompilationError(diagnosis.unknown_llvm_pass(unknown[0], result.pass_names))
    counts_before = None
    for stage in result.stages:
        if on_phase is not None:
            on_phase(snapshots.of_llvm_pass(stage.name, stage.text, stage.counts, counts_before))
        counts_before = stage.counts
    return result.objects


class _Gpu:
    """Compiles to PTX for an NVIDIA GPU, and to the steps that the host performs."""

    name = "gpu"
    summary = "this compiler, for the GPU kernels that the recipe's passes make"
    reads = ("opt_level",)
    takes: Level = "llvm"
    phases: tuple[str, ...] = ("ir", "ptx")

    def check(self, code: Code) -> None:
        if code.entry is None:
            raise CompilationError(diagnosis.no_entry(code.graph._func_name))

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Artifact:
        try:
            kernels = device_code(code.module, code.locations, code.recipe.opt_level)
        except DeviceError as error:
            raise CompilationError(error.diagnostic) from error
        if on_phase is not None:
            on_phase(snapshots.of_text("translate", "ir", kernels.llvm, kernels.llvm_seconds, "llvm"))
            on_phase(snapshots.of_text("codegen", "ptx", kernels.ptx, kernels.ptx_seconds, "ptx"))
        graph = code.graph
        assert code.entry is not None
        arguments = calling_convention.artifact_arguments(code.entry, [spec_of(op) for op in graph.placeholders])
        results = tuple(spec_of(op) for op in graph.results if isinstance(op, Op))
        return Artifact(graph._func_name, (), arguments, results, device=kernels.program)


class _Iree:
    """Creates the program for `iree-compile`, which runs in a separate process (`engine/iree.py`)."""

    name: str = IREE
    summary = "iree-compile from the top-level IR, phase by phase; runs are compared with this compiler's code"
    takes: Level = "toplevel"
    phases: tuple[str, ...] = IREE_PHASES
    reads = ("backend_flags",)

    def check(self, code: Code) -> None:
        """Checks nothing: `compile` finds ops that IREE does not support."""

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> IreeProgram:
        try:
            return program_of(code.graph, code.module, code.locations)
        except IreeUnsupportedError as error:
            todo = "add lowerings for these ops, extract a subgraph without them, or choose the native backend"
            raise CompilationError(Diagnostic(str(error), "the program for IREE", todo, node=error.node)) from error


class _Inductor:
    """Describes Inductor, which takes no module: it compiles in the process of the inputs (`runtime/inductor/`)."""

    name: str = INDUCTOR
    summary = "torch._inductor from the captured graph, stage by stage; runs are compared with this compiler's code"
    takes: Level = "graph"
    phases: tuple[str, ...] = tuple(name for name, _ in INDUCTOR_PHASES)
    reads = ("backend_flags",)

    def check(self, code: Code) -> None:
        """Raises `CompilationError`: there is no module to compile."""
        what, todo = "Inductor compiles captured graphs, not IR", "open the program, and compile it with this recipe"
        raise CompilationError(Diagnostic(what, "the recipe's backend", todo))

    def compile(self, code: Code, on_phase: OnPhase | None = None) -> Artifact:
        self.check(code)  # always raises
        raise AssertionError("check raises")


# ---- finding backends ------------------------------------------------------------------------------------------------

NATIVE_BACKEND, GPU_BACKEND = _Native(), _Gpu()
# The backends of this package that a recipe may name, by name.
BACKENDS: dict[str, Backend[Any]] = {NATIVE: NATIVE_BACKEND, IREE: _Iree(), INDUCTOR: _Inductor()}
_PLUGIN_BACKENDS: dict[str, Backend[Artifact]] = {}
_Class = TypeVar("_Class", bound=type[Any])


def register_backend(cls: _Class) -> _Class:
    """Class decorator: registers an instance of the class, a `Backend[Artifact]`, so that recipes may name it.

    Raises `ValueError` for a name that a recipe cannot have or that a backend of this package has, and for a backend
    that takes top-level IR, whose product would need another runtime. Raises `BuddyError` if another class has
    registered the name.
    """
    backend: Backend[Artifact] = cls()
    if not BACKEND_NAME.search(backend.name) or backend.name in (*BACKENDS, GPU_BACKEND.name):
        raise ValueError(f"backend {backend.name!r}: choose a new name of lower-case letters, digits and hyphens")
    if backend.takes != "llvm":
        raise ValueError(f"backend {backend.name!r} takes {backend.takes!r}: a backend of a plug-in takes 'llvm'")
    registered = _PLUGIN_BACKENDS.get(backend.name)
    check_registration("backend", backend.name, registered and type(registered), cls)
    _PLUGIN_BACKENDS[backend.name] = backend
    return cls


def plugin_backends() -> dict[str, Backend[Artifact]]:
    """Returns the backends that `register_backend` has added, by name."""
    return dict(_PLUGIN_BACKENDS)


def backend_named(name: str) -> Backend[Any]:
    """Returns the backend that a recipe names. Raises `CompilationError` for an unknown name."""
    backend = BACKENDS.get(name) or _PLUGIN_BACKENDS.get(name)
    if backend is None:
        raise CompilationError(diagnosis.unknown_backend(name, (*BACKENDS, *sorted(_PLUGIN_BACKENDS))))
    return backend


def select_backend(recipe: Recipe, module: ir.Operation) -> Backend[Artifact]:
    """Returns the backend for `module`, the result of the recipe's passes.

    This is the recipe's backend, or `gpu` if the recipe's backend is `native` and the module has GPU kernels. Raises
    `CompilationError` like `backend_named`.
    """
    backend = backend_named(recipe.backend)
    return GPU_BACKEND if backend is NATIVE_BACKEND and has_kernels(module) else backend


@contextmanager
def report_plugin_errors(backend: Backend[Any]) -> Iterator[None]:
    """Turns any exception of a plug-in's backend inside the `with` block into a `CompilationError`."""
    try:
        yield
    except CompilationError:
        raise
    except Exception as error:
        if is_built_in(backend):
            raise
        raise CompilationError(diagnosis.of_plugin_backend(backend.name, error)) from error


def describe_backends() -> tuple[BackendInfo, ...]:
    """Returns descriptions of the backends that a recipe may name: those of this package, then those of plug-ins."""
    backends = [*BACKENDS.values(), *(_PLUGIN_BACKENDS[name] for name in sorted(_PLUGIN_BACKENDS))]
    return tuple(
        BackendInfo(backend.name, backend.summary, backend.takes, backend.phases, origin(("backend", backend.name)))
        for backend in backends
    )


def _translate(code: Code) -> Snapshot:
    """Returns the snapshot of the LLVM IR of a module. Raises `CompilationError`."""
    start = time.perf_counter()
    try:
        content = to_llvm_ir(code.module)
    except (ir.MLIRError, RuntimeError, ValueError) as error:
        raise CompilationError(diagnosis.of_translation(str(error))) from error
    seconds = time.perf_counter() - start
    return snapshots.of_text("translate", "ir", print_llvm(content, code.locations), seconds, "llvm")
