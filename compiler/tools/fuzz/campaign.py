"""Runs a campaign of random programs in batches, each with a separate seed, so that it can be distributed and resumed.

Hypothesis draws the programs of a batch, and reduces failing programs.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

from buddy.compiler.protocol.presets import presets
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.tools.fuzz import checking
from buddy.compiler.tools.fuzz.restartable_process import CrashLog, RestartableProcess
from buddy.compiler.tools.fuzz.session import (
    FAULTS,
    BatchDone,
    FuzzBatch,
    FuzzFault,
    FuzzPlan,
    Histogram,
    Outcome,
    RunBatches,
    Verdict,
    merge_histograms,
)
from buddy.compiler.tools.fuzz.writing import GeneratedProgram, scripts

# The statements that crashed eager, by the seed of their batch.
CrashingStatements = Mapping[int, Collection[str]]
PHASES = (Phase.generate, Phase.shrink)
# The maximum number of smaller programs that are tried per failure; further ones rarely fail in the same way.
MAX_REDUCTIONS = 250
# The maximum number of wrong programs to reduce per batch, because one fault may affect many statements.
MAX_WRONG_FAULTS = 3
# A number in a reason, which differs between programs with the same fault.
_NUMBER = re.compile(r"\b\d[\d.]*(?:e[+-]?\d+)?\b")


class _Failed(Exception):
    """Raised for Hypothesis when a program fails, so that it searches for a smaller program with the same failure."""


def run(
    plan: FuzzPlan,
    finished: Collection[int] = (),
    crash_log: Path | None = None,
    crashing: CrashingStatements = MappingProxyType({}),
) -> Iterator[FuzzBatch]:
    """Runs the batches of `plan` except for those with `finished` seeds, and yields their results.

    While eager runs a statement, the file `crash_log` contains the seed of the batch and the statement. Statements in
    `crashing` are left out of the programs of their batch.
    """
    statement_log = CrashLog(crash_log)
    with RestartableProcess("buddy.compiler.tools.fuzz.checking", "check") as worker:
        _check_plan(plan, worker)
        for batch_seed in plan.seeds():
            if batch_seed not in finished:
                yield _BatchRun(plan, worker, batch_seed, statement_log, tuple(crashing.get(batch_seed, ()))).run()


def _check_plan(plan: FuzzPlan, worker: RestartableProcess) -> None:
    """Exits this process for errors that every program would have: an unknown preset, a broken extension."""
    preset = plan.options.get("preset", "default")
    if preset not in presets():
        raise SystemExit(f"unknown preset {preset!r}; the presets are {', '.join(presets())}")
    if plan.extensions:
        call = worker.ask(("", {}, plan.extensions), plan.timeout)
        if call.how != "answer":
            raise SystemExit(f"an extension failed to load: {call.value}")


class _BatchRun:
    """One running batch.

    Hypothesis calls `_try_program` with program after program. After the first failure of a new kind, Hypothesis passes
    smaller programs (the reduction), until none fails in the same way or `MAX_REDUCTIONS` have been tried.
    """

    def __init__(
        self,
        plan: FuzzPlan,
        worker: RestartableProcess,
        batch_seed: int,
        crash_log: CrashLog,
        crashing: tuple[str, ...],
    ) -> None:
        self._plan, self._worker, self._seed = plan, worker, batch_seed
        self._programs = scripts(
            plan.statements, lambda text: crash_log.record(text and f"{batch_seed} {text}"), crashing
        )
        self._crashing = crashing
        self._outcomes: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._compiled: list[Histogram] = []
        self._faults: list[FuzzFault] = []
        # The failing programs of the current reduction, from large to small; empty if none is running.
        self._failing: list[FuzzFault] = []
        self._reductions_left = 0

    def run(self) -> FuzzBatch:
        """Runs all programs of the batch, and returns the results."""
        start = time.perf_counter()
        size, programs_before = self._plan.size(self._seed), -1
        while programs_before < self._outcomes.total() < size:  # Hypothesis may have no further programs
            programs_before = self._outcomes.total()
            self._faults += self._find_fault(f"{self._seed}, from {programs_before}", size - programs_before)
        tables = {"statements": dict(self._kinds), "reasons": dict(self._reasons)}
        drawn = merge_histograms([tables, *self._compiled])
        seconds = round(time.perf_counter() - start, 2)
        conditions = self._plan.conditions(self._seed)
        faults = tuple(self._faults)
        return FuzzBatch(self._seed, conditions, dict(self._outcomes), seconds, faults, self._crashing, drawn)

    def _find_fault(self, name: str, max_programs: int) -> list[FuzzFault]:
        """Tries up to `max_programs` programs until one fails in a new way; returns the reduced one, or nothing."""
        run_settings = settings(
            max_examples=max_programs,
            deadline=None,
            database=None,
            phases=PHASES,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        self._failing.clear()
        with contextlib.suppress(_Failed, Flaky):  # the last failure is the smallest program
            seed(name)(run_settings(given(self._programs)(self._try_program)))()
        return self._failing[-1:]

    def _try_program(self, program: GeneratedProgram) -> None:
        """Counts a program's verdict, unless it is part of a reduction. Raises `_Failed` to begin or continue one."""
        if self._failing:
            self._reductions_left -= 1
            if self._reductions_left < 0:
                return
        verdict = verdict_of(self._worker, program.script, self._plan)
        if not self._failing:
            self._outcomes[verdict.outcome] += 1
            self._kinds.update(program.kinds)
            self._reasons.update([reason_without_numbers(verdict)] if verdict.why else [])
            self._compiled.append(verdict.compiled)
        if verdict.outcome not in FAULTS:
            return
        fault = FuzzFault(verdict.outcome, verdict.why, program.script, verdict.at)
        if self._failing:
            if not _is_same_fault(self._failing[0], fault):
                return
        else:
            wrong_count = sum(earlier.outcome == fault.outcome == "wrong" for earlier in self._faults)
            if wrong_count >= MAX_WRONG_FAULTS or any(_is_same_fault(earlier, fault) for earlier in self._faults):
                return
            self._reductions_left = MAX_REDUCTIONS
        self._failing.append(fault)
        raise _Failed


def reason_without_numbers(verdict: Verdict) -> str:
    """Returns the outcome and reason of a verdict, without numbers, so that equal reasons are counted together."""
    return f"{verdict.outcome}: {_NUMBER.sub('#', verdict.why)}"


def _is_same_fault(one: FuzzFault, other: FuzzFault) -> bool:
    """Returns whether two programs fail in the same way: with the same first wrong op, or the same kind of error."""
    if one.outcome != other.outcome:
        return False
    return one.at == other.at if one.outcome == "wrong" else one.why.split(":")[0] == other.why.split(":")[0]


def verdict_of(worker: RestartableProcess, script: str, plan: FuzzPlan) -> Verdict:
    """Returns the verdict on a script, which runs in the disposable process, because it may crash."""
    call = worker.ask((script, dict(plan.options), plan.extensions, plan.dynamic, plan.gradients), plan.timeout)
    if call.how == "answer":
        verdict: Verdict = call.value
        return verdict
    outcome: Outcome = call.how
    return Verdict(outcome, call.value)


@serves(RunBatches)
def serve(channel: Channel) -> None:
    """Runs the batches of a request, in a separate process."""
    request = channel.receive()
    checking.disable_guard_timing()
    for batch in run(request.plan, request.finished, Path(request.crash_log), request.crashing):
        channel.send(BatchDone(batch))
