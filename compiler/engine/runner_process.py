"""Handles the host's requests in forked processes: runs, profiles, compares nodes, exports, bisects and tries recipes.

Graphs whose script has added to the registries are also compiled in a forked process.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from buddy.compiler.engine.compiler import StageSender, collect_code_remarks, compile_recipe
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.errors import BuddyError, diagnostic_of
from buddy.compiler.protocol.recipe import INDUCTOR
from buddy.compiler.protocol.source_locations import split_source
from buddy.compiler.protocol.worker_messages import (
    Activity,
    BisectionDone,
    CollectRemarksInHost,
    CompareGraphNodes,
    CompileInHost,
    Done,
    Execute,
    Executed,
    ExportProgram,
    FailureReply,
    GraphNodesCompared,
    GraphProfiled,
    LogText,
    PrepareRun,
    ProfileGraph,
    ProgramExported,
    Reply,
    RunnerState,
    StartBisection,
    StartTuning,
)
from buddy.compiler.support.files import EXPORT, RUNTIMES, remove_leftovers
from buddy.compiler.support.processes.channel import Channel, traceback_of
from buddy.compiler.support.processes.forks import FailureMessages, fork_to, reply_in_child

if TYPE_CHECKING:
    from buddy.compiler.protocol import RunReport
    from buddy.compiler.runtime.captured import CapturedGraph


def _progress_to(channel: Channel) -> Callable[[str, float], None]:
    """Returns a function that reports an activity, and the fraction of it that is done (-1 if it is unknown)."""
    return lambda what, done: channel.send(Activity(what, done))


def start_bisection(captured: CapturedGraph, request: StartBisection) -> Reply:
    """Forks a process that bisects, and exits when the bisection is done or its socket is closed."""
    fork_to(request.address, FailureReply, lambda channel: channel.send(_bisect(channel, captured, request)))
    return Done()


def _bisect(channel: Channel, captured: CapturedGraph, request: StartBisection) -> Reply:
    from buddy.compiler.tools.bisect import BisectionStopped, bisect

    try:
        return BisectionDone(bisect(channel, captured, request.recipe, request.criterion, _progress_to(channel)))
    except BisectionStopped:
        os._exit(0)
    except Exception as error:
        channel.send(LogText(traceback_of(error)))
        return FailureReply(diagnostic_of(error, "internal error in the bisection", "a forked process"))


_RUN_FAILURES = FailureMessages(
    "the run failed",
    Diagnostic(
        "the compiled kernel crashed",
        "while it ran",
        "the graph and its stages are still available; disable the last pass you changed, or run an op in eager, and "
        "run again",
    ),
)
_COMPILE_FAILURES = FailureMessages(
    "compiling failed",
    Diagnostic(
        "the compiler crashed",
        "compiling with the ops, lowerings and passes of the script",
        "check the script's own lowerings and passes; the earlier stages are still available",
    ),
)
_EXPORT_FAILURES = FailureMessages(
    "the export failed",
    Diagnostic("LLVM crashed", "generating code for the export", "choose another target, or fewer kinds"),
)


def run_in_child(channel: Channel, captured: CapturedGraph, request: Execute) -> Reply:
    """Runs compiled code and compares it with eager in a child."""
    channel.send(RunnerState(True))
    reply = reply_in_child(channel, lambda to_host: _run(to_host, captured, request), _RUN_FAILURES, request.timeout)
    if request.runtimes:
        # A child that was killed leaves the files of the model for the other runtimes.
        remove_leftovers(Path(tempfile.gettempdir()), RUNTIMES)
    channel.send(RunnerState(False, str(reply.diagnostic) if isinstance(reply, FailureReply) else ""))
    return reply


def prepare_in_child(channel: Channel, captured: CapturedGraph, request: PrepareRun) -> Reply:
    """Computes and saves what the verdict of a run needs, in a child.

    Does nothing for a small program, whose verdict takes less time than the start of a child.
    """
    from buddy.compiler.runtime.saved_spreads import may_be_saved

    if captured.eager is None or not may_be_saved(captured, ()):
        return Done()
    return reply_in_child(channel, lambda _: _prepare(captured, request), _RUN_FAILURES, request.timeout)


def profile_in_child(channel: Channel, captured: CapturedGraph, request: ProfileGraph) -> Reply:
    """Runs code with and without counters in a child."""
    return reply_in_child(channel, lambda to_host: _profile(to_host, captured, request), _RUN_FAILURES, request.timeout)


def compare_nodes_in_child(channel: Channel, captured: CapturedGraph, request: CompareGraphNodes) -> Reply:
    """Compiles with instrumentation, runs, and compares every node in a child."""
    return reply_in_child(
        channel, lambda to_host: _compare_nodes(to_host, captured, request), _RUN_FAILURES, request.timeout
    )


def compile_in_child(channel: Channel, captured: CapturedGraph, request: CompileInHost) -> Reply:
    """Compiles in a child, which has all op classes, lowerings and passes that the script has registered."""
    return reply_in_child(channel, lambda to_host: _compile(to_host, captured, request), _COMPILE_FAILURES)


def export_in_child(channel: Channel, captured: CapturedGraph, request: ExportProgram) -> Reply:
    """Exports a compiled program in a child, which generates code for the requested target."""
    reply = reply_in_child(channel, lambda to_host: _export(to_host, captured, request), _EXPORT_FAILURES)
    # A child that was killed leaves its temporary folder.
    remove_leftovers(_export_folder(request).parent, EXPORT)
    return reply


def collect_remarks_in_child(channel: Channel, captured: CapturedGraph, request: CollectRemarksInHost) -> Reply:
    """Collects LLVM's remarks in a child that compiles like `compile_in_child`."""
    return reply_in_child(channel, lambda _: _collect_remarks(captured, request), _COMPILE_FAILURES)


def _compile(channel: Channel, captured: CapturedGraph, request: CompileInHost) -> Reply:
    if request.recipe.backend == INDUCTOR:
        from buddy.compiler.runtime.inductor.compiling import compile_captured

        return compile_captured(channel, captured, request.recipe, StageSender(channel, request.known_texts))
    from buddy.compiler.driver.compilation import Compiler

    return compile_recipe(
        channel, Compiler(captured.graph, captured.user_lowerings()), request.recipe, request.known_texts
    )


def _export(channel: Channel, captured: CapturedGraph, request: ExportProgram) -> Reply:
    from buddy.compiler.protocol.artifact import from_bytes
    from buddy.compiler.tools.export import CompiledProgram, ExportOrder, export
    from buddy.compiler.tools.export.interface import c_name

    source, recipe = request.recipe.source, request.recipe
    origin = f"{source}, graph {captured.info.name}"
    artifact = from_bytes(request.artifact)
    program = CompiledProgram(
        captured, recipe, artifact, request.assignments, request.llvm_ir, request.mlir, origin, request.command
    )
    folder = _export_folder(request)
    order = ExportOrder(folder, request.name or c_name(split_source(source).stem), request.kinds, request.force)
    files = export(program, order, lambda what: channel.send(Activity(what)))
    return ProgramExported(str(folder), tuple(files))


def _export_folder(request: ExportProgram) -> Path:
    """Returns the absolute path of the folder to export to."""
    return Path(request.directory, Path(request.folder).expanduser()).absolute()


def _collect_remarks(captured: CapturedGraph, request: CollectRemarksInHost) -> Reply:
    from buddy.compiler.driver.compilation import Compiler

    return collect_code_remarks(Compiler(captured.graph, captured.user_lowerings()), request.recipe)


def _run(channel: Channel, captured: CapturedGraph, request: Execute) -> Reply:
    from buddy.compiler.runtime.captured import ResultWriter, choose_tensors

    captured = replace(captured, tensors=choose_tensors(captured, request.inputs))
    writer = ResultWriter(captured, request.values, request.values_folder)
    on_progress = _progress_to(channel)
    run = partial(
        _run_function(captured, request),
        repeats=request.repeats,
        threads=request.threads,
        nodes=request.nodes,
        compile_seconds=request.compile_seconds,
        graph=request.graph,
        on_progress=on_progress,
        on_values=writer.write,
        equal_nan=request.equal_nan,
    )
    if not request.runtimes:
        return Executed(run(), writer.file)
    from buddy.compiler.tools.runtimes.sides import runtime_sides

    with runtime_sides(captured, request.runtimes, request.threads, request.mark, on_progress) as sides:
        return Executed(run(sides=sides), writer.file)


def _prepare(captured: CapturedGraph, request: PrepareRun) -> Reply:
    from buddy.compiler.runtime.captured import choose_tensors
    from buddy.compiler.runtime.measure import prepare_verdict

    prepare_verdict(replace(captured, tensors=choose_tensors(captured, request.inputs)), request.threads)
    return Done()


def _run_function(captured: CapturedGraph, request: Execute) -> Callable[..., RunReport]:
    """Returns the function that runs the request's artifact. Raises `BuddyError` if the backend excludes runtimes."""
    if request.native is not None and request.runtimes:
        what, todo = "other runtimes are compared with this compiler's code only", "choose the native backend"
        raise BuddyError(what, "the recipe's backend", todo)
    if request.native is not None:
        from buddy.compiler.runtime.other_compilers import run_and_compare_with_native

        return partial(run_and_compare_with_native, captured, _make_process(captured, request), request.native)
    from buddy.compiler.protocol.artifact import from_bytes
    from buddy.compiler.runtime import run_and_compare

    if request.runtimes:
        from buddy.compiler.tools.runtimes.sides import with_independent_reference

        captured = with_independent_reference(captured)
    return partial(run_and_compare, captured, from_bytes(request.artifact))


def _make_process(captured: CapturedGraph, request: Execute) -> Any:
    """Returns the process that runs an artifact of Inductor or IREE."""
    if request.backend == INDUCTOR:
        from buddy.compiler.runtime.inductor.compiling import InductorArtifact
        from buddy.compiler.runtime.inductor.process import InductorProcess

        artifact = msgspec.msgpack.decode(request.artifact, type=InductorArtifact)
        return InductorProcess(artifact, captured.tensors, request.threads)
    from buddy.compiler.codegen.iree.options import artifact_from
    from buddy.compiler.runtime.other_compilers import IreeProcess

    return IreeProcess(artifact_from(request.artifact), captured.tensors, captured.numbers, request.threads)


def _profile(channel: Channel, captured: CapturedGraph, request: ProfileGraph) -> Reply:
    from buddy.compiler.protocol.artifact import from_bytes
    from buddy.compiler.runtime.captured import choose_tensors
    from buddy.compiler.tools.profile.measure import profile

    captured = replace(captured, tensors=choose_tensors(captured, request.inputs))
    report = profile(
        captured,
        from_bytes(request.plain),
        from_bytes(request.counted),
        repeats=request.repeats,
        threads=request.threads,
        graph=request.graph,
        on_progress=_progress_to(channel),
    )
    return GraphProfiled(report)


def _compare_nodes_by_inductor(channel: Channel, captured: CapturedGraph, request: CompareGraphNodes) -> Reply:
    from buddy.compiler.runtime.inductor.process import compare_nodes

    report = compare_nodes(
        captured,
        request.recipe,
        reference=request.reference,
        every=request.every,
        graph=request.graph,
        on_progress=_progress_to(channel),
    )
    return GraphNodesCompared(report)


def _compare_nodes(channel: Channel, captured: CapturedGraph, request: CompareGraphNodes) -> Reply:
    from buddy.compiler.driver.observation import compile_observed
    from buddy.compiler.runtime.captured import choose_tensors
    from buddy.compiler.runtime.graph_interpreter import symbol_values
    from buddy.compiler.runtime.node_comparison import compare_nodes

    captured = replace(captured, tensors=choose_tensors(captured, request.inputs))
    if request.recipe.backend == INDUCTOR:
        return _compare_nodes_by_inductor(channel, captured, request)
    on_progress = _progress_to(channel)
    recipe, symbols = request.recipe, symbol_values(captured.graph, captured.tensors, captured.numbers)
    program = compile_observed(
        captured.graph,
        recipe,
        captured.user_lowerings(),
        every=request.every,
        own_errors=request.own_errors,
        symbols=symbols,
        report=on_progress,
    )
    report = compare_nodes(
        captured,
        program,
        reference=request.reference,
        threads=recipe.threads,
        graph=request.graph,
        on_progress=on_progress,
    )
    return GraphNodesCompared(report)


def start_tuning(captured: CapturedGraph, request: StartTuning) -> Reply:
    """Forks a process that tries the recipes it receives, until its socket is closed."""
    from buddy.compiler.tools.tune.processes import TuningRequest
    from buddy.compiler.tools.tune.worker import serve_attempts

    fork_to(request.address, TuningRequest, lambda channel: serve_attempts(channel, captured))
    return Done()
