"""Answers requests for measurements of nodes: profiles, with sampled instructions mapped to nodes, and comparisons."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from buddy.compiler.protocol import CompareNodes, NodesCompared, Profile, Profiled, Progress, Stage
from buddy.compiler.protocol.profile import Peak, ProfileReport, Sampling
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import CompareGraphNodes, ProfileGraph, StopRunner
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job
from buddy.compiler.tools.profile.attribution import with_counting, without_counting

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession
    from buddy.compiler.protocol.connection import Frame

log = logging.getLogger("buddy.engine")

# The format of assembly stages: a function's name at the left edge, where labels are too, and instructions after their
# offsets.
_FUNCTION = re.compile(r"(?!\.L)(\S+):$")
_INSTRUCTION = re.compile(r" +([0-9a-f]+)  (.*)")


def locate_instructions(sampling: Sampling, text: IndexedText) -> Sampling:
    """Returns `sampling` with the text, line and nodes of each instruction that the assembly `text` contains."""
    # The hot spots by function and offset in it.
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
        """Returns the machine's peak rates with `threads` threads; zeros if they cannot be measured.

        They are measured unless a credible measurement is cached.
        """
        if threads not in self._peaks:
            self._send(Progress(job.request, "measuring the machine's peak rates"))
            peak = await _measure_peak(threads)
            if peak is None:
                return Peak()
            self._peaks[threads] = peak
        return self._peaks[threads]


def peak_note(report: ProfileReport) -> str:
    """Returns why the peak rates are missing or doubtful, or an empty string.

    A node rarely exceeds the machine's f32 peak, since few operations are faster than f32 multiply-adds. If one
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
