"""A graph that is compiled to a program in this process: `torch.compile` calls it with tensors."""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NoReturn, Protocol

import torch

from buddy.compiler.driver import program_cache
from buddy.compiler.frontend.aten import AtenGraph, OpsMap
from buddy.compiler.frontend.backend_settings import BackendSettings
from buddy.compiler.frontend.choices import choices_for_graph
from buddy.compiler.frontend.convert import Conversion
from buddy.compiler.frontend.direct_gradients import NativeGraph
from buddy.compiler.frontend.errors import FallbackError
from buddy.compiler.frontend.frequent_sizes import FrequentSizes
from buddy.compiler.frontend.rejections import eager_after
from buddy.compiler.frontend.results import GraphResults
from buddy.compiler.frontend.summary import count_artifact
from buddy.compiler.graph.graph import Graph, symbols_of
from buddy.compiler.protocol import Assignment, Diagnostic
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.recipe import EAGER, Recipe
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.buffers import WorkArena, spec_bytes
from buddy.compiler.runtime.native_calls import BuiltinCall
from buddy.compiler.runtime.torch_values import bind_symbols
from buddy.compiler.support import hooks

if TYPE_CHECKING:
    from buddy.compiler.ops.utils import Lowering


# Compiles a graph under a recipe to an artifact.
Build = Callable[[Graph, Recipe], Artifact]
# All programs of this process that the `torch.compile` backend has loaded, for `refreeze`.
_programs: weakref.WeakSet[LoadedProgram] = weakref.WeakSet()
# Programs for frequent sizes are added by another thread.
_programs_lock = threading.Lock()
# The maximum number of bytes of packed weights that the code for one set of sizes has of its own.
_MAX_OWN_BYTES = 1 << 20


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
        sources, function = self._results.sources(n_inputs), self._native_function(range(n_inputs), raise_error)
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
        """Returns the bytes of memory that inputs should have for `lend`, by number; only inputs that get results."""
        return {} if self._program is None or self._symbols else self._program.bytes_of_inputs

    def result_bytes(self) -> dict[int, int]:
        """Returns the bytes of results that are tensors of their own, by position; empty if the graph has symbols."""
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
        """Makes later tensors at `position` of the results free their memory, instead of keeping it for reuse."""
        source = self._own_results().get(position)
        if self._program is not None and source is not None:
            self._program.free_after_use(source)

    def _own_results(self) -> dict[int, int]:
        """Returns the number of the computed tensor of each result that is a tensor of its own, by position.

        Compiled code computes such a result, and no other result is the same tensor.
        """
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


def raise_error(error: Exception, _inputs: Sequence[torch.Tensor] = ()) -> NoReturn:
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

    They get none with `verify` or `tune`, which check only the code for all sizes; with weights whose memory is
    released; and with a script's registrations, which the compiling process lacks.
    """
    releases = settings.releases and settings.freezes(training)
    is_plain = settings.verify == "off" and not settings.tune and not releases
    is_overridden = overrides.lowerings or overrides.build
    return bool(
        settings.specialise and is_plain and not is_overridden and program_cache.uses_only_built_in_code(graph, recipe)
    )


def _load(
    artifact: Artifact, frozen: bool = False, releases: bool = False, scratch: WorkArena | None = None
) -> LoadedProgram:
    """Loads an artifact as a program that `refreeze` updates."""
    program = LoadedProgram(artifact, frozen, releases=releases, scratch=scratch)
    with _programs_lock:
        _programs.add(program)
    return program


def _load_specialised(general: LoadedProgram, artifact: Artifact) -> LoadedProgram | None:
    """Returns a program with frozen weights for one set of sizes, which shares the packed weights of `general`.

    Returns `None` if the program would need much memory for copies of its own: there may be many sets of sizes.
    """
    packed = {(a.source, a.spec) for a in artifact.arguments if a.pack}
    if sum(spec_bytes(spec) for _, spec in packed - general.packed_specs) > _MAX_OWN_BYTES:
        return None
    program = LoadedProgram(artifact, frozen=True, shared_weights=general.packed_copies())
    with _programs_lock:
        _programs.add(program)
    return program


def refreeze() -> None:
    """Updates the frozen weights of everything compiled with `options={"freeze": True}` at its next call.

    Call it after frozen weights have changed. Code compiled without `freeze` reads weights at each call.
    """
    with _programs_lock:
        programs = list(_programs)
    for program in programs:
        program.refreeze()


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
    from buddy.compiler.ops.utils import Registry

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
