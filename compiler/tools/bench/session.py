"""A whole benchmark: every subject on every number of threads, with interleaved sides."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import msgspec

from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.cluster import map_on_cluster
from buddy.compiler.support.processes.interpreters import BlockingWorker, call_and_wait
from buddy.compiler.tools.bench.plan import CONSTANT_WEIGHTS, OURS, OURS_FROZEN, BenchPlan, BenchSubject
from buddy.compiler.tools.bench.report import geometric_mean, interval, ratios, spread


class PrepareSide(Message, frozen=True):
    """Prepare the script `source` for a side; answered by `SidePrepared` or `SideFailed`."""

    side: str
    source: str
    arguments: tuple[str, ...]
    threads: int


class SidePrepared(Message, frozen=True):
    report: dict[str, Any]


class SideFailed(Message, frozen=True):
    error: str


class TimeBlock(Message, frozen=True):
    """Time a block of calls; answered by `BlockTimed`."""


class BlockTimed(Message, frozen=True):
    """The median seconds of a block's calls."""

    seconds: float


class ContestantError(Exception):
    """A side could not be prepared, or its process exited; the text is the reason."""


class Contestant:
    """One side of a subject in a separate process, with empty caches, on `threads` threads."""

    def __init__(self, side: str, subject: BenchSubject, threads: int, folder: Path) -> None:
        self.side = side
        self._caches = tempfile.TemporaryDirectory(prefix="buddy-bench-", ignore_cleanup_errors=True)
        self._log: TextIO = (folder / f"{subject.name}-{threads}-{side}.log").open("w")
        self._worker = BlockingWorker(
            "buddy.compiler.tools.bench.worker:serve", SidePrepared | SideFailed | BlockTimed, self._log,
            _environment(threads, self._caches.name),
        )  # fmt: skip
        self._send(PrepareSide(side, subject.source, subject.arguments, threads))

    def report(self) -> dict[str, Any]:
        """The report of the preparation, once it is done. Raises `ContestantError`."""
        found = self._answer()
        if isinstance(found, SideFailed):
            raise ContestantError(found.error)
        return dict(found.report)

    def seconds(self) -> float:
        """The duration of one call. Raises `ContestantError`."""
        self._send(TimeBlock())
        return float(self._answer().seconds)

    def close(self) -> None:
        self._worker.end()
        self._log.close()
        self._caches.cleanup()

    def _send(self, message: Message) -> None:
        # If the process has exited, `_answer` raises the error.
        with contextlib.suppress(BrokenPipeError):
            self._worker.send(message)

    def _answer(self) -> Any:
        found = self._worker.receive()
        if found is None:
            raise ContestantError(f"its process exited with status {self._worker.wait()}; see {self._log.name}")
        return found


def _environment(threads: int, caches: str) -> dict[str, str]:
    """The environment of a side: the same number of threads for every library, and empty caches."""
    counts = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads))
    fresh = {"BUDDY_CACHE": caches, "TORCHINDUCTOR_CACHE_DIR": caches, "TORCHINDUCTOR_FORCE_DISABLE_CACHES": "1"}
    return {**counts, **fresh}


Tell = Callable[[str], None]
LEAST_ROUNDS = 5
# Maximum relative error: timings of wrong results are meaningless. Sums in another order differ by 1e-5 of the output's
# scale after fifty layers.
WRONG = 1e-3
# The pause before a side in seconds: threads of a runtime spin after a call, and would compete with the next side.
PAUSE = 0.01
# The peak rates take two seconds on an idle machine.
_LIMITS_SECONDS = 600.0


def run(
    plan: BenchPlan, folder: Path, tell: Tell = lambda _text: None, known: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Measures everything in `plan`, and yields all results so far after each subject.

    Logs of the sides go to `folder`. A side that fails is listed with the reason. Results that are `known` from an
    earlier run of the same sides are not measured again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    found: dict[str, Any] = {"limits": {}, "subjects": [], **(known or {})}
    for threads, subject in _unmeasured(plan, found):
        if str(threads) not in found["limits"]:
            tell(f"measuring the machine on {threads} threads")
            found["limits"][str(threads)] = _limits(threads)
        found["subjects"].append(_Match(subject, plan, threads, folder, tell).run())
        yield _with_summary(found)


def run_on_cluster(
    plan: BenchPlan, address: str, tell: Tell = lambda _text: None, known: Mapping[str, Any] | None = None
) -> Iterator[dict[str, Any]]:
    """Like `run`, but one worker of the Dask cluster at `address` measures all sides of a subject.

    Workers with one thread measure one subject at a time. Logs stay on the workers. Raises `ClusterError`.
    """
    found: dict[str, Any] = {"limits": {}, "subjects": [], **(known or {})}
    replace, missing = msgspec.structs.replace, _unmeasured(plan, found)
    jobs = [msgspec.json.encode(replace(plan, subjects=(subject,), threads=(n,))) for n, subject in missing]
    done = len(found["subjects"])
    for _, (limits, subject) in map_on_cluster(address, measure_job, jobs, tell):
        found["limits"].setdefault(str(subject["threads"]), limits)
        found["subjects"].append(subject)
        tell(f"{len(found['subjects']) - done} of {len(jobs)} measured: {subject['name']}")
        yield _with_summary(found)


def measure_job(job: bytes) -> tuple[dict[str, float], dict[str, Any]]:
    """Measures a job, a plan of one subject, on a worker of a cluster; also returns the machine's peak rates."""
    plan = msgspec.json.decode(job, type=BenchPlan)
    (subject,), (threads,) = plan.subjects, plan.threads
    with tempfile.TemporaryDirectory(prefix="buddy-bench-") as folder:
        found = _Match(subject, plan, threads, Path(folder), lambda _text: None).run()
    return _limits(threads), found | {"worker": platform.node()}


def _unmeasured(plan: BenchPlan, found: Mapping[str, Any]) -> list[tuple[int, BenchSubject]]:
    """The subjects that have not been measured, with their numbers of threads."""
    done = {(subject["name"], subject["threads"]) for subject in found["subjects"]}
    return [(n, subject) for n in plan.threads for subject in plan.subjects if (subject.name, n) not in done]


def _with_summary(found: Mapping[str, Any]) -> dict[str, Any]:
    subjects = list(found["subjects"])
    return {**found, "subjects": subjects, "summary": {n: summary(subjects, int(n)) for n in found["limits"]}}


def _limits(threads: int) -> dict[str, float]:
    return call_and_wait("buddy.compiler.tools.bench.limits:measure", threads, dict[str, float], _LIMITS_SECONDS)


class _Match:
    """One subject on one number of threads."""

    def __init__(self, subject: BenchSubject, plan: BenchPlan, threads: int, folder: Path, tell: Tell) -> None:
        self.subject, self.plan, self.threads, self.folder = subject, plan, threads, folder
        self.tell = lambda text: tell(f"{subject.name}, {threads} threads: {text}")

    def run(self) -> dict[str, Any]:
        contestants: dict[str, Contestant] = {}
        reports: dict[str, dict[str, Any]] = {}
        try:
            for side in self.plan.sides:
                self._prepare(side, contestants, reports)
            load = os.getloadavg()[0]
            times = self._time_rounds(contestants, reports)
        finally:
            for contestant in contestants.values():
                contestant.close()
        return self._result(reports, times) | {"load": round(load, 2)}

    def _prepare(self, side: str, contestants: dict[str, Contestant], reports: dict[str, dict[str, Any]]) -> None:
        """Prepares the sides one after another, so that compile times are not disturbed."""
        self.tell(f"preparing {side}")
        contestants[side] = Contestant(side, self.subject, self.threads, self.folder)
        try:
            reports[side] = contestants[side].report()
        except ContestantError as error:
            reports[side] = {"error": str(error)}
            contestants.pop(side).close()
            self.tell(f"{side} failed: {error}")

    def _time_rounds(
        self, contestants: dict[str, Contestant], reports: dict[str, dict[str, Any]]
    ) -> dict[str, list[float]]:
        """Seconds of each side, after two warm-up calls; each round starts with another side."""
        names = list(contestants)
        for name in names * 2:
            self._time_block(name, contestants, reports)
        times: dict[str, list[float]] = {name: [] for name in names}
        end = time.monotonic() + self.plan.seconds
        for number in range(self.plan.rounds):
            if number >= LEAST_ROUNDS and time.monotonic() > end:
                break
            self.tell(f"round {number + 1} of {self.plan.rounds}")
            first = number % max(1, len(names))
            for name in names[first:] + names[:first]:
                seconds = self._time_block(name, contestants, reports)
                if seconds is not None:
                    times[name].append(seconds)
        return {name: times[name] for name in names if "error" not in reports[name] and _matches_eager(reports[name])}

    def _time_block(
        self, name: str, contestants: dict[str, Contestant], reports: dict[str, dict[str, Any]]
    ) -> float | None:
        if "error" in reports[name]:
            return None
        time.sleep(PAUSE)
        try:
            return contestants[name].seconds()
        except ContestantError as error:
            reports[name] = {"error": str(error)}
            return None

    def _result(self, reports: dict[str, dict[str, Any]], times: dict[str, list[float]]) -> dict[str, Any]:
        known = next((report for report in reports.values() if "error" not in report), {})
        sides = {name: _side_result(reports[name], times.get(name)) for name in reports}
        return {
            "name": self.subject.name,
            "group": self.subject.group,
            "threads": self.threads,
            "flops": known.get("flops", 0),
            "parameter_bytes": known.get("parameter_bytes", 0),
            "sides": sides,
            **compare_with_peers(times),
        }


def _matches_eager(report: dict[str, Any]) -> bool:
    return bool(report["error_of"] <= WRONG)


def _side_result(report: dict[str, Any], seconds: Sequence[float] | None) -> dict[str, Any]:
    if "error" in report:
        return {"error": report["error"]}
    if not _matches_eager(report):
        return {"error": f"its results differ from eager's by {report['error_of']:.1e}"}
    assert seconds
    kept = [name for name in report if name.endswith("_seconds") or name in ("error_of", "peak_rss")]
    return {"seconds": spread(seconds), **{name: report[name] for name in kept}}


def compare_with_peers(times: dict[str, list[float]]) -> dict[str, Any]:
    """Compares this compiler with the other sides that read weights in place.

    The entry `frozen` compares this compiler with frozen weights with all other sides.
    """
    others = {name: values for name, values in times.items() if name not in (OURS, OURS_FROZEN)}
    in_place = {name: values for name, values in others.items() if name not in CONSTANT_WEIGHTS}
    return {**_speedups(times.get(OURS), in_place), "frozen": _speedups(times.get(OURS_FROZEN), others)}


def _speedups(ours: list[float] | None, others: dict[str, list[float]]) -> dict[str, Any]:
    """The speedup of this compiler over each other side, round by round, and over that with the smallest median."""
    if not ours or not others:
        return {"faster_than": {}, "fastest": None, "ratio": None, "interval": None}
    fastest = min(others, key=lambda name: statistics.median(others[name]))
    pairs = [other / own for other, own in zip(others[fastest], ours, strict=True)]
    low, high = interval(pairs)
    return {
        "faster_than": {name: ratios(values, ours) for name, values in others.items()},
        "fastest": fastest,
        "ratio": statistics.median(pairs),
        "interval": [low, high],
    }


def summary(subjects: Sequence[dict[str, Any]], threads: int) -> dict[str, Any]:
    """The geometric mean over the timed models, and the models that were not timed."""
    models = [found for found in subjects if found["threads"] == threads and found["group"] == "model"]
    timed = [found["ratio"] for found in models if found["ratio"]]
    frozen = [found["frozen"]["ratio"] for found in models if (found.get("frozen") or {}).get("ratio")]
    return {
        "geometric_mean": geometric_mean(timed) if timed else None,
        "frozen_geometric_mean": geometric_mean(frozen) if frozen else None,
        "models": len(timed),
        "not_timed": [found["name"] for found in models if not found["ratio"]],
    }
