"""Runs a program with and without counters, interleaved, and reports the time of its nodes."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch

from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.profile import NodeTime, ProfileReport, Sampling
from buddy.compiler.runtime.executable import LoadedProgram
from buddy.compiler.runtime.graph_interpreter import SEED
from buddy.compiler.runtime.measure import OnProgress, summarize_times, time_call, torch_threads
from buddy.compiler.runtime.torch_values import bind_symbols, fingerprints
from buddy.compiler.support.timing import CycleCounter, LoadMeter, TickRate, cycle_counter, make_counter_reader
from buddy.compiler.tools.profile.attribution import Attribution, attribute_time
from buddy.compiler.tools.profile.sampling import CodeRange, sample_instructions

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

_NO_COUNTER = "no known cycle counter on this machine: x86-64 and AArch64 have one"
# The minimum number of runs by which nodes are timed without a profile.
_MIN_RUNS = 3
# If more than this share of a run is outside of all regions, a note is added.
_MAX_OUTSIDE_SHARE = 0.1


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
    """Links `plain` and `counted`, artifacts of one graph without and with counters, and runs them interleaved.

    The inputs are the captured ones. The time of a region is the mean over the faster half of the runs with counters:
    medians of regions would not add up to the median of the run. `graph` is the number of the graph in the report.
    Raises `RuntimeError` if this machine has no supported counter.
    """
    on_progress = on_progress or (lambda _text, _done: None)
    counter_info = cycle_counter()
    if counter_info is None:
        raise RuntimeError(_NO_COUNTER)
    with torch_threads(threads), torch.no_grad():
        on_progress("loading the compiled code", 0.0)
        plain_program = LoadedProgram(plain, frozen=True, with_addresses=True)
        counted_program = LoadedProgram(counted, frozen=True)
        has_equal_results = _have_equal_results(captured, plain_program, counted_program)
        tick_rate = TickRate(make_counter_reader(counter_info))
        meter = LoadMeter()
        seconds, ticks = _run_interleaved(captured, plain_program, counted_program, repeats, on_progress)
        load = meter.load()
        per_second = tick_rate.per_second()
        on_progress("sampling", 1.0)
        sampling = _sample(captured, plain_program, repeats)
    plain_runs, counted_runs = zip(*seconds, strict=True)
    plain_seconds, counted_seconds = (_mean(runs, _faster_half(runs)) for runs in (plain_runs, counted_runs))
    attribution = _attribute(captured, counted, counted_runs, ticks, per_second)
    # A program for several threads runs on one if the process has no OpenMP runtime.
    used_threads = 1 if plain_program.threads != plain.threads else threads
    return ProfileReport(
        graph,
        attribution.nodes,
        attribution.regions,
        summarize_times(plain_runs, used_threads),
        summarize_times(counted_runs, used_threads),
        overhead=counted_seconds / plain_seconds - 1,
        whole=counted_seconds,
        inside=attribution.inside,
        outside=attribution.outside,
        counter=counter_info.name,
        ticks_per_second=per_second,
        same=has_equal_results,
        sampling=sampling,
        notes=tuple(_notes(counter_info, has_equal_results, attribution.inside + attribution.outside, counted_seconds)),
        load=load,
    )


def time_nodes(captured: CapturedGraph, counted: Artifact, seconds: float) -> tuple[NodeTime, ...]:
    """Returns the times of the nodes of `counted`, an artifact with counters, in runs for about `seconds`.

    The first run, which packs weights, does not count. Raises `RuntimeError` if this machine has no supported counter.
    """
    counter = cycle_counter()
    if counter is None:
        raise RuntimeError(_NO_COUNTER)
    program = LoadedProgram(counted, frozen=True)
    call = partial(program, captured.tensors, captured.numbers)
    call()
    program.take_ticks()
    tick_rate = TickRate(make_counter_reader(counter))
    runs, ticks = list[float](), []
    while len(runs) < _MIN_RUNS or sum(runs) < seconds:
        runs.append(time_call(call)[1])
        ticks.append(program.take_ticks())
    return _attribute(captured, counted, runs, ticks, tick_rate.per_second()).nodes


def _attribute(
    captured: CapturedGraph, counted: Artifact, runs: Sequence[float], ticks: Sequence[Sequence[int]], per_second: float
) -> Attribution:
    """Attributes the mean time of each region, over the faster half of the runs, to the nodes of the graph.

    `runs` has the seconds of each run, `ticks` the ticks of each region in each run, and `per_second` is their rate.
    """
    fast_runs = _faster_half(runs)
    regions = [_mean(column, fast_runs) / per_second for column in zip(*ticks, strict=True)]
    symbols = bind_symbols(counted.symbols, captured.tensors, captured.numbers)
    return attribute_time(captured.graph, counted.regions, regions, symbols)


def _faster_half(seconds: Sequence[float]) -> list[int]:
    """Returns the numbers of the runs in the faster half."""
    return sorted(range(len(seconds)), key=seconds.__getitem__)[: -(-len(seconds) // 2)]


def _mean(column: Sequence[float], runs: Sequence[int]) -> float:
    """Returns the mean over `runs`; `column` has a value for each run."""
    return statistics.fmean(column[number] for number in runs)


def _have_equal_results(captured: CapturedGraph, plain: LoadedProgram, counted: LoadedProgram) -> bool:
    """Returns whether both give bitwise equal results from the same seed. These runs also pack the weights."""
    results = []
    for program in (plain, counted):
        torch.manual_seed(SEED)
        results.append(fingerprints(program(captured.tensors, captured.numbers)))
    return results[0] == results[1]


def _run_interleaved(
    captured: CapturedGraph, plain: LoadedProgram, counted: LoadedProgram, repeats: int, on_progress: OnProgress
) -> tuple[list[tuple[float, float]], list[list[int]]]:
    """Returns the seconds of interleaved runs without and with counters, and the ticks of each region in the latter."""
    seconds, ticks = [], []
    counted.take_ticks()
    for index in range(repeats):
        # The order alternates, because the code between pairs affects the caches for the first run of a pair.
        pair = {}
        for program in (plain, counted) if index % 2 else (counted, plain):
            pair[program] = time_call(partial(program, captured.tensors, captured.numbers))[1]
        seconds.append((pair[plain], pair[counted]))
        ticks.append(counted.take_ticks())
        on_progress(f"running {index + 1}/{repeats}", (index + 1) / repeats)
    return seconds, ticks


def _sample(captured: CapturedGraph, program: LoadedProgram, repeats: int) -> Sampling:
    """Returns the hot instructions of a program."""
    code = [CodeRange(name, *location) for name, location in program.functions.items()]
    return sample_instructions(partial(program, captured.tensors, captured.numbers), code, repeats)


def _notes(counter_info: CycleCounter, same: bool, in_regions: float, whole: float) -> Sequence[str]:
    """Returns notes on the counter and the results, and on a run of `whole` seconds with `in_regions` in regions."""
    notes = []
    if not counter_info.constant_rate:
        notes.append(
            f"the {counter_info.name} of this processor has no constant rate: times are only comparable between nodes"
        )
    if not same:
        notes.append("results with counters differ from those without: an op of the program is not reproducible")
    if in_regions < (1 - _MAX_OUTSIDE_SHARE) * whole:
        share = 1 - in_regions / whole
        notes.append(f"{share:.0%} of a run's time is outside compiled code: the call overhead of a short program")
    return notes
