"""Profiles a recipe, and maps sampled instructions to lines of the assembly and to nodes."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from buddy.compiler.protocol import Profile, Profiled, Progress, Stage
from buddy.compiler.protocol.profile import HotSpot, Peak, ProfileReport, Sampling
from buddy.compiler.protocol.text.lines import IndexedText
from buddy.compiler.protocol.text.store import TextStore
from buddy.compiler.protocol.worker_messages import Measure, StopRunner
from buddy.compiler.support.processes.interpreters import CallFailed, TookTooLong, call_in_process
from buddy.compiler.support.processes.jobs import Job
from buddy.compiler.tools.profile.attribution import with_counting, without_counting

if TYPE_CHECKING:
    from buddy.compiler.engine.session import EngineSession

# The format of assembly stages: a function's name at the left edge, and instructions after their offsets.
_FUNCTION = re.compile(r"(\S+):$")
_INSTRUCTION = re.compile(r" +([0-9a-f]+)  (.*)")


def locate_instructions(sampling: Sampling, text: IndexedText) -> Sampling:
    """Returns `sampling` with the text, line and nodes of each instruction that the assembly `text` contains."""
    spots_by_address = {(spot.function, spot.offset): spot for spot in sampling.spots}
    functions = {spot.function for spot in sampling.spots}
    located: dict[tuple[str, int], HotSpot] = {}
    function = ""
    for number, line in enumerate(text.content.split("\n")):
        if label := _FUNCTION.match(line):
            function = label[1] if not line.startswith(".L") else function
        elif function in functions and (instruction := _INSTRUCTION.match(line)):
            key = function, int(instruction[1], 16)
            if key in spots_by_address:
                nodes = tuple(text.nodes_of_lines(number, number))
                words = " ".join(instruction[2].split())
                located[key] = msgspec.structs.replace(spots_by_address[key], text=words, line=number, nodes=nodes)
    spots = tuple(located.get(key, spot) for key, spot in spots_by_address.items())
    return msgspec.structs.replace(sampling, spots=spots)


# Run by name: importing it here would load LLVM into the engine.
_MEASURE_LIMITS = "buddy.compiler.tools.bench.limits:measure"
# The time limit; on an idle machine, the measurement takes about two seconds.
_MEASURE_LIMITS_SECONDS = 60.0
# Nodes may exceed the peak by this factor: a core's clock may vary by some per cent from one second to the next.
_PEAK_TOLERANCE = 1.1


class ProfileHandler:
    """Answers `Profile`."""

    def __init__(self, session: EngineSession, send: Callable[[Any], None], store: TextStore) -> None:
        self._session, self._send, self._store = session, send, store
        self._peaks: dict[int, Peak] = {}

    async def profile(self, frame: Profile, job: Job) -> None:
        """Compiles with and without counters, measures the machine's peak rates, and runs both programs interleaved."""
        recipe, session = frame.recipe, self._session
        without = await session.result_of(without_counting(recipe), job, "profile")
        with_counters = await session.result_of(with_counting(recipe), job, "profile")
        peak = await self._peak(recipe.threads, job) if frame.peak else Peak()
        request = Measure(
            recipe.graph, without.artifact, with_counters.artifact, frame.repeats, recipe.threads, frame.timeout,
            frame.inputs,
        )  # fmt: skip
        measured = await session.ask_of_program(recipe, request, job, StopRunner())
        report: ProfileReport = replace(measured.report, peak=peak)
        report = replace(report, sampling=await self._locate(report.sampling, without.stages))
        note = profile_warning(report) if frame.peak else ""
        if note:
            self._peaks.pop(recipe.threads, None)
            report = replace(report, notes=(*report.notes, note))
        self._send(Profiled(job.request, report))

    async def _locate(self, sampling: Sampling, stages: Sequence[Stage]) -> Sampling:
        """Returns `sampling` with the text, line and nodes of each instruction, if the assembly is still stored."""
        name = next((stage.text for stage in stages if stage.language == "asm"), "")
        text = self._store.get(name)
        return sampling if text is None else await asyncio.to_thread(locate_instructions, sampling, text)

    async def _peak(self, threads: int, job: Job) -> Peak:
        """Returns the machine's peak rates with `threads` threads, measured once; zeros if they cannot be measured."""
        if threads not in self._peaks:
            self._send(Progress(job.request, "measuring the machine's peak rates"))
            peak = await _measure_peak(threads)
            if peak is None:
                return Peak()
            self._peaks[threads] = peak
        return self._peaks[threads]


def profile_warning(report: ProfileReport) -> str:
    """Returns the reason to doubt the measured peak rates, or an empty string.

    No node can exceed the machine's f32 peak. If one seems to, other processes have slowed down the measurement of the
    peak.
    """
    if not report.peak.gflops:
        return "the machine's peak rates could not be measured: the engine's log says why"
    max_rate = max((node.operations / node.seconds for node in report.nodes if node.seconds > 0), default=0.0)
    if max_rate <= _PEAK_TOLERANCE * 1e9 * report.peak.gflops:
        return ""
    return "nodes exceed the measured peak: the machine was busy during that measurement; profile again when it is idle"


async def _measure_peak(threads: int) -> Peak | None:
    try:
        rates = await call_in_process(_MEASURE_LIMITS, threads, dict[str, float], _MEASURE_LIMITS_SECONDS)
    except (TookTooLong, CallFailed):
        return None
    return Peak(rates["gflops"], rates["gbytes"], rates["gflops_f64"], rates["giops_i32"])
