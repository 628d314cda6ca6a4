"""Runs a graph by another compiler, by this one and in eager: compares each output, times all three interleaved."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from buddy.compiler.protocol.artifact import from_bytes
from buddy.compiler.protocol.catalogue import COMPILER_NAMES
from buddy.compiler.protocol.recipe import NATIVE
from buddy.compiler.protocol.run_report import NodeCounts, RunReport, SideReport
from buddy.compiler.runtime.executable import load_artifact
from buddy.compiler.runtime.forked_program import ForkedProgram
from buddy.compiler.runtime.graph_interpreter import SEED
from buddy.compiler.runtime.measure import (
    OnProgress,
    compare_with_reference,
    describe_error,
    fingerprints,
    make_run_report,
    precision_notes,
    run_eager,
    run_eager_to_time,
    summarize_times,
    time_call,
    time_interleaved,
    torch_threads,
)
from buddy.compiler.support.timing import LoadMeter

if TYPE_CHECKING:
    from buddy.compiler.protocol.worker_messages import NativeCode
    from buddy.compiler.runtime.captured import CapturedGraph


def run_and_compare_with_native(
    captured: CapturedGraph,
    process: ForkedProgram,
    native: NativeCode,
    *,
    repeats: int,
    threads: int,
    nodes: NodeCounts,
    compile_seconds: float,
    graph: int = 0,
    on_progress: OnProgress | None = None,
    on_values: Callable[[Sequence[Any], Sequence[Any]], None] | None = None,
    equal_nan: bool = False,
) -> RunReport:
    """Does what `run_and_compare` does for the program of another compiler, and compares it with `native`.

    `native` is this compiler's code of the same graph.

    The program is in a separate process, forked before torch has threads. Loading includes one call. Raises what
    `process` raises; errors of `native` are in its part of the report.
    """
    report_progress = on_progress or (lambda _text, _done: None)
    with process, torch_threads(threads), torch.no_grad():
        before = fingerprints(captured.tensors)
        report_progress(f"loading the code of {COMPILER_NAMES[process.backend]}", 0.0)
        load_seconds = process.wait_until_loaded()
        report_progress(f"running {COMPILER_NAMES[process.backend]}, this compiler's code and eager", 0.0)
        results = process.call()
        native_side = _NativeSide(captured, native)
        torch.manual_seed(SEED)
        expected = run_eager(captured)
        if on_values is not None:
            on_values(results, expected)
        calls = [process.time_call, *native_side.calls, lambda: time_call(lambda: run_eager_to_time(captured))[1]]
        # The program runs in another process.
        meter = LoadMeter(in_this_process=False)
        seconds = time_interleaved(calls, repeats, report_progress)
        machine_load = meter.load()
        after = fingerprints(captured.tensors)
        reference = captured.in_precisions(dict(nodes.precisions))
        outputs = compare_with_reference(captured, reference, results, expected, equal_nan)
    report = make_run_report(
        captured, graph, outputs, summarize_times(seconds[0], threads), summarize_times(seconds[-1], threads), nodes,
        (before, after), (*precision_notes(reference, outputs), *process.notes()),
    )  # fmt: skip
    return msgspec.structs.replace(
        report,
        compile_seconds=compile_seconds,
        load_seconds=load_seconds,
        backend=process.backend,
        sides=(native_side.report(captured, reference, expected, seconds[1:-1], threads, equal_nan),),
        load=machine_load,
        equal_nan=equal_nan,
    )


class _NativeSide:
    """A `Side`: this compiler's code of the same graph, its results, and calls to time; without these if it failed."""

    def __init__(self, captured: CapturedGraph, code: NativeCode) -> None:
        self._code, self._problem = code, code.problem
        self._load_seconds = 0.0
        self._results: Sequence[torch.Tensor] = ()
        self.calls: list[Callable[[], float]] = []
        if self._problem:
            return
        with self._store_errors():
            program, self._load_seconds = time_call(lambda: load_artifact(from_bytes(code.artifact)))
            torch.manual_seed(SEED)
            self._results = program(captured.tensors, captured.numbers)
            self.calls = [lambda: time_call(lambda: program(captured.tensors, captured.numbers))[1]]

    @contextlib.contextmanager
    def _store_errors(self) -> Any:
        """Catches and stores errors of this compiler's code, which do not affect the other results."""
        try:
            yield
        except Exception as error:
            self._problem = describe_error(error)

    def report(
        self, captured: CapturedGraph, reference: CapturedGraph, expected: Sequence[Any],
        seconds: Sequence[Sequence[float]], threads: int, equal_nan: bool,
    ) -> SideReport:  # fmt: skip
        """Returns the comparison with the reference and the timing; only the problem if the code failed."""
        if self._problem:
            return SideReport(NATIVE, problem=self._problem)
        outputs = compare_with_reference(captured, reference, self._results, expected, equal_nan)
        timing = summarize_times(seconds[0], threads)
        return SideReport(NATIVE, outputs, timing, self._code.seconds, self._load_seconds)
