"""The `torch.compile` backend: compiles graphs and runs them in the caller's process."""

from __future__ import annotations

import copy
import logging
import threading
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

import torch

from buddy.compiler.driver import program_cache
from buddy.compiler.frontend.aten import AtenGraph, OpsMap, Runner, default_decompositions, load_plugins, run_aot
from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.frontend.capture import replacement_backend
from buddy.compiler.frontend.choices import choices_for_graph
from buddy.compiler.frontend.convert import Conversion
from buddy.compiler.frontend.direct_gradients import NativeGraph
from buddy.compiler.frontend.errors import FallbackError, OptionError, UnsupportedGraphError
from buddy.compiler.frontend.frequent_sizes import FrequentSizes
from buddy.compiler.frontend.graph_splitter import GraphCut, SplitGraph, cut_around
from buddy.compiler.frontend.input_forms import check_inputs
from buddy.compiler.frontend.quantisation import OF_CONSTANT_WEIGHTS
from buddy.compiler.frontend.quantisation.tensors import check_quantised
from buddy.compiler.frontend.rejections import (
    SuspectedError,
    SuspectedGraph,
    check_graph,
    eager_after,
    with_eager_errors,
    with_form_checks,
)
from buddy.compiler.frontend.results import GraphResults, convert_with_view_bases
from buddy.compiler.frontend.summary import (
    Counting,
    count_artifact,
    count_eager,
    counting_graph,
    restart_count,
)
from buddy.compiler.frontend.verify import VerifiedGraph
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.graph.operations import Conv2dOp
from buddy.compiler.graph.sizes import is_dynamic
from buddy.compiler.protocol import Assignment, Diagnostic
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.runtime import LoadedProgram, released_weights
from buddy.compiler.runtime.buffers import WorkArena, spec_bytes
from buddy.compiler.runtime.native_calls import BuiltinCall
from buddy.compiler.runtime.torch_values import bind_symbols
from buddy.compiler.support import hooks
from buddy.compiler.support.dynamo_internals import TorchDynamoException

if TYPE_CHECKING:
    from buddy.compiler.ops.registry import Lowering


# Maximum number of cached versions per dynamic graph. The least recently used one is evicted, and recompiled if its
# sizes occur again.
MAX_SPECIALISATIONS = 64
# Compiles a graph under a recipe to an artifact.
Build = Callable[[Graph, Recipe], Artifact]
# Errors for the caller, and exceptions that control TorchDynamo: they never make a graph fall back to eager.
_PROPAGATED = (OptionError, FallbackError, TorchDynamoException)
_log = logging.getLogger("buddy.frontend")
_programs: weakref.WeakSet[LoadedProgram] = weakref.WeakSet()
# Programs for frequent sizes are added by another thread.
_programs_lock = threading.Lock()


class Autotuner(Protocol):
    """The recipe of a graph, and a search for a faster one. Implemented by `tools.tune.autotune.TunedRecipe`."""

    recipe: Recipe

    def search(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int]) -> Recipe | None:
        """Returns a faster recipe, with which to compile the graph from now on, or `None`; trials use these values."""


@dataclass(frozen=True)
class CompilerOverrides:
    """A caller's replacements of the defaults of `compile_aten`.

    `ops_map` maps FX targets to op classes. `lowerings`, by op class name, have priority over all registries. `build`
    replaces the compilation and its disk cache, for callers that observe compilation.
    """

    ops_map: OpsMap | None = None
    lowerings: dict[str, Lowering] | None = None
    build: Build | None = None


def buddy_backend(
    module: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    *,
    options: Mapping[str, object] | None = None,
    mode: str | None = None,
    compile_graph: Callable[[AtenGraph, BackendSettings], Runner] | None = None,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None = None,
    on_static_graph: Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], None] | None = None,
    propagate_errors: bool = False,
    **_: object,
) -> Callable[..., Sequence[torch.Tensor]]:
    """Compiles a Dynamo graph; PyTorch finds this backend as "buddy".

    Example: `torch.compile(f, backend="buddy", options={"fallback": "error"})`.

    `options` and `mode` are parsed by `BackendSettings.of`, which raises `ValueError` for invalid ones. `compile_graph`
    replaces `compile_aten`, and `decompositions` replaces the default ones. `on_static_graph` is called with each
    Dynamo graph of static sizes before it is compiled, with its real inputs. With `fallback="eager"`, a graph runs in
    eager if its compilation raises; exceptions propagate if `compile_graph` is given or `propagate_errors` is true.
    `OptionError`, `FallbackError` and TorchDynamo's own exceptions always propagate.
    """
    load_plugins()
    replacement = replacement_backend()
    if replacement is not None:
        return replacement(module, inputs)
    settings = BackendSettings.of(options, mode)
    with counting_graph(settings.summary and compile_graph is None and on_static_graph is None) as counting:
        return _compile_dynamo_graph(
            module, inputs, settings, compile_graph, decompositions, on_static_graph, propagate_errors, counting
        )


def _compile_dynamo_graph(
    module: torch.fx.GraphModule,
    inputs: Sequence[torch.Tensor],
    settings: BackendSettings,
    compile_graph: Callable[[AtenGraph, BackendSettings], Runner] | None,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None,
    on_static_graph: Callable[[torch.fx.GraphModule, Sequence[torch.Tensor]], None] | None,
    propagate_errors: bool,
    counting: Counting,
) -> Callable[..., Sequence[torch.Tensor]]:
    """Compiles a Dynamo graph. `counting` is the context for versions that are compiled at later calls."""
    may_fall_back = compile_graph is None and settings.fallback == "eager" and not propagate_errors
    compile_aten_graph = compile_graph or (compile_or_fall_back if may_fall_back else compile_aten)
    try:
        check_inputs(module, inputs)
        check_quantised(module)
    except UnsupportedGraphError as rejection:
        if settings.fallback == "error":
            raise
        return _fall_back(module, rejection).forward

    def make_or_fall_back(
        graph: torch.fx.GraphModule, make: Callable[[], Callable[..., Sequence[torch.Tensor]]]
    ) -> Callable[..., Sequence[torch.Tensor]]:
        """Returns the result of `make`, or `graph` itself, for eager, if `make` raises and fallback is allowed."""
        try:
            return make()
        except _PROPAGATED:
            raise
        except Exception as error:
            if not may_fall_back:
                raise
            return _fall_back(graph, error).forward

    def compile_static(
        static: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]
    ) -> Callable[..., Sequence[torch.Tensor]]:
        if on_static_graph is not None:
            on_static_graph(static, tensors)

        def trace(
            table: Mapping[torch._ops.OpOverload, Callable[..., object]], check: Callable[..., None] | None = None
        ) -> Callable[..., Sequence[torch.Tensor]]:
            restart_count()
            compiled = run_aot(
                static, tensors, lambda aten: compile_aten_graph(aten, settings), table, check=check,
                fallback_random=settings.fallback_random,
            )  # fmt: skip
            return with_eager_errors(static, compiled)

        table = default_decompositions() if decompositions is None else decompositions
        if not settings.freeze:
            table = {op: rule for op, rule in table.items() if op not in OF_CONSTANT_WEIGHTS}
        try:
            return trace(with_form_checks(table), check_graph)
        except SuspectedError:
            pass
        # Compile now rather than at the call: Dynamo knows the values in constant tensors only while it compiles.
        try:
            compiled = trace(table)
        except (OptionError, TorchDynamoException):
            raise
        except Exception as error:
            failure = error
            return SuspectedGraph(static, lambda: make_or_fall_back(static, partial(_raise, failure)))
        return SuspectedGraph(static, lambda: compiled)

    if not _is_dynamic(module):
        return make_or_fall_back(module, lambda: compile_static(module, inputs))

    def compile_version(
        static: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]
    ) -> Callable[..., Sequence[torch.Tensor]]:
        with counting():
            return make_or_fall_back(static, lambda: compile_static(static, tensors))

    specialised = torch._dynamo.disable(SpecialisedGraph(module, compile_version), reason="compiled code is not traced")
    if compile_graph is not None or on_static_graph is not None:
        return specialised
    return make_or_fall_back(
        module, lambda: compile_for_all_sizes(module, inputs, settings, decompositions, may_fall_back) or specialised
    )


def refreeze() -> None:
    """Updates the frozen weights of everything compiled with `options={"freeze": True}` at its next call.

    Call it after frozen weights have changed. Code compiled without `freeze` reads weights at each call.
    """
    with _programs_lock:
        programs = list(_programs)
    for program in programs:
        program.refreeze()


def restore_weights() -> None:
    """Gives the modules their weights back that `options={"freeze": "release"}` has released.

    Call it before eager code reads such weights, for example to save them. They then take memory again.
    """
    released_weights.restore_all()


def compile_aten(aten: AtenGraph, settings: BackendSettings, overrides: CompilerOverrides | None = None) -> Runner:
    """Compiles an ATen graph; unsupported parts run in eager with a warning.

    With `fallback="error"`, raises `UnsupportedGraphError`, `FallbackError` or `CompilationError` for these parts.
    """
    from buddy.compiler.driver.diagnosis import CompilationError

    overrides = overrides or CompilerOverrides()

    def compile_or_raise(piece: AtenGraph) -> Runner:
        return _compile_conversion(convert_with_view_bases(piece, overrides.ops_map), settings, piece, overrides)

    def compile_or_warn(piece: AtenGraph) -> Runner:
        try:
            return compile_or_raise(piece)
        except CompilationError as error:
            warnings.warn(f"a graph of {len(piece.module.graph.nodes)} nodes runs in eager: {error}", stacklevel=2)
            count_eager(piece, piece.module.graph.nodes)
            return piece.module

    compile_piece = compile_or_raise if settings.fallback == "error" else compile_or_warn
    try:
        return compile_piece(aten)
    except UnsupportedGraphError as error:
        cut = cut_around(aten, error, lambda piece: GraphResults(convert_with_view_bases(piece, overrides.ops_map)))
        compile_body = partial(compile_aten, settings=settings, overrides=overrides)
        return _compile_pieces(cut, compile_piece, compile_body, error if settings.fallback == "error" else None)


def compile_or_fall_back(aten: AtenGraph, settings: BackendSettings) -> Runner:
    """Like `compile_aten`, but falls back to eager on any exception except those of `_PROPAGATED`."""
    try:
        return compile_aten(aten, settings)
    except _PROPAGATED:
        raise
    except Exception as error:
        return _fall_back(aten.module, error, aten)


def _fall_back(module: torch.fx.GraphModule, error: Exception, aten: AtenGraph | None = None) -> torch.fx.GraphModule:
    """Returns `module` itself, after a warning with the reason why it is not compiled; the traceback is logged.

    `module` is a Dynamo graph, or that of `aten`.
    """
    count_eager(aten, module.graph.nodes)
    reason = str(error).strip().partition("\n")[0]
    reason = reason if isinstance(error, UnsupportedGraphError) else f"{type(error).__name__}: {reason}"
    warnings.warn(f"a graph of {len(module.graph.nodes)} nodes runs in eager: {reason}", stacklevel=3)
    _log.debug("a graph falls back to eager", exc_info=error)
    return module


def _compile_pieces(
    cut: GraphCut, compile_piece: Callable[[AtenGraph], Runner], compile_body: Callable[[AtenGraph], Runner],
    rejection: UnsupportedGraphError | None,
) -> Runner:  # fmt: skip
    """Compiles a cut graph. If nodes would run in eager, raises `rejection`, or warns if `rejection` is None."""
    if cut.in_eager:
        if rejection is not None:
            raise rejection
        warnings.warn(str(cut), stacklevel=3)
        if not cut.compiled:
            count_eager(cut.aten, cut.aten.module.graph.nodes)
        else:
            in_eager = [node for node in cut.aten.module.graph.nodes if node.name in cut.in_eager]
            count_eager(cut.aten, in_eager, between=True)
    return SplitGraph(cut, compile_piece, compile_body) if cut.compiled or not cut.in_eager else cut.aten.module


def _compile_conversion(
    conversion: Conversion, settings: BackendSettings, aten: AtenGraph, overrides: CompilerOverrides | None = None
) -> Runner:
    """Compiles a converted graph; with the option `verify`, its calls are compared with eager."""
    compiled = CompiledGraph(conversion, settings, aten, overrides)
    if settings.verify == "off":
        return compiled
    lowerings = overrides.lowerings if overrides else None
    return VerifiedGraph(compiled, aten, compiled.recipe, settings.verify, lowerings, compiled.precisions)


class CompiledGraph:
    """A compiled and linked graph; called with the ATen graph's tensors, it returns the ATen graph's results.

    Results have eager's strides, since AOTAutograd rebuilds views by their strides. `aten` is the converted graph,
    which may be a piece.
    """

    def __init__(
        self,
        conversion: Conversion,
        settings: BackendSettings,
        aten: AtenGraph,
        overrides: CompilerOverrides | None = None,
    ) -> None:
        graph, overrides = conversion.graph, overrides or CompilerOverrides()
        lowerings, build, training = overrides.lowerings, overrides.build, aten.kind != "inference"
        self._constants = conversion.constants
        self._results = GraphResults(conversion, for_autograd=training)
        self._symbols = symbols_of(graph)
        is_whole = aten.kind != "backward" and not aten.piece
        self.recipe = recipe = choices_for_graph(graph, settings.recipe(training), is_whole, bool(lowerings))
        make_artifact = build or (lambda graph, recipe: _find_or_compile(graph, recipe, settings, lowerings))
        should_tune = _should_tune(graph, recipe, settings, lowerings, build)
        self._autotuner: Autotuner | None = None
        if should_tune:
            self._autotuner = hooks.autotuner()(graph, recipe, settings.tune, settings.max_error)
        frozen = settings.freezes(training)
        releases = settings.releases and is_whole
        self._make_program = lambda recipe: _load(make_artifact(graph, recipe), frozen, releases, aten.scratch)
        self._program: LoadedProgram | None = None
        self.precisions: dict[str, str] = {}
        if graph.results:
            artifact = make_artifact(graph, self._autotuner.recipe if self._autotuner else recipe)
            count_artifact(aten, artifact, len(graph.operations))
            self.precisions = dict(artifact.precisions)
            for note in artifact.notes if settings.has_precision else ():
                warnings.warn(note, stacklevel=2)
            self._program = _load(artifact, frozen, releases, aten.scratch)
        self._aten, self._runs_in_eager = aten, bool(graph.results) and artifact.results_of_eager
        self._frequent: FrequentSizes | None = None
        if (
            self._symbols
            and self._program is not None
            and _may_specialise(graph, recipe, settings, training, overrides)
        ):
            load = partial(_load_specialised, self._program) if frozen else _load
            self._frequent = FrequentSizes(graph, recipe, settings.specialise, settings.fallback == "eager", load)

    def direct_call(self, input_of: Sequence[int]) -> Callable[..., Sequence[torch.Tensor]] | None:
        """Returns a built-in function that calls compiled code with the inputs of the Dynamo graph, or `None`.

        Input `i` of the ATen graph is number `input_of[i]` of the Dynamo graph. The function returns the results of the
        graph, and raises eager's error for values that compiled code rejects.
        """
        if not self._results.are_computed:
            return None
        return self._native_function(input_of, partial(eager_after, self._aten.dynamo))

    def native_graph(self) -> NativeGraph | None:
        """Returns the native function of a forward or backward graph, with the sources of its results, or `None`.

        The function raises the error of an op in eager.
        """
        n_inputs = len(self._aten.input_of)
        sources, function = self._results.sources(n_inputs), self._native_function(range(n_inputs), _raise)
        if sources is None or function is None:
            return None
        return NativeGraph(function, self._results.n_computed, sources, self.lend if self.bytes_of_inputs() else None)

    def lend(self, tensors: Sequence[torch.Tensor], is_released: bool = False) -> AbstractContextManager[None] | None:
        """Lends the memory of inputs for results (see `Lend`); `tensors` are the inputs of a backward graph."""
        # Symbols are inputs that are no tensors.
        if self._program is None or self._symbols or self._runs_in_eager or self._autotuner is not None:
            return None
        return self._program.lend(tensors, is_released)

    def bytes_of_inputs(self) -> dict[int, int]:
        """Returns the bytes of memory that inputs should have for `lend`, by number; only of those with results."""
        return {} if self._program is None or self._symbols else self._program.bytes_of_inputs

    def result_bytes(self) -> dict[int, int]:
        """Returns the bytes of the results that are tensors of their own, by position; not of those of dynamic size."""
        if self._program is None or self._symbols:
            return {}
        sizes = self._program.result_bytes
        return {position: sizes[source] for position, source in self._own_results().items()}

    def reserve(self, position: int, size: int) -> None:
        """Makes the tensor at `position` of the results have at least `size` bytes of memory in later calls.

        Does nothing for a result that is not a tensor of its own.
        """
        source = self._own_results().get(position)
        if self._program is not None and source is not None:
            self._program.reserve(source, size)

    def free_after_use(self, position: int) -> None:
        """Makes memory of later tensors at `position` of the results be freed with them, instead of being reused."""
        source = self._own_results().get(position)
        if self._program is not None and source is not None:
            self._program.free_after_use(source)

    def _own_results(self) -> dict[int, int]:
        """Returns the number of the computed tensor of each result that is a tensor of its own, by position."""
        sources = self._results.sources(len(self._aten.input_of)) or ()
        return {
            position: source
            for position, source in enumerate(sources)
            if source is not None and source < self._results.n_computed and sources.count(source) == 1
        }

    def _native_function(
        self, input_of: Sequence[int], on_error: Callable[[Exception, Sequence[torch.Tensor]], object]
    ) -> BuiltinCall | None:
        """Returns the program's native function, or `None` if calls have to do more than call the program."""
        if self._program is None or self._autotuner is not None or self._runs_in_eager:
            return None
        return self._program.native_function((*input_of, *self._constants), on_error)

    def __call__(self, *arguments: torch.Tensor | int) -> list[torch.Tensor | int | None]:
        inputs = [*(value for value in arguments if isinstance(value, torch.Tensor)), *self._constants]
        numbers = [value for value in arguments if not isinstance(value, torch.Tensor)]
        symbols = bind_symbols(self._symbols, inputs, numbers)
        faster = self._autotuner.search(inputs, numbers) if self._autotuner is not None else None
        if faster is not None:
            self._program = self._make_program(faster)
        program = self._frequent.find_program(symbols) if self._frequent is not None else None
        program = program or self._program
        results = program(inputs, numbers) if program is not None else []
        return self._results.of_call(results, inputs, symbols)


def _raise(error: Exception, _inputs: Sequence[torch.Tensor] = ()) -> NoReturn:
    raise error


def _should_tune(
    graph: Graph, recipe: Recipe, settings: BackendSettings, lowerings: dict[str, Lowering] | None, build: Build | None
) -> bool:
    """Returns whether to search for a faster recipe.

    Graphs that depend on a script's registrations are not tuned, since the process that searches lacks these.
    """
    return bool(
        settings.tune
        and graph.results
        and not lowerings
        and not build
        and program_cache.uses_only_built_in_code(graph, recipe)
    )


def _may_specialise(
    graph: Graph, recipe: Recipe, settings: BackendSettings, training: bool, overrides: CompilerOverrides
) -> bool:
    """True if frequent sizes get separate code.

    They do not with `verify` and `tune`, which check only the code for all sizes; nor with weights whose memory is
    released; nor with a script's registrations, which the compiling process lacks.
    """
    releases = settings.releases and settings.freezes(training)
    is_plain = settings.verify == "off" and not settings.tune and not releases
    is_overridden = overrides.lowerings or overrides.build
    return bool(
        settings.specialise and is_plain and not is_overridden and program_cache.uses_only_built_in_code(graph, recipe)
    )


# The maximum number of bytes of packed weights that the code for one set of sizes has of its own.
_MAX_OWN_BYTES = 1 << 20


def _load_specialised(general: LoadedProgram, artifact: Artifact) -> LoadedProgram | None:
    """Returns a program with frozen weights for one set of sizes, which shares the packed weights of `general`.

    Returns `None` if it would need much memory for copies of its own: there may be many sets of sizes.
    """
    packed = {(a.source, a.spec) for a in artifact.arguments if a.pack}
    if sum(spec_bytes(spec) for _, spec in packed - general.packed_specs) > _MAX_OWN_BYTES:
        return None
    program = LoadedProgram(artifact, frozen=True, shared_weights=general.packed_copies())
    with _programs_lock:
        _programs.add(program)
    return program


def _load(
    artifact: Artifact, frozen: bool = False, releases: bool = False, scratch: WorkArena | None = None
) -> LoadedProgram:
    program = LoadedProgram(artifact, frozen, releases=releases, scratch=scratch)
    with _programs_lock:
        _programs.add(program)
    return program


def _find_or_compile(
    graph: Graph, recipe: Recipe, settings: BackendSettings, lowerings: dict[str, Lowering] | None
) -> Artifact:
    """Returns the artifact from the disk cache, or compiles the graph."""
    # A script's own lowerings are not part of the cache key.
    artifact = None if lowerings else program_cache.find_program(graph, recipe)
    if artifact is None or (artifact.results_of_eager and settings.fallback == "error"):
        artifact = _compile_and_store(graph, recipe, settings, lowerings)
    return artifact


def _compile_and_store(
    graph: Graph, recipe: Recipe, settings: BackendSettings, lowerings: dict[str, Lowering] | None
) -> Artifact:
    from buddy.compiler.driver.compilation import Compiler
    from buddy.compiler.driver.compile_graph import compile_and_store
    from buddy.compiler.ops.registry import Registry

    registry = Registry(lowerings) if lowerings else None
    if settings.fallback == "error":
        reject_eager(graph, Compiler(graph, registry).assignments(recipe))
    return compile_and_store(graph, recipe, registry)


def reject_eager(graph: Graph, assignments: Sequence[Assignment]) -> None:
    """Raises `FallbackError` if an op would run in eager; the message has the first such op and their number."""
    by_name = {op.stable: op for op in graph.body}
    eager = [(by_name[a.node], a.reason) for a in assignments if a.lowering == EAGER and a.node in by_name]
    if not eager:
        return
    op, reason = eager[0]
    more = f" (and {len(eager) - 1} more)" if len(eager) > 1 else ""
    raise FallbackError(
        Diagnostic(
            what=f"{op.target} would run in eager{more}: {reason or 'no lowering supports it'}",
            where=f"node {op.stable}" + (f", {op.location}" if op.location else ""),
            todo="register a lowering for it, rewrite the line with other ops, or allow eager with fallback='eager'",
            node=op.stable,
        )
    )


# ---- sizes that change from call to call -----------------------------------------------------------------------------


def compile_for_all_sizes(
    module: torch.fx.GraphModule, inputs: Sequence[torch.Tensor], settings: BackendSettings,
    decompositions: Mapping[torch._ops.OpOverload, Callable[..., object]] | None, may_fall_back: bool = False,
) -> Callable[..., Sequence[torch.Tensor]] | None:  # fmt: skip
    """Compiles a Dynamo graph with symbolic sizes once; returns `None` if some part of it needs static sizes.

    With `fallback="error"`, also returns `None` if an op would run in eager: it may be supported for static sizes. With
    `may_fall_back`, a backward graph whose compilation raises runs in eager.
    """
    from buddy.compiler.driver.diagnosis import CompilationError

    def compile_one(aten: AtenGraph) -> Runner:
        if aten.kind == "backward":
            # It is too late to compile for static sizes: the forward graph is compiled already.
            return (compile_or_fall_back if may_fall_back else compile_aten)(aten, settings)
        try:
            return compile_piece(aten)
        except UnsupportedGraphError as error:
            cut = cut_around(aten, error, lambda piece: GraphResults(convert_with_view_bases(piece)))
            # Graphs with data-dependent sizes cannot be traced again for each set of sizes.
            allows_eager = cut.reads_numbers and settings.fallback == "eager"
            return _compile_pieces(cut, compile_piece, compile_one, None if allows_eager else error)

    def compile_piece(aten: AtenGraph) -> Runner:
        conversion = convert_with_view_bases(aten)
        _check_images(conversion.graph)
        return _compile_conversion(conversion, settings, aten)

    try:
        random = settings.fallback_random
        return with_eager_errors(module, run_aot(module, inputs, compile_one, decompositions, fallback_random=random))
    except (UnsupportedGraphError, CompilationError, FallbackError) as error:
        warnings.warn(f"compiled again for each set of sizes: {error}", stacklevel=2)
        return None


def _check_images(graph: Graph) -> None:
    """Raises `UnsupportedGraphError` for a convolution over an image of symbolic size.

    The convolution kernels need static image sizes (the batch size may be symbolic); without these kernels a
    convolution takes about forty times as long.
    """
    for op in graph.operations:
        if isinstance(op, Conv2dOp) and is_dynamic(op.args[0].tensor_meta.shape[2:]):
            raise UnsupportedGraphError(
                Diagnostic(f"{op.stable or op.name} slides over images of a size known only at the call")
            )


class SpecialisedGraph:
    """A Dynamo graph with symbolic sizes, compiled for each set of sizes it is called with."""

    def __init__(
        self, module: torch.fx.GraphModule, compile_static: Callable[..., Callable[..., Sequence[torch.Tensor]]]
    ) -> None:
        self._module = module
        self._compile = compile_static
        self._floats = _positions_of_floats(module)
        self._versions: OrderedDict[object, Callable[..., Any]] = OrderedDict()

    def __call__(self, *args: Any) -> Sequence[torch.Tensor]:
        if self._floats:
            args = tuple(value.item() if index in self._floats else value for index, value in enumerate(args))
        key = (torch.is_grad_enabled(), *map(_version_key, args))
        if key not in self._versions:
            self._versions[key] = self._compile(*_specialise(self._module, args))
            if len(self._versions) > MAX_SPECIALISATIONS:
                self._versions.popitem(last=False)
        self._versions.move_to_end(key)
        return self._versions[key](*[value for value in args if isinstance(value, torch.Tensor)])


def _is_dynamic(module: torch.fx.GraphModule) -> bool:
    return any(_has_symbols(n.meta.get("example_value")) for n in module.graph.nodes if n.op == "placeholder")


def _has_symbols(value: object) -> bool:
    if isinstance(value, torch.Tensor):
        return any(isinstance(size, torch.SymInt) for size in (*value.shape, *value.stride()))
    return isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool))


def _positions_of_floats(module: torch.fx.GraphModule) -> frozenset[int]:
    """Returns the positions of the inputs that are Python floats.

    Dynamo passes each of them as a tensor of rank 0, which only `item` reads.
    """
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset(
        index for index, node in enumerate(placeholders) if node.users and all(map(_reads_float, node.users))
    )


def _reads_float(node: torch.fx.Node) -> bool:
    """True if `node` reads a Python float out of the tensor as which Dynamo passes it."""
    return (node.op, node.target) == ("call_method", "item") and isinstance(
        node.meta.get("example_value"), torch.SymFloat
    )


def _version_key(value: torch.Tensor | float) -> object:
    """Returns the properties of an argument for which a version is compiled; for a number, the number."""
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), value.stride(), value.dtype, value.requires_grad)
    return value


def _specialise(
    module: torch.fx.GraphModule, args: Sequence[torch.Tensor]
) -> tuple[torch.fx.GraphModule, list[torch.Tensor]]:
    """Returns a copy of the graph with the numbers of `args` as constants, and the tensors of `args` to pass to it."""
    static = copy.deepcopy(module)
    placeholders = [node for node in static.graph.nodes if node.op == "placeholder"]
    for node, value in zip(placeholders, args, strict=True):
        if not isinstance(value, torch.Tensor):
            reads = list(node.users) if isinstance(value, float) and all(map(_reads_float, node.users)) else []
            for number in (*reads, node):
                number.replace_all_uses_with(value)
                static.graph.erase_node(number)
    static.recompile()
    return static, [value for value in args if isinstance(value, torch.Tensor)]
