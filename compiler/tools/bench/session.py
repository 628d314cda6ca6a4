"""Runs a benchmark: times all sides of each subject, interleaved, on each number of threads."""

from __future__ import annotations

import contextlib
import math
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.cluster import map_on_cluster
from buddy.compiler.support.processes.interpreters import BlockingWorker, call_and_wait
from buddy.compiler.support.target import cpu_name
from buddy.compiler.tools.bench.plan import (
    CONSTANT_WEIGHTS,
    OP_GROUP,
    OURS,
    OURS_FROZEN,
    BenchCase,
    BenchPlan,
    BenchPrecision,
    Clock,
    Task,
    unsupported_reason,
)
from buddy.compiler.tools.bench.report import (
    bootstrap_interval,
    geometric_mean,
    median_and_quartiles,
    summarize_ratios,
    table_of,
)
from buddy.compiler.tools.runtimes.sessions import NO_TELEMETRY


class PrepareSide(Message, frozen=True):
    """Prepare the script `source` for a side; answered by `SidePrepared` or `SideFailed`."""

    side: str
    source: str
    arguments: tuple[str, ...]
    task: Task
    precision: BenchPrecision
    threads: int
    clock: Clock


class SidePrepared(Message, frozen=True):
    """The side is ready to be timed; `report` has its compile times and its error."""

    report: dict[str, Any]


class SideFailed(Message, frozen=True):
    """The side cannot be prepared; `error` is the reason."""

    error: str


class TimeBlock(Message, frozen=True):
    """Time a block of calls: one call, or several if one is short; answered by `BlockTimed`."""


class BlockTimed(Message, frozen=True):
    """The median duration of the calls in a block, in seconds."""

    seconds: float


class SideProcessError(BuddyError):
    """A side could not be prepared, or its process exited; the text is the reason."""


class SideProcess:
    """One side of a case in a separate process, with empty caches."""

    def __init__(self, side: str, case: BenchCase, folder: Path, clock: Clock = "wall") -> None:
        self.side = side
        subject = case.subject
        self._caches = tempfile.TemporaryDirectory(prefix="buddy-bench-", ignore_cleanup_errors=True)
        self._log: TextIO = (folder / f"{subject.name}-{case.precision}-{case.threads}-{side}.log").open("w")
        self._worker = BlockingWorker(
            "buddy.compiler.tools.bench.worker:serve", SidePrepared | SideFailed | BlockTimed, self._log,
            _environment(case.threads, self._caches.name),
        )  # fmt: skip
        self._send(
            PrepareSide(side, subject.source, subject.arguments, subject.task, case.precision, case.threads, clock)
        )

    def wait_until_prepared(self, timeout: float) -> dict[str, Any]:
        """Waits at most `timeout` seconds for the preparation, and returns its report. Raises `SideProcessError`."""
        answer = self._receive(timeout)
        if isinstance(answer, SideFailed):
            raise SideProcessError(answer.error)
        return dict(answer.report)

    def time_block(self) -> float:
        """Times a block, and returns the seconds per call. Raises `SideProcessError`."""
        self._send(TimeBlock())
        return float(self._receive().seconds)

    def close(self) -> None:
        """Ends the process, and removes its caches."""
        self._worker.end()
        self._log.close()
        self._caches.cleanup()

    def _send(self, message: Message) -> None:
        # If the process has exited, `_receive` raises the error.
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(message)

    def _receive(self, timeout: float = math.inf) -> Any:
        try:
            answer = self._worker.receive(timeout)
        except TimeoutError as error:
            raise SideProcessError(f"it was not ready after {timeout:.0f} s; see {self._log.name}") from error
        if answer is None:
            raise SideProcessError(f"its process exited with status {self._worker.wait()}; see {self._log.name}")
        return answer


def _environment(threads: int, caches: str) -> dict[str, str]:
    """Returns the environment of a side: the same number of threads for every library, and empty caches."""
    thread_counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    empty_caches = {"BUDDY_CACHE": caches, "TORCHINDUCTOR_CACHE_DIR": caches, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    return {**thread_counts, **empty_caches, **NO_TELEMETRY}


# ---- measurements ----------------------------------------------------------------------------------------------------

# Called with a text on the current measurement.
OnProgress = Callable[[str], None]
# The number of rounds that are timed even after the time limit.
MIN_ROUNDS = 5
# The maximum error of a side that is timed. In float32 it is the largest difference of an element: sums in another
# order differ by 1e-5 of the output's scale after fifty layers. In other precisions it is relative to the norm of an
# output, and no measure of quality: an output of zeros has an error of 1, one of unrelated numbers of 1.4. Training
# steps have a limit of their own (`bench.errors`). If weights alone are rounded, the reference has the same weights
# (`bench.errors`), and other runtimes still round activations to 8 bits, so 4 bits have the limit of 8.
_MAX_ERRORS = {"f32": 1e-3, "bf16": 0.1, "int8": 0.2, "int4": 0.2}
# The pause before a block: threads of the previous side's runtime spin after a call, and would slow down the block.
_PAUSE_SECONDS = 0.01
# The time limit for measuring the peak rates, which takes two seconds on an idle machine.
_PEAK_RATES_SECONDS = 600.0


def run_benchmark(
    plan: BenchPlan,
    folder: Path,
    on_progress: OnProgress = lambda _text: None,
    earlier_results: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Measures everything in `plan`, and yields all results so far after each subject.

    Logs of the sides go to `folder`. For a side that fails, the results have the reason. Subjects in `earlier_results`,
    those of a run with the same sides, are not measured again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    results = _empty_results() | dict(earlier_results or {})
    for case in _unmeasured_cases(plan, results):
        threads = str(case.threads)
        if threads not in results["limits"]:
            on_progress(f"measuring the machine on {threads} threads")
            results["limits"][threads] = _measure_peak_rates(case.threads)
        results["subjects"].append(_CaseRun(case, plan, folder, on_progress).run())
        yield _with_summary(results)


def _empty_results() -> dict[str, Any]:
    return {"machine": cpu_name(), "limits": {}, "subjects": []}


def run_on_cluster(
    plan: BenchPlan,
    address: str,
    on_progress: OnProgress = lambda _text: None,
    earlier_results: Mapping[str, Any] | None = None,
) -> Iterator[dict[str, Any]]:
    """Yields what `run_benchmark` yields, measured by workers of the Dask cluster at `address`.

    One worker measures all sides of a subject. A worker should have one thread, so that it measures one subject at a
    time. Logs are not kept. Raises `ClusterError`.
    """
    results = _empty_results() | dict(earlier_results or {})
    replace, unmeasured = msgspec.structs.replace, _unmeasured_cases(plan, results)
    jobs = [
        msgspec.json.encode(
            replace(plan, subjects=(replace(case.subject, precisions=(case.precision,)),), threads=(case.threads,))
        )
        for case in unmeasured
    ]
    earlier_count = len(results["subjects"])
    for _, (limits, machine, subject) in map_on_cluster(address, measure_job, jobs, on_progress):
        results["limits"].setdefault(str(subject["threads"]), limits)
        results["machine"] = machine
        results["subjects"].append(subject)
        on_progress(f"{len(results['subjects']) - earlier_count} of {len(jobs)} measured: {subject['name']}")
        yield _with_summary(results)


def measure_job(job: bytes) -> tuple[dict[str, float], str, dict[str, Any]]:
    """Measures `job`, a plan of one case, on a worker; returns the machine's peak rates and CPU, and the result."""
    plan = msgspec.json.decode(job, type=BenchPlan)
    (case,) = plan.cases
    with tempfile.TemporaryDirectory(prefix="buddy-bench-") as folder:
        results = _CaseRun(case, plan, Path(folder), lambda _text: None).run()
    return _measure_peak_rates(case.threads), cpu_name(), results | {"worker": platform.node()}


def _unmeasured_cases(plan: BenchPlan, results: Mapping[str, Any]) -> list[BenchCase]:
    """Returns the cases of `plan` that `results` does not have."""
    done = {(subject["name"], subject.get("precision", "f32"), subject["threads"]) for subject in results["subjects"]}
    return [case for case in plan.cases if case.key not in done]


def _with_summary(results: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a copy of the results with the geometric means, by number of threads."""
    subjects = list(results["subjects"])
    return {
        **results,
        "subjects": subjects,
        "summary": {threads: summarize_tables(subjects, int(threads)) for threads in results["limits"]},
    }


def _measure_peak_rates(threads: int) -> dict[str, float]:
    return call_and_wait(
        "buddy.compiler.tools.bench.peak_rates:measure_peak_rates", threads, dict[str, float], _PEAK_RATES_SECONDS
    )


class _CaseRun:
    """One measurement: all sides of a case."""

    def __init__(self, case: BenchCase, plan: BenchPlan, folder: Path, on_progress: OnProgress) -> None:
        self.case, self.plan, self.folder = case, plan, folder
        self.on_progress = lambda text: on_progress(f"{case}: {text}")

    def run(self) -> dict[str, Any]:
        """Prepares all sides, times them in rounds, and returns the result of the case."""
        processes: dict[str, SideProcess] = {}
        reports: dict[str, dict[str, Any]] = {}
        try:
            for side in self.plan.sides:
                self._prepare(side, processes, reports)
            load = os.getloadavg()[0]
            times = self._time_rounds(processes, reports)
        finally:
            for process in processes.values():
                process.close()
        return self._make_result(reports, times) | {"load": round(load, 2)}

    def _prepare(self, side: str, processes: dict[str, SideProcess], reports: dict[str, dict[str, Any]]) -> None:
        """Prepares a side, and waits until it is ready, so that the compile time of the next side is not disturbed."""
        self.on_progress(f"preparing {side}")
        if reason := unsupported_reason(side, self.case):
            reports[side] = {"error": reason}
            return
        processes[side] = SideProcess(side, self.case, self.folder, self.plan.clock)
        try:
            reports[side] = processes[side].wait_until_prepared(self.plan.prepare_seconds)
        except SideProcessError as error:
            reports[side] = {"error": str(error)}
            processes.pop(side).close()
            self.on_progress(f"{side} failed: {error}")

    def _time_rounds(
        self, processes: dict[str, SideProcess], reports: dict[str, dict[str, Any]]
    ) -> dict[str, list[float]]:
        """Returns the seconds per call of each side in each round, after two warm-up blocks.

        Each round starts with another side. Sides that failed, or whose results differ from eager's, are left out.
        """
        names = list(processes)
        for name in names * 2:
            self._time_block(name, processes, reports)
        times: dict[str, list[float]] = {name: [] for name in names}
        deadline = time.monotonic() + self.plan.seconds
        for number in range(self.plan.rounds):
            if number >= MIN_ROUNDS and time.monotonic() > deadline:
                break
            self.on_progress(f"round {number + 1} of {self.plan.rounds}")
            first = number % max(1, len(names))
            for name in names[first:] + names[:first]:
                seconds = self._time_block(name, processes, reports)
                if seconds is not None:
                    times[name].append(seconds)
        return {name: times[name] for name in names if not self._find_problem(reports[name])}

    def _find_problem(self, report: dict[str, Any]) -> str:
        """Returns the reason why a side is not timed: its error, or results that differ from eager's; else ""."""
        if "error" in report:
            return str(report["error"])
        if self.case.subject.task == "training":
            return str(report["problem"])
        maximum = _MAX_ERRORS[self.case.precision.partition("-")[0]]
        if "error_of_weights" in report:
            error, reference = report["error_of_weights"], "those of eager with the same weights"
        else:
            error, reference = report["largest_error" if self.case.precision == "f32" else "relative_error"], "eager's"
        return "" if error <= maximum else f"its results differ from {reference} by {error:.1e}"

    def _time_block(
        self, name: str, processes: dict[str, SideProcess], reports: dict[str, dict[str, Any]]
    ) -> float | None:
        """Returns the seconds per call of a side in one block; `None` if the side has failed."""
        if "error" in reports[name]:
            return None
        time.sleep(_PAUSE_SECONDS)
        try:
            return processes[name].time_block()
        except SideProcessError as error:
            reports[name] = {"error": str(error)}
            return None

    def _make_result(self, reports: dict[str, dict[str, Any]], times: dict[str, list[float]]) -> dict[str, Any]:
        # All reports have the same numbers for the subject, so any will do.
        subject_numbers = next((report for report in reports.values() if "error" not in report), {})
        sides = {name: self._make_side_result(report, times.get(name, ())) for name, report in reports.items()}
        subject, precision = self.case.subject, self.case.precision
        return {
            "name": subject.name,
            "group": subject.group,
            "table": subject.table(precision),
            "precision": precision,
            "threads": self.case.threads,
            "clock": self.plan.clock,
            "flops": subject_numbers.get("flops", 0),
            "parameter_bytes": subject_numbers.get("parameter_bytes", 0),
            "sides": sides,
            # No side freezes weights in training.
            **compare_with_other_sides(times, () if subject.task == "training" else CONSTANT_WEIGHTS),
        }

    def _make_side_result(self, report: dict[str, Any], seconds: Sequence[float]) -> dict[str, Any]:
        if problem := self._find_problem(report):
            return {"error": problem}
        names = [name for name in report if name.endswith("_seconds")]
        names += ["largest_error", "relative_error", "peak_rss"]
        names += [name for name in ("spread", "error_of_weights") if name in report]
        names += ["note"] if report["note"] else []
        return {"seconds": median_and_quartiles(seconds), **{name: report[name] for name in names}}


# ---- comparisons -----------------------------------------------------------------------------------------------------


def compare_with_other_sides(
    times: dict[str, list[float]], constant_weights: Collection[str] = CONSTANT_WEIGHTS
) -> dict[str, Any]:
    """Returns the speedups of this compiler over the other sides that read weights in place.

    The entry `frozen` has the speedups of this compiler with frozen weights over all other sides.
    """
    others = {name: values for name, values in times.items() if name not in (OURS, OURS_FROZEN)}
    in_place = {name: values for name, values in others.items() if name not in constant_weights}
    return {**_speedups(times.get(OURS), in_place), "frozen": _speedups(times.get(OURS_FROZEN), others)}


def _speedups(ours: list[float] | None, others: dict[str, list[float]]) -> dict[str, Any]:
    """Returns the speedup of this compiler over each other side, and over the side with the smallest median time.

    Ratios are taken round by round.
    """
    if not ours or not others:
        return {"faster_than": {}, "fastest": None, "ratio": None, "interval": None}
    fastest = min(others, key=lambda name: statistics.median(others[name]))
    speedups = [their_seconds / our_seconds for their_seconds, our_seconds in zip(others[fastest], ours, strict=True)]
    low, high = bootstrap_interval(speedups)
    return {
        "faster_than": {name: summarize_ratios(values, ours) for name, values in others.items()},
        "fastest": fastest,
        "ratio": statistics.median(speedups),
        "interval": [low, high],
    }


def summarize_tables(subjects: Sequence[dict[str, Any]], threads: int) -> dict[str, dict[str, Any]]:
    """Returns for each table the geometric mean of the speedups over the timed models, and the models without a time.

    In tables of several precisions, each entry counts.
    """
    all_models = [subject for subject in subjects if subject["threads"] == threads and subject["group"] != OP_GROUP]
    tables: dict[str, list[dict[str, Any]]] = {}
    for model in all_models:
        tables.setdefault(table_of(model), []).append(model)
    return {table: _summarize_models(models) for table, models in tables.items()}


def _summarize_models(models: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Returns the geometric means of the speedups of one table, in place and frozen, and the models without a time."""
    timed = [model["ratio"] for model in models if model["ratio"]]
    frozen = [model["frozen"]["ratio"] for model in models if (model.get("frozen") or {}).get("ratio")]
    return {
        "geometric_mean": geometric_mean(timed) if timed else None,
        "frozen_geometric_mean": geometric_mean(frozen) if frozen else None,
        "models": len(timed),
        "frozen_models": len(frozen),
        "not_timed": [model["name"] for model in models if not model["ratio"]],
    }
