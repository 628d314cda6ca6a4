"""Answers requests about an open program that the host, or a process forked from it, handles.

These are profiles, comparisons of nodes, exports, extractions of subgraphs, scripts, bisections, and tuning; tuning may
also run on a cluster.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from buddy.compiler.engine.connection import ListeningSocket, Peer
from buddy.compiler.engine.texts import stored_text
from buddy.compiler.protocol import (
    Bisect,
    Bisected,
    CompareNodes,
    Diagnostic,
    Export,
    Exported,
    Extract,
    Extracted,
    NodesCompared,
    Profile,
    Profiled,
    Progress,
    Script,
    Stage,
    Tune,
    WriteScript,
)
from buddy.compiler.protocol.profile import Peak, ProfileReport, Sampling
from buddy.compiler.protocol.searches import SpaceError, space_of
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import (
    Activity,
    BisectionDone,
    BisectionMessage,
    CompareGraphNodes,
    ExportProgram,
    ExtractNodes,
    FailureReply,
    LogText,
    MakeScript,
    ProfileGraph,
    StartBisection,
    StartTuning,
    StopRunner,
)
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job, JobFailed
from buddy.compiler.tools.profile.attribution import with_counting, without_counting
from buddy.compiler.tools.tune.precisions import PrecisionSearch
from buddy.compiler.tools.tune.processes import TuningMessage, TuningRequest
from buddy.compiler.tools.tune.tuner import Tuner, TuneWorker

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession
    from buddy.compiler.protocol.connection import Frame


# ---- profiles and comparisons of nodes -------------------------------------------------------------------------------


log = logging.getLogger("buddy.engine")

# The format of assembly stages: a function's name at the left edge, where labels are too, and instructions after their
# offsets.
_FUNCTION = re.compile(r"(?!\.L)(\S+):$")
_INSTRUCTION = re.compile(r" +([0-9a-f]+)  (.*)")


def locate_instructions(sampling: Sampling, text: IndexedText) -> Sampling:
    """Returns `sampling` with the text, line and nodes of each instruction that the assembly `text` contains."""
    # The hot spots, by their function and their offset in the function.
    spots = {(spot.function, spot.offset): spot for spot in sampling.spots}
    functions = {spot.function for spot in sampling.spots}
    current_function = ""
    for number, line in enumerate(text.content.split("\n")):
        if function := _FUNCTION.match(line):
            current_function = function[1]
        elif current_function in functions and (instruction := _INSTRUCTION.match(line)):
            address = current_function, int(instruction[1], 16)
            if address in spots:
                instruction_text = " ".join(instruction[2].split())
                nodes = tuple(text.nodes_of_lines(number, number))
                spots[address] = replace(spots[address], text=instruction_text, line=number, nodes=nodes)
    return replace(sampling, spots=tuple(spots.values()))


# Run by name: importing it here would load LLVM into the engine.
_MEASURE_PEAK = "buddy.compiler.tools.bench.peak_rates:measure_peak_rates"
# The time limit in seconds; on an idle machine, the measurement takes about two seconds.
_MEASURE_PEAK_TIMEOUT = 60.0
# Nodes may exceed the peak by this factor: a core's clock may vary by some per cent from one second to the next.
_PEAK_TOLERANCE = 1.1


class ProfileHandler:
    """Answers `Profile`."""

    def __init__(self, session: EngineSession, send: Callable[[Frame], None], store: TextStore) -> None:
        self._session, self._send, self._store = session, send, store
        # The measured peak rates, by the number of threads.
        self._peaks: dict[int, Peak] = {}

    async def profile(self, frame: Profile, job: Job) -> None:
        """Compiles with and without counters, measures the machine's peak rates, and runs both programs interleaved."""
        recipe, session = frame.recipe, self._session
        plain = await session.result_of(without_counting(recipe), job, "profile")
        counted = await session.result_of(with_counting(recipe), job, "profile")
        peak = await self._peak(recipe.threads, job) if frame.peak else Peak()
        request = ProfileGraph(
            recipe.graph, plain.artifact, counted.artifact, frame.repeats, recipe.threads, frame.timeout,
            frame.inputs,
        )  # fmt: skip
        measured = await session.call_host_for(recipe, request, job, StopRunner())
        report: ProfileReport = replace(measured.report, peak=peak)
        report = replace(report, sampling=await self._locate(report.sampling, plain.stages))
        note = peak_note(report) if frame.peak else ""
        if note:  # measures the rates again for the next profile
            self._peaks.pop(recipe.threads, None)
            report = replace(report, notes=(*report.notes, note))
        self._send(Profiled(job.request, report))

    async def _locate(self, sampling: Sampling, stages: Sequence[Stage]) -> Sampling:
        """Returns `sampling` with the text, line and nodes of each instruction, if the assembly is still stored."""
        name = next((stage.text for stage in stages if stage.language == "asm"), "")
        text = self._store.get(name)
        return sampling if text is None else await asyncio.to_thread(locate_instructions, sampling, text)

    async def _peak(self, threads: int, job: Job) -> Peak:
        """Returns the machine's peak rates with `threads` threads, measured unless cached; zeros if that fails."""
        if threads not in self._peaks:
            self._send(Progress(job.request, "measuring the machine's peak rates"))
            peak = await _measure_peak(threads)
            if peak is None:
                return Peak()
            self._peaks[threads] = peak
        return self._peaks[threads]


def peak_note(report: ProfileReport) -> str:
    """Returns why the peak rates are missing or doubtful, or an empty string.

    A node rarely exceeds the machine's f32 peak, since few operations are faster than f32 multiply-adds. If a node
    does, other processes have probably slowed down the measurement of the peak.
    """
    if not report.peak.gflops:
        return "the machine's peak rates could not be measured: the engine's log says why"
    max_rate = max((node.operations / node.seconds for node in report.nodes if node.seconds > 0), default=0.0)
    if max_rate <= _PEAK_TOLERANCE * 1e9 * report.peak.gflops:
        return ""
    return "nodes exceed the measured peak: the machine was busy during that measurement; profile again when it is idle"


async def _measure_peak(threads: int) -> Peak | None:
    try:
        rates = await call_in_process(_MEASURE_PEAK, threads, dict[str, float], _MEASURE_PEAK_TIMEOUT)
    except (TookTooLong, CallFailed) as error:
        log.warning("the machine's peak rates could not be measured: %s", str(error) or type(error).__name__)
        return None
    return Peak(rates["gflops"], rates["gbytes"], rates["gflops_f64"], rates["giops_i32"])


class NumericsHandler:
    """Answers `CompareNodes`."""

    def __init__(self, session: EngineSession, send: Callable[[Frame], None]) -> None:
        self._session, self._send = session, send

    async def compare_nodes(self, frame: CompareNodes, job: Job) -> None:
        request = CompareGraphNodes(
            frame.recipe.graph,
            frame.recipe,
            frame.reference,
            frame.own_errors,
            frame.every,
            frame.timeout,
            frame.inputs,
        )
        reply = await self._session.call_host_for(frame.recipe, request, job, StopRunner())
        self._send(NodesCompared(job.request, reply.report))


# ---- exports, subgraphs and bisections -------------------------------------------------------------------------------


class ExportHandler:
    """Answers `Export`."""

    def __init__(self, session: EngineSession, store: TextStore, send: Callable[[Frame], None]) -> None:
        self._session, self._store, self._send = session, store, send

    async def export(self, frame: Export, job: Job) -> None:
        recipe = frame.recipe
        if not recipe.runs_passes:
            todo = f"choose the native backend, or use the tools of {recipe.backend}"
            raise JobFailed(Diagnostic(f"code of the backend {recipe.backend} cannot be exported", "the recipe", todo))
        compiled = await self._session.result_of(recipe, job, "export")
        llvm_ir = self._stage_text(compiled.stages, "llvm")
        mlir = (
            stored_text(self._store, frame.stage).content if frame.stage else self._stage_text(compiled.stages, "mlir")
        )
        request = ExportProgram(
            recipe.graph,
            recipe,
            compiled.artifact,
            compiled.assignments,
            llvm_ir,
            mlir,
            frame.kinds,
            frame.folder,
            frame.directory,
            frame.name,
            frame.force,
            frame.command,
        )
        reply = await self._session.call_host_for(recipe, request, job, StopRunner())
        self._send(Exported(job.request, reply.folder, reply.files))

    def _stage_text(self, stages: Sequence[Stage], language: str) -> str:
        """Returns the text of the first stage in `language`. Raises `JobFailed` if no stage has this language."""
        stage = next((stage for stage in stages if stage.language == language), None)
        if stage is None:
            what = f"this program has no stage in the language {language}"
            raise JobFailed(Diagnostic(what, "the recipe", "choose a recipe whose code is for a CPU"))
        return stored_text(self._store, stage.text).content


# The time in seconds that the bisection process may take in addition to its own limits, to start and to exit.
_EXTRA_SECONDS = 30.0


class SubgraphHandler:
    """Answers `Extract`, `WriteScript` and `Bisect`."""

    def __init__(self, session: EngineSession, send: Callable[[Frame], None]) -> None:
        self._session, self._send = session, send

    async def extract(self, frame: Extract, job: Job) -> None:
        number = self._session.programs.opened(frame.recipe).extract_of(frame.recipe.graph, frame.nodes)
        if number is None:
            self._send(Progress(job.request, "running eager up to the nodes"))
            request = ExtractNodes(frame.recipe.graph, frame.nodes)
            reply = await self._session.call_host_for(frame.recipe, request, job)
            number = self._session.add_extract(frame.recipe, frame.nodes, reply.graph)
        info = self._session.programs.opened(frame.recipe).graphs[number].info
        self._send(Extracted(job.request, number, info))

    async def write_script(self, frame: WriteScript, job: Job) -> None:
        reply = await self._session.call_host_for(frame.recipe, MakeScript(frame.recipe.graph), job)
        self._send(Script(job.request, reply.name, reply.text, reply.values))

    async def bisect(self, frame: Bisect, job: Job) -> None:
        """Bisects in a separate process, which exits when this job ends."""
        self._send(Progress(job.request, "preparing"))
        async with ListeningSocket(BisectionMessage) as listening:
            request = StartBisection(frame.recipe.graph, frame.recipe, frame.criterion, listening.address)
            await self._session.call_host_for(frame.recipe, request, job)
            try:
                limit = frame.criterion.seconds + frame.criterion.step_seconds + _EXTRA_SECONDS
                await asyncio.wait_for(self._follow(listening, job), limit)
            except asyncio.TimeoutError as error:
                what = f"the bisection exceeded its limit of {frame.criterion.seconds:g} s and was stopped"
                raise JobFailed(Diagnostic(what, "a forked process", "allow more time")) from error

    async def _follow(self, listening: ListeningSocket, job: Job) -> None:
        """Passes on the messages of the process that bisects, until it has finished. Raises `JobFailed`."""
        async for message in (await listening.accept_peer()).messages():
            if isinstance(message, Activity):
                self._send(Progress(job.request, message.activity, message.done))
            elif isinstance(message, LogText):
                log.error("bisection: %s", message.text)
            elif isinstance(message, FailureReply):
                raise JobFailed(message.diagnostic)
            elif isinstance(message, BisectionDone):
                self._send(Bisected(job.request, message.finding))
                return
        raise JobFailed(Diagnostic("the bisection process exited", "a forked process", "see the log"))


# ---- tuning ----------------------------------------------------------------------------------------------------------


# The maximum number of forked processes that try recipes.
_MAX_JOBS = 64


class TuneHandler:
    """Answers `Tune`."""

    def __init__(self, session: EngineSession, send: Callable[[Frame], None]) -> None:
        self._session, self._send = session, send

    async def tune(self, frame: Tune, job: Job) -> None:
        chooses_precisions = frame.max_error is not None and not frame.variations
        try:
            space = None if chooses_precisions else space_of(frame.recipe, frame.variations)
        except SpaceError as error:
            raise JobFailed(Diagnostic(str(error), "what to vary")) from error
        self._send(Progress(job.request, "preparing"))
        async with self._start_workers(frame, job) as workers:
            if space is None:
                self._send(await PrecisionSearch(frame, self._send).run(workers))
                return
            tuner = Tuner(frame, space, self._send)
            remaining_workers = await tuner.run_workers(workers)
            self._send(await tuner.finish(remaining_workers))

    @asynccontextmanager
    async def _start_workers(self, frame: Tune, job: Job) -> AsyncIterator[Sequence[TuneWorker]]:
        """Yields workers that try recipes, on the cluster if `frame` names one; they end with the `with` block."""
        if frame.cluster:
            from buddy.compiler.tools.tune.processes import cluster_tune_workers

            load_request = self._session.programs.opened(frame.recipe).key.load_request()
            async with cluster_tune_workers(frame.cluster, load_request, frame.recipe.graph) as workers:
                yield workers
            return
        async with ListeningSocket(TuningMessage) as listening:
            yield [await self._fork_worker(listening, frame, job) for _ in range(max(1, min(frame.jobs, _MAX_JOBS)))]

    async def _fork_worker(self, listening: ListeningSocket, frame: Tune, job: Job) -> TuneWorker:
        request = StartTuning(frame.recipe.graph, listening.address)
        await self._session.call_host_for(frame.recipe, request, job)
        return _ForkedTuneWorker(await listening.accept_peer())


class _ForkedTuneWorker:
    """A process forked from the host that tries recipes."""

    def __init__(self, peer: Peer) -> None:
        self._peer, self._messages = peer, peer.messages()

    async def ask(self, request: TuningRequest) -> Any:
        await self._peer.send(request)
        async for message in self._messages:
            if not isinstance(message, LogText):
                return message
        raise ConnectionError("the process that tries recipes exited")
