"""Runs a program with and without counters, interleaved, and reports the time of its nodes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.profile import ProfileReport, Sampling
from buddy.compiler.runtime.executable import LoadedProgram
from buddy.compiler.runtime.graph_interpreter import SEED
from buddy.compiler.runtime.measure import OnProgress, fingerprints, summary, timed, with_threads
from buddy.compiler.runtime.torch_values import bind
from buddy.compiler.support.machine_load import LoadMeter
from buddy.compiler.support.target import CycleCounter, TickRate, counter, make_reader
from buddy.compiler.tools.profile.attribution import attribute_time
from buddy.compiler.tools.profile.hot import CodeRange, sample_instructions

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

# If regions do not cover more than this share of a run, a note is added.
_MUCH = 0.1


def profile(
    captured: CapturedGraph,
    plain: Artifact,
    counted: Artifact,
    *,
    repeats: int,
    threads: int,
    graph: int = 0,
    on_progress: OnProgress | None = None,
) -> ProfileReport:
    """Links both artifacts of one graph, `counted` with regions, and runs them interleaved on the captured inputs.

    A region's time is the mean over the faster half of the runs with counters: medians of regions would not add up to
    that of the run. Raises `RuntimeError` if this machine has no supported counter.
    """
    tell = on_progress or (lambda _text, _done: None)
    found = counter()
    if found is None:
        raise RuntimeError("no known cycle counter on this machine: x86-64 and AArch64 have one")
    with with_threads(threads), torch.no_grad():
        tell("loading the compiled code", 0.0)
        pair = LoadedProgram(plain, frozen=True, located=True), LoadedProgram(counted, frozen=True)
        same = _equal(captured, *pair)
        pace = TickRate(make_reader(found))
        meter = LoadMeter()
        seconds, ticks = _run_interleaved(captured, *pair, repeats, tell)
        load = meter.load()
        per_second = pace.per_second()
        tell("sampling", 1.0)
        hot = _sample(captured, pair[0], repeats)
    without, whole = (_mean(column, _faster_half(column)) for column in zip(*seconds, strict=True))
    fast = _faster_half([with_counters for _, with_counters in seconds])
    regions = [_mean(column, fast) / per_second for column in zip(*ticks, strict=True)]
    symbols = bind(counted.symbols, captured.tensors, captured.numbers)
    told = attribute_time(captured.graph, counted.regions, regions, symbols)
    one = 1 if pair[0].threads != plain.threads else threads
    times = [summary(column, one) for column in zip(*seconds, strict=True)]
    return ProfileReport(
        graph,
        told.nodes,
        told.regions,
        times[0],
        times[1],
        overhead=whole / without - 1,
        whole=whole,
        inside=told.inside,
        outside=told.outside,
        counter=found.name,
        ticks_per_second=per_second,
        same=same,
        sampling=hot,
        notes=tuple(_notes(found, same, told.inside + told.outside, whole)),
        load=load,
    )


def _faster_half(seconds: Sequence[float]) -> list[int]:
    """The numbers of the fastest runs."""
    return sorted(range(len(seconds)), key=seconds.__getitem__)[: -(-len(seconds) // 2)]


def _mean(column: Sequence[float], runs: Sequence[int]) -> float:
    return statistics.fmean(column[number] for number in runs)


def _equal(captured: CapturedGraph, plain: LoadedProgram, counted: LoadedProgram) -> bool:
    """Whether both give bitwise equal results from the same seed. These runs also pack the weights."""
    found = []
    for program in (plain, counted):
        torch.manual_seed(SEED)
        found.append(fingerprints(program(captured.tensors, captured.numbers)))
    return found[0] == found[1]


def _run_interleaved(
    captured: CapturedGraph, plain: LoadedProgram, counted: LoadedProgram, repeats: int, tell: OnProgress
) -> tuple[list[tuple[float, float]], list[list[int]]]:
    """Seconds of interleaved runs without and with counters, and the ticks of each region in each of the latter."""
    seconds, ticks = [], []
    counted.take_ticks()
    for index in range(repeats):
        # The order alternates, because the code between pairs affects the caches for the first run of a pair.
        pair = {}
        for program in (plain, counted) if index % 2 else (counted, plain):
            pair[program] = timed(partial(program, captured.tensors, captured.numbers))[1]
        seconds.append((pair[plain], pair[counted]))
        ticks.append(counted.take_ticks())
        tell(f"running {index + 1}/{repeats}", (index + 1) / repeats)
    return seconds, ticks


def _sample(captured: CapturedGraph, program: LoadedProgram, repeats: int) -> Sampling:
    """The hot instructions of a program."""
    code = [CodeRange(name, *place) for name, place in program.functions.items()]
    return sample_instructions(partial(program, captured.tensors, captured.numbers), code, repeats)


def _notes(found: CycleCounter, same: bool, told: float, whole: float) -> Sequence[str]:
    notes = []
    if not found.constant_rate:
        notes.append(
            f"the {found.name} of this processor has no constant rate: times are only comparable between nodes"
        )
    if not same:
        notes.append("results with counters differ from those without: an op of the program is not reproducible")
    if told < (1 - _MUCH) * whole:
        share = 1 - told / whole
        notes.append(f"{share:.0%} of a run's time is outside compiled code: the call overhead of a short program")
    return notes
