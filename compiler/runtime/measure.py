"""Runs a compiled graph and eager: values, interleaved timings, and the peak of the memory that each allocates."""

from __future__ import annotations

import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import msgspec
import torch
from torch.profiler import ProfilerActivity, profile

from buddy.compiler.graph.types import NodeType
from buddy.compiler.protocol import MemoryUse, OutputReport, RunReport, Timing
from buddy.compiler.protocol.artifact import Artifact
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.run_report import NodeCounts, SideReport
from buddy.compiler.runtime.compare import unchecked_report
from buddy.compiler.runtime.executable import Loaded, load_artifact
from buddy.compiler.runtime.graph_interpreter import SEED
from buddy.compiler.runtime.saved_spreads import may_be_saved
from buddy.compiler.runtime.sensitivity import compare_result, measure_difference, measure_spreads
from buddy.compiler.runtime.torch_values import fingerprints
from buddy.compiler.support.timing import LoadMeter

if TYPE_CHECKING:
    from buddy.compiler.runtime.captured import CapturedGraph

T = TypeVar("T")  # the result of an action
# The numbers of rounds of interleaved timings if the user requests none: rounds stop after `ENOUGH_SECONDS`, because
# the user waits for the result and the report contains the number of runs.
MAX_ROUNDS, MIN_ROUNDS = 10, 3
ENOUGH_SECONDS = 1.0


class MemoryTrace:
    """Measures the bytes that torch's allocator allocates in the `with` block.

    Memory that a library allocates itself (MKL, oneDNN) is not counted. Bytes that are held when `mark` is called are
    `held_at_mark`, and `peak` is the maximum from then on; without a call of `mark`, of the whole block. Both are set
    when the block ends.
    """

    def __init__(self) -> None:
        self.peak = self.held_at_mark = 0
        self._marked_ns = 0
        self._profile = profile(activities=[ProfilerActivity.CPU], profile_memory=True)

    def mark(self) -> None:
        """Makes the maximum start at this time."""
        self._marked_ns = time.time_ns()

    def __enter__(self) -> MemoryTrace:
        self._profile.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)
        recorder = self._profile.profiler
        events = recorder.kineto_results.events() if recorder is not None else []
        changes = [event for event in events if event.name() == "[memory]"]
        held = 0
        for change in sorted(changes, key=lambda event: event.start_ns()):
            held += change.nbytes()
            if change.start_ns() < self._marked_ns:
                self.held_at_mark = self.peak = held
            else:
                self.peak = max(self.peak, held)


def measure_peak(action: Callable[[], T]) -> tuple[T, int]:
    """Returns the result of `action`, and the peak of the bytes it allocated, as in `MemoryTrace`."""
    with MemoryTrace() as trace:
        result = action()
    return result, trace.peak


# Called with a text on the current step, and the fraction of the work that is done, from 0 to 1.
OnProgress = Callable[[str, float], None]


class Side(Protocol):
    """Another runtime that runs the same program, to be compared with.

    Each of `calls` makes one call and returns its seconds. `report` compares the results as `compare_with_reference`
    does; its `seconds` has a list for each of `calls`.
    """

    calls: list[Callable[[], float]]

    def report(
        self, captured: CapturedGraph, reference: CapturedGraph, expected: Sequence[torch.Tensor],
        seconds: Sequence[Sequence[float]], threads: int, equal_nan: bool,
    ) -> SideReport: ...  # fmt: skip


def run_and_compare(
    captured: CapturedGraph,
    artifact: Artifact,
    *,
    repeats: int,
    threads: int,
    nodes: NodeCounts,
    compile_seconds: float,
    graph: int = 0,
    on_progress: OnProgress | None = None,
    on_values: Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], None] | None = None,
    equal_nan: bool = False,
    sides: Sequence[Side] = (),
) -> RunReport:
    """Links `artifact`, runs it and eager on the captured inputs; reports values and `repeats` interleaved timings.

    Compiled code and eager draw random numbers from the same seed. The load time includes linking. Weights are packed
    while eager runs, and no first call is timed. `on_values` is called with the results of compiled code and of eager.
    Without an eager program, results have no verdict. NaN equals NaN only with `equal_nan`. Weights are frozen, because
    nothing should write to them during the run; a note reports changed ones. If nodes multiply in a reduced precision,
    results are compared with the same arithmetic in PyTorch; notes report its difference from eager. Timings of `sides`
    are interleaved with the others. `graph`, `nodes` and `compile_seconds` are copied to the report.
    """
    report_progress = on_progress or (lambda _text, _done: None)
    with torch_threads(threads), torch.no_grad():
        before = fingerprints(captured.tensors)
        report_progress("loading the compiled code", 0.0)
        program, load_seconds = time_call(lambda: load_artifact(artifact, frozen=True))
        report_progress("running compiled code and eager", 0.0)
        with _packing_weights(program, captured.tensors):
            torch.manual_seed(SEED)
            expected, eager_peak = measure_peak(lambda: run_eager(captured))
        torch.manual_seed(SEED)
        results, first_peak = measure_peak(lambda: program(captured.tensors, captured.numbers))
        reference = captured.in_precisions(dict(nodes.precisions))
        outputs = compare_with_reference(captured, reference, results, expected, equal_nan)
        if on_values is not None:
            on_values(results, expected)
        calls = [
            lambda: time_call(lambda: program(captured.tensors, captured.numbers))[1],
            lambda: time_call(lambda: run_eager_to_time(captured))[1],
            *(call for side in sides for call in side.calls),
        ]
        # Other runtimes work in other processes.
        meter = LoadMeter(in_this_process=not sides)
        compiled_seconds, eager_seconds, *side_seconds = time_interleaved(calls, repeats, report_progress)
        machine_load = meter.load()
        after = fingerprints(captured.tensors)
        side_reports = tuple(_side_reports(sides, captured, reference, expected, side_seconds, threads, equal_nan))
    thread_notes = _thread_notes(artifact, program)
    compiled_threads = 1 if thread_notes else threads
    report = make_run_report(
        captured, graph, outputs, summarize_times(compiled_seconds, compiled_threads),
        summarize_times(eager_seconds, threads), nodes, (before, after),
        (*precision_notes(reference, outputs), *thread_notes, *program.notes()),
    )  # fmt: skip
    return msgspec.structs.replace(
        report,
        compile_seconds=compile_seconds,
        load_seconds=load_seconds,
        memory=_memory_use(program, captured, artifact, first_peak, eager_peak),
        sides=side_reports,
        load=machine_load,
        equal_nan=equal_nan,
        slow_paths=nodes.slow_paths,
        error_paths=nodes.error_paths,
    )


def prepare_verdict(captured: CapturedGraph, threads: int) -> None:
    """Measures the spreads of eager's results on the captured inputs, if they can be saved for `run_and_compare`.

    This needs no compiled code, so it can run while another process compiles.
    """
    with torch_threads(threads), torch.no_grad():
        torch.manual_seed(SEED)
        expected = run_eager(captured)
        if may_be_saved(captured, expected):
            measure_spreads(captured, expected)


@contextmanager
def _packing_weights(program: Loaded, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Packs the weights of `program` in a thread while the block runs; raises the error of packing after the block.

    `measure_peak` does not count what other threads allocate.
    """
    with ThreadPoolExecutor(1) as pool:
        packing = pool.submit(program.pack, tensors)
        yield
        packing.result()


def make_run_report(
    captured: CapturedGraph, graph: int, outputs: tuple[OutputReport, ...], compiled: Timing, eager: Timing,
    nodes: NodeCounts, checksums: tuple[Sequence[int], Sequence[int]], notes: Sequence[str],
) -> RunReport:  # fmt: skip
    """Returns the report of a run with the fields that all kinds of runs have.

    These are the results, the times and their ratio, and whether inputs changed: `checksums` are the `fingerprints`
    of the tensors before and after the run. Without an eager program, the time of eager is 0.
    """
    before, after = checksums
    eager = eager if captured.eager else summarize_times((), eager.threads)
    return RunReport(
        graph,
        outputs,
        compiled,
        eager,
        nodes_compiled=nodes.compiled,
        nodes_eager=nodes.eager,
        compile_seconds=0.0,
        ratio=compiled.median / eager.median if eager.median else 0.0,
        inputs_unchanged=before == after,
        notes=(*notes, *changed_tensors(captured, before, after)),
        compared=captured.eager is not None,
    )


def describe_error(error: Exception) -> str:
    """Returns the message of an error; errors of other packages are preceded by their type."""
    return str(error) if isinstance(error, BuddyError) else f"{type(error).__name__}: {error}"


def _side_reports(
    sides: Sequence[Side], captured: CapturedGraph, reference: CapturedGraph, expected: Sequence[torch.Tensor],
    seconds: Sequence[Sequence[float]], threads: int, equal_nan: bool,
) -> Iterator[SideReport]:  # fmt: skip
    """Yields the report of each side; `seconds` are those of all calls, in order."""
    remaining = iter(seconds)
    for side in sides:
        side_seconds = [next(remaining) for _ in side.calls]
        yield side.report(captured, reference, expected, side_seconds, threads, equal_nan)


def compare_results(
    captured: CapturedGraph, results: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], equal_nan: bool
) -> tuple[OutputReport, ...]:
    """Compares compiled results with eager's tensors, in order; skips results that are not tensors.

    Without an eager program, the values are reported without a verdict. A result that eager does not return is reported
    as missing. A difference beyond the tolerance of the element type is judged by the graph's sensitivity to rounding.
    """
    remaining = iter(results)
    if captured.eager is None:
        named = zip(captured.names_of_results(), results, strict=True)
        return tuple(unchecked_report(name, value) for name, value in named)
    compared_results = []
    for index, value in enumerate(expected):
        if isinstance(value, torch.Tensor):
            compared_results.append(
                compare_result(captured, expected, index, next(remaining, None), equal_nan=equal_nan)
            )
    return (*compared_results, *(_extra_result(value) for value in remaining))


def compare_with_reference(
    captured: CapturedGraph, reference: CapturedGraph, results: Sequence[torch.Tensor],
    expected: Sequence[torch.Tensor], equal_nan: bool,
) -> tuple[OutputReport, ...]:  # fmt: skip
    """Compares compiled results with those of `reference`, which is `captured` or the same program in other precisions.

    `expected` are eager's results. In other precisions, each report also has the `relative_rms` of the reference.
    """
    if not reference.precisions:
        return compare_results(captured, results, expected, equal_nan)
    torch.manual_seed(SEED)
    references = run_eager(reference)
    reports = compare_results(reference, results, references, equal_nan)
    errors = [
        relative_rms(value, eager)
        for value, eager in zip(references, expected, strict=True)
        if isinstance(eager, torch.Tensor)
    ]
    errors += [-1.0] * (len(reports) - len(errors))  # of results that eager does not return
    return tuple(
        msgspec.structs.replace(report, precision_error=error) for report, error in zip(reports, errors, strict=True)
    )


def relative_rms(value: torch.Tensor, eager: torch.Tensor) -> float:
    """Returns the root mean square of the difference of two tensors, divided by that of `eager` unless this is 0."""
    difference, size = measure_difference(value, eager).rms, measure_difference(eager, torch.zeros_like(eager)).rms
    return difference / size if size else difference


def error_of_results(results: Sequence[object], expected: Sequence[object]) -> float:
    """Returns the greatest `relative_rms` of a tensor among `results`; infinity if other elements are finite."""
    errors = [0.0]
    for value, eager in zip(results, expected, strict=True):
        if isinstance(eager, torch.Tensor):
            is_comparable = isinstance(value, torch.Tensor) and torch.equal(value.isfinite(), eager.isfinite())
            errors.append(relative_rms(value, eager) if is_comparable else math.inf)
    return max(errors)


def precision_notes(reference: CapturedGraph, outputs: Sequence[OutputReport]) -> tuple[str, ...]:
    """Returns a note on a comparison in reduced precisions: the reference, and its difference from eager."""
    if not reference.precisions:
        return ()
    counts = Counter(reference.precisions.values())
    products = ", ".join(f"{count} in {precision}" for precision, count in counts.items())
    error = max((output.precision_error for output in outputs), default=0.0)
    return (
        f"products in reduced precision: {products}; results are compared with the same arithmetic in PyTorch, which "
        f"differs from eager by {error:.1e} of its rms",
    )


def _extra_result(value: torch.Tensor) -> OutputReport:
    report = unchecked_report("(extra result)", value)
    return msgspec.structs.replace(report, verdict="missing", where="eager has no such result")


def run_eager(captured: CapturedGraph) -> list[torch.Tensor]:
    """Runs eager on the captured inputs; returns its results, empty if there is no eager program."""
    return [] if captured.eager is None else captured.eager(captured.tensors)


def run_eager_to_time(captured: CapturedGraph) -> list[torch.Tensor]:
    """Runs eager for timing: with PyTorch's random ops, even if the comparison uses random bits from a seed."""
    return run_eager(captured) if captured.eager_to_time is None else captured.eager_to_time(captured.tensors)


def time_interleaved(
    calls: Sequence[Callable[[], float]], repeats: int, report_progress: OnProgress
) -> list[list[float]]:
    """Makes each of `calls`, which return their seconds, once per round, so that machine load affects them equally.

    There are `repeats` rounds. If `repeats` is 0, stops after `MAX_ROUNDS` rounds, or after `MIN_ROUNDS` when
    `ENOUGH_SECONDS` have passed. Returns a list for each of `calls`, with its seconds in each round.

    Each round starts with another call, because the first one of a round is slower: it finds caches with the data of
    the work between rounds.
    """
    seconds: list[list[float]] = [[] for _ in calls]
    rounds, start = repeats or MAX_ROUNDS, time.perf_counter()
    for index in range(rounds):
        if not repeats and index >= MIN_ROUNDS and time.perf_counter() - start > ENOUGH_SECONDS:
            break
        first = index % max(1, len(calls))
        for position in (*range(first, len(calls)), *range(first)):
            seconds[position].append(calls[position]())
        report_progress(f"running {index + 1}/{rounds}", (index + 1) / rounds)
    return seconds


def summarize_times(seconds: Sequence[float], threads: int) -> Timing:
    """Returns the median and the quartiles of `seconds`, which are 0 without runs; `threads` is stored with them."""
    if not seconds:
        return Timing(0.0, 0.0, 0.0, 0, threads)
    if len(seconds) == 1:
        return Timing(seconds[0], seconds[0], seconds[0], 1, threads)
    low, median, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return Timing(median, low, high, len(seconds), threads)


def time_call(action: Callable[[], T]) -> tuple[T, float]:
    """Returns the result of `action`, and its seconds."""
    start = time.perf_counter()
    result = action()
    return result, time.perf_counter() - start


def _memory_use(
    program: Loaded, captured: CapturedGraph, artifact: Artifact, first_peak: int, eager_peak: int
) -> MemoryUse:
    """Returns the memory use; `first_peak` is the peak of the first run after packing, which allocates the arena.

    Other allocations of a run are results, dense copies of strided inputs, and temporaries of ops in eager.
    """
    # A weight that several placeholders share has one copy.
    storages = {
        tensor.untyped_storage().data_ptr(): tensor.untyped_storage().nbytes()
        for tensor, kind in zip(captured.tensors, captured.graph.kinds, strict=False)
        if kind is NodeType.FakeNode
    }
    return MemoryUse(
        compiled=first_peak, eager=eager_peak, packed=program.packed_bytes, weights=sum(storages.values()),
        arena=artifact.arena, code=sum(map(len, artifact.objects)),
    )  # fmt: skip


def _thread_notes(artifact: Artifact, program: Loaded) -> tuple[str, ...]:
    """Returns a note if the program runs on fewer threads than it was compiled for."""
    if program.threads == artifact.threads:
        return ()
    requested = artifact.threads
    return (f"compiled code runs on one thread, not {requested}: torch has not loaded a supported OpenMP runtime",)


def changed_tensors(captured: CapturedGraph, before: Sequence[int], after: Sequence[int]) -> tuple[str, ...]:
    """Returns messages for tensors whose `fingerprints` changed, although the program writes to none of them."""
    names = [op.stable for op in captured.graph.placeholders]
    pairs = zip(names, before, after, strict=True)
    return tuple(f"the run changed {name}, which the program does not write to" for name, a, b in pairs if a != b)


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Sets torch's number of threads to `count` inside the `with` block."""
    previous = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(previous)
