"""Tries recipes on a loaded program: compiles each in a child process, compares it with eager, and times it.

The process `serve` loads the program of a `LoadForTuning`, or reads the graph of a `LoadBundle`, which another process
wrote. Then it answers the requests of a search.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from buddy.compiler.driver.compile_graph import OnLowered, compile_graph
from buddy.compiler.driver.diagnosis import CompilationError
from buddy.compiler.graph import serialization
from buddy.compiler.graph.graph import Graph
from buddy.compiler.ops.lowering import LoweredModule
from buddy.compiler.protocol import Diagnostic, GraphInfo
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.errors import diagnostic_of
from buddy.compiler.protocol.recipe import OWN_FRONTENDS, Recipe
from buddy.compiler.protocol.worker_messages import Done, FailureReply, LogText, Reply
from buddy.compiler.runtime import LoadedProgram
from buddy.compiler.runtime.captured import CapturedGraph
from buddy.compiler.runtime.graph_interpreter import SEED, compute_results
from buddy.compiler.runtime.measure import error_of_results, time_call, torch_threads
from buddy.compiler.runtime.sensitivity import compare_result
from buddy.compiler.runtime.torch_values import resolve_lazy
from buddy.compiler.support.processes.channel import Channel, serves, traceback_of
from buddy.compiler.support.processes.forks import Task, TaskEnd, run_in_child
from buddy.compiler.tools.bisect.slowness import time_pairs
from buddy.compiler.tools.tune.nodes import ErrorMeter, time_products
from buddy.compiler.tools.tune.processes import (
    CompareRecipes,
    ErrorsMeasured,
    LoadBundle,
    LoadForTuning,
    LoadMessage,
    MeasureErrors,
    NodesTimed,
    RecipesCompared,
    RecipeTried,
    TimeNodes,
    TryRecipe,
    TuningRequest,
)

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import Eager


# ---- attempts --------------------------------------------------------------------------------------------------------


# The numbers of pairs of runs of a recipe and eager, and the time limit for them in seconds.
_MIN_PAIRS, _MAX_PAIRS = 3, 50
_TIMING_SECONDS = 0.6
# If a recipe takes this many times as long as the best one in its first pair of runs, its timing ends.
_MAX_SLOWDOWN = 1.5


def serve_attempts(channel: Channel, captured: CapturedGraph) -> None:
    """Answers requests of type `TuningRequest` on the graph `captured`, until the channel closes."""
    meter = ErrorMeter(captured)
    while (request := channel.receive()) is not None:
        if isinstance(request, TryRecipe):
            channel.send(_try_in_child(channel, captured, request))
        elif isinstance(request, CompareRecipes):
            channel.send(_compare_in_child(channel, captured, request))
        elif isinstance(request, TimeNodes):
            channel.send(_time_in_child(channel, captured, request))
        elif isinstance(request, MeasureErrors):
            channel.send(_measure_errors(meter, request))


def _time_in_child(channel: Channel, captured: CapturedGraph, request: TimeNodes) -> Reply:
    end = _run_in_child(channel, lambda _: time_products(captured, request), NodesTimed, request.timeout)
    return end.reply if isinstance(end.reply, NodesTimed) else NodesTimed(problem=_failure_reason(end, request.timeout))


def _measure_errors(meter: ErrorMeter, request: MeasureErrors) -> Reply:
    """Measures in this process: no compiled code runs, and the meter caches values for the next request."""
    try:
        return meter.measure(request)
    except Exception as error:  # any error of an op, which may be the script's own
        return ErrorsMeasured(problem=f"{type(error).__name__}: {error}")


def _try_in_child(channel: Channel, captured: CapturedGraph, request: TryRecipe) -> Reply:
    end = _run_in_child(channel, lambda _: try_recipe(captured, request), RecipeTried, request.timeout)
    return (
        end.reply if isinstance(end.reply, RecipeTried) else RecipeTried(problem=_failure_reason(end, request.timeout))
    )


def _compare_in_child(channel: Channel, captured: CapturedGraph, request: CompareRecipes) -> Reply:
    end = _run_in_child(channel, lambda _: _compare_recipes(captured, request), RecipesCompared, request.timeout)
    if isinstance(end.reply, RecipesCompared):
        return end.reply
    return RecipesCompared(problem=_failure_reason(end, request.timeout))


def _run_in_child(channel: Channel, work: Callable[[Channel], Reply], reply_type: Any, seconds: float) -> TaskEnd:
    types = reply_type | FailureReply | LogText
    return run_in_child(channel, Task(work, _error_reply(reply_type), types, lambda _: None, seconds))


def _error_reply(
    reply_type: type[RecipeTried] | type[RecipesCompared] | type[NodesTimed],
) -> Callable[[Exception], Reply]:
    """Returns a function that makes a reply with the `problem` of an exception."""

    def reply(error: Exception) -> Reply:
        if isinstance(error, CompilationError):
            return reply_type(problem=error.diagnostic.what)
        return reply_type(problem=f"{type(error).__name__}: {error}")

    return reply


def _failure_reason(end: TaskEnd, seconds: float) -> str:
    """Returns why a child process with a time limit of `seconds` has sent no reply."""
    if end.how == "late":
        return f"not done in {seconds:g} s"
    return f"crashed: {end.status}" if end.how == "crashed" else end.how


def try_recipe(captured: CapturedGraph, request: TryRecipe) -> RecipeTried:
    """Compiles a recipe, compares its results with eager's and times it, in this process.

    If nodes multiply in reduced precisions, the results are compared with the same arithmetic in PyTorch. Raises
    `CompilationError`, and exceptions of ops in eager.
    """
    if captured.eager is None:
        return RecipeTried(problem="there is no eager program to compare with")
    lowered_modules: list[LoweredModule] = []
    artifact, seconds = time_call(lambda: _compile(captured, request.recipe, lowered_modules.append))
    precisions = {a.node: a.precision for module in lowered_modules for a in module.assignments if a.precision}
    with torch_threads(request.recipe.threads), torch.no_grad():
        program = LoadedProgram(artifact, frozen=True)
        reference = captured.in_precisions(precisions)
        assert reference.eager is not None
        problem = _describe_difference(reference, reference.eager, program)
        if problem:
            return RecipeTried(compile_seconds=seconds, problem=problem)
        error = _measure_error(captured, captured.eager, program) if precisions else -1.0
        if request.max_error is not None and error > request.max_error:
            problem = f"error {error:.1e} of eager's rms, more than {request.max_error:g}"
            return RecipeTried(compile_seconds=seconds, problem=problem, error=error)
        compiled, eager = _time_pairs(captured, captured.eager_to_time or captured.eager, program, request)
    ratios = [ours / theirs for ours, theirs in zip(compiled, eager, strict=True)]
    return RecipeTried(
        statistics.median(ratios), statistics.median(compiled), statistics.median(eager), seconds, error=error
    )


def _compile(captured: CapturedGraph, recipe: Recipe, on_lowered: OnLowered | None = None) -> Artifact:
    overrides: Any = captured.user_lowerings()
    return compile_graph(captured.graph, recipe, overrides, on_lowered)


def _measure_error(captured: CapturedGraph, eager: Eager, program: LoadedProgram) -> float:
    """Returns the error of the results, in the unit of `Tune.max_error`."""
    torch.manual_seed(SEED)
    results = program(captured.tensors, captured.numbers)
    torch.manual_seed(SEED)
    expected = [value for value in eager(captured.tensors) if isinstance(value, torch.Tensor)]
    return error_of_results(results, expected)


def _describe_difference(captured: CapturedGraph, eager: Eager, program: LoadedProgram) -> str:
    """Returns a description of the first difference from eager's results; "" if all agree."""
    torch.manual_seed(SEED)
    results = iter(program(captured.tensors, captured.numbers))
    torch.manual_seed(SEED)
    compared_count = 0
    expected = eager(captured.tensors)
    for index, value in enumerate(expected):
        if isinstance(value, torch.Tensor):
            report = compare_result(captured, expected, index, next(results, None), equal_nan=True)
            compared_count += 1
            if report.verdict != "ok":
                return f"{report.name} differs from eager by {report.max_abs:.3g}"
    if next(results, None) is not None:
        return "the program returns more results than eager"
    return "" if compared_count else "the program returns no tensor, so it cannot be compared with eager"


def _time_pairs(
    captured: CapturedGraph, eager: Eager, program: LoadedProgram, request: TryRecipe
) -> tuple[list[float], list[float]]:
    """Returns the seconds of interleaved runs, compiled and eager; of one pair if the recipe is clearly too slow."""
    compiled_seconds: list[float] = []
    eager_seconds: list[float] = []
    deadline = time.monotonic() + _TIMING_SECONDS
    while len(eager_seconds) < _MAX_PAIRS and (len(eager_seconds) < _MIN_PAIRS or time.monotonic() < deadline):
        compiled_seconds.append(time_call(lambda: program(captured.tensors, captured.numbers))[1])
        with torch_threads(request.eager_threads):
            eager_seconds.append(time_call(lambda: eager(captured.tensors))[1])
        max_seconds = _MAX_SLOWDOWN * request.bound * eager_seconds[0]
        if not math.isinf(request.bound) and compiled_seconds[0] > max_seconds:
            break
    return compiled_seconds, eager_seconds


def _compare_recipes(captured: CapturedGraph, request: CompareRecipes) -> Reply:
    """Compiles both recipes and times them interleaved, in this process."""

    def make_call(recipe: Recipe) -> Callable[[], Any]:
        loaded = LoadedProgram(_compile(captured, recipe), frozen=True)
        return lambda: loaded(captured.tensors, captured.numbers)

    with torch_threads(request.first.threads), torch.no_grad():
        ratio = time_pairs([make_call(request.first), make_call(request.second)], 1.0)
    return RecipesCompared(ratio.median, ratio.low, ratio.high)


# ---- the process -----------------------------------------------------------------------------------------------------


# The names of the files of a bundle: the graph, and its inputs.
_GRAPH_FILE, _VALUES_FILE = "graph.bin", "values.pt"


def write_bundle(folder: Path, graph: Graph, tensors: Sequence[torch.Tensor], numbers: Sequence[Any] = ()) -> None:
    """Writes `graph` and its inputs, in placeholder order, into `folder`. Raises `OSError`."""
    (folder / _GRAPH_FILE).write_bytes(serialization.to_bytes(graph))
    torch.save(
        {"tensors": [_without_spare_storage(tensor) for tensor in tensors], "numbers": list(numbers)},
        folder / _VALUES_FILE,
    )


def read_bundle(folder: Path) -> CapturedGraph:
    """Reads the graph and inputs that `write_bundle` wrote to `folder`; their eager program runs node by node.

    Raises `OSError`, and other exceptions for damaged files.
    """
    graph = serialization.from_bytes((folder / _GRAPH_FILE).read_bytes())
    values = torch.load(folder / _VALUES_FILE, weights_only=True, mmap=True)
    numbers = tuple(values["numbers"])
    eager = partial(compute_results, graph, numbers=numbers)
    return CapturedGraph(graph, GraphInfo(graph.name, ()), values["tensors"], eager, numbers=numbers)


def _without_spare_storage(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor with a storage of its own: for a view, `torch.save` would write the whole storage."""
    dense_tensor = resolve_lazy(tensor.detach())
    return dense_tensor if dense_tensor.untyped_storage().nbytes() == dense_tensor.nbytes else dense_tensor.clone()


@serves(LoadMessage | TuningRequest)
def serve(channel: Channel) -> None:
    """Loads the graph of the first message, and answers the requests that follow."""
    load_message = channel.receive()
    if isinstance(load_message, LoadMessage) and (captured := _load_graph(channel, load_message)) is not None:
        channel.send(Done())
        serve_attempts(channel, captured)


def _load_graph(channel: Channel, load_message: LoadMessage) -> Any:
    """Returns the graph to try recipes on; if it cannot be loaded, sends the reason and returns `None`."""
    # This process must not start torch's threads: a child that it forks would hang in its first parallel op.
    torch.set_num_threads(1)
    try:
        return (
            _load_program(channel, load_message)
            if isinstance(load_message, LoadForTuning)
            else _load_bundle(load_message)
        )
    except Exception as error:
        channel.send(LogText(traceback_of(error)))
        where = load_message.load.source if isinstance(load_message, LoadForTuning) else load_message.folder
        channel.send(FailureReply(diagnostic_of(error, "the program could not be loaded", where)))
    return None


def _load_bundle(load_message: LoadBundle) -> Any:
    return read_bundle(Path(load_message.folder))


def _load_program(channel: Channel, load_message: LoadForTuning) -> Any:
    """Returns the captured graph of the message; `None` if it fails, after a `FailureReply`."""
    from buddy.compiler.frontend.torch_dialect import import_in_child
    from buddy.compiler.graph import plugins
    from buddy.compiler.importers.sources import load_program

    load = load_message.load
    plugins.plugin_problems([*plugins.installed_plugins(), *map(plugins.load_plugin_file, load.plugins)])
    shapes, frontend = load.shapes, load.frontend
    graphs = load_program(
        load.source, load.arguments, load.directory, shapes=shapes, frontend=frontend, trusts=load.trusts
    ).graphs
    if load_message.graph >= len(graphs):
        channel.send(FailureReply(Diagnostic(f"there is no graph {load_message.graph} of {load.source} here")))
        return None
    captured = graphs[load_message.graph]
    if frontend not in OWN_FRONTENDS and captured.graph.imported_ir is None:
        reply = import_in_child(channel, captured)
        if isinstance(reply, FailureReply):
            channel.send(reply)
            return None
        captured.graph.imported_ir = reply.imported
    return captured
