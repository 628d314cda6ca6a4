"""A campaign of random programs in batches, each with its own seed, so that it can be distributed and resumed.

Hypothesis draws the programs of a batch, and reduces failing ones until no statement can be left out.
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
    merged,
)
from buddy.compiler.tools.fuzz.writing import GeneratedProgram, scripts

# The statements that crashed eager, by the seed of their batch.
Deadly = Mapping[int, Collection[str]]
PHASES = (Phase.generate, Phase.shrink)
# Maximum number of reduced programs per failure; more rarely lead to a smaller program.
SMALLER = 250
# Maximum number of wrong programs per batch with distinct first wrong statements: one fault may affect many statements.
MOST_WRONG = 3
_NUMBER = re.compile(r"\b\d[\d.]*(?:e[+-]?\d+)?\b")


class _Failed(Exception):
    """A failing program, for Hypothesis, which searches for a smaller one with the same failure."""


def run(
    plan: FuzzPlan, known: Collection[int] = (), heard: Path | None = None, deadly: Deadly = MappingProxyType({})
) -> Iterator[FuzzBatch]:
    """Runs the batches of `plan` except for those with `known` seeds.

    While eager runs a statement, the file `heard` contains that statement and its batch; statements in `deadly` are
    left out of the programs of their batch.
    """
    words = CrashLog(heard)
    with RestartableProcess("buddy.compiler.tools.fuzz.checking", "check") as worker:
        _check(plan, worker)
        for number in plan.seeds():
            if number not in known:
                yield _Trial(plan, worker, number, words, tuple(deadly.get(number, ()))).batch()


def _check(plan: FuzzPlan, worker: RestartableProcess) -> None:
    """Exits this process for errors that every program would have: an unknown preset, a broken extension."""
    preset = plan.options.get("preset", "default")
    if preset not in presets():
        raise SystemExit(f"unknown preset {preset!r}; the presets are {', '.join(presets())}")
    if plan.extensions:
        ended = worker.ask(("", {}, plan.extensions), plan.timeout)
        if ended.how != "answer":
            raise SystemExit(f"an extension failed to load: {ended.value}")


class _Trial:
    """One running batch."""

    def __init__(
        self, plan: FuzzPlan, worker: RestartableProcess, number: int, heard: CrashLog, deadly: tuple[str, ...]
    ) -> None:
        self._plan, self._worker, self._number = plan, worker, number
        self._programs = scripts(plan.statements, lambda text: heard.record(text and f"{number} {text}"), deadly)
        self._deadly = deadly
        self._outcomes: Counter[str] = Counter()
        self._kinds: Counter[str] = Counter()
        self._reasons: Counter[str] = Counter()
        self._compiled: list[Histogram] = []
        self._faults: list[FuzzFault] = []
        # The failure that is being reduced, from large to small.
        self._failing: list[FuzzFault] = []
        self._smaller = 0

    def batch(self) -> FuzzBatch:
        start = time.perf_counter()
        size, tried = self._plan.size(self._number), -1
        while tried < self._outcomes.total() < size:
            tried = self._outcomes.total()
            self._faults += self._fault(f"{self._number}, from {tried}", size - tried)
        tables = {"statements": dict(self._kinds), "reasons": dict(self._reasons)}
        drawn = merged([tables, *self._compiled])
        seconds = round(time.perf_counter() - start, 2)
        conditions = self._plan.conditions(self._number)
        faults = tuple(self._faults)
        return FuzzBatch(self._number, conditions, dict(self._outcomes), seconds, faults, self._deadly, drawn)

    def _fault(self, name: str, most: int) -> list[FuzzFault]:
        """Tries up to `most` programs until one fails in a new way; returns the reduced program, if there is one."""
        chosen = settings(
            max_examples=most,
            deadline=None,
            database=None,
            phases=PHASES,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        self._failing.clear()
        with contextlib.suppress(_Failed, Flaky):  # the last failure is the smallest program
            seed(name)(chosen(given(self._programs)(self._try)))()
        return self._failing[-1:]

    def _try(self, drawn: GeneratedProgram) -> None:
        if self._failing:
            self._smaller -= 1
            if self._smaller < 0:
                return
        verdict = verdict_of(self._worker, drawn.script, self._plan)
        if not self._failing:
            self._outcomes[verdict.outcome] += 1
            self._kinds.update(drawn.kinds)
            self._reasons.update([reason(verdict)] if verdict.why else [])
            self._compiled.append(verdict.compiled)
        if verdict.outcome not in FAULTS:
            return
        found = FuzzFault(verdict.outcome, verdict.why, drawn.script, verdict.at)
        of_wrong = sum(fault.outcome == found.outcome == "wrong" for fault in self._faults)
        is_new = of_wrong < MOST_WRONG and not any(_is_same_fault(fault, found) for fault in self._faults)
        if _is_same_fault(self._failing[0], found) if self._failing else is_new:
            self._smaller = self._smaller if self._failing else SMALLER
            self._failing.append(found)
            raise _Failed


def reason(verdict: Verdict) -> str:
    """The reason of a verdict, with numbers removed so that equal reasons group together."""
    return f"{verdict.outcome}: {_NUMBER.sub('#', verdict.why)}"


def _is_same_fault(one: FuzzFault, other: FuzzFault) -> bool:
    """Whether two programs fail in the same way: from the same wrong statement on, or with the same error."""
    if one.outcome != other.outcome:
        return False
    return one.at == other.at if one.outcome == "wrong" else one.why.split(":")[0] == other.why.split(":")[0]


def verdict_of(worker: RestartableProcess, script: str, plan: FuzzPlan) -> Verdict:
    """The verdict on a script in the disposable process, which may crash."""
    ended = worker.ask((script, dict(plan.options), plan.extensions, plan.dynamic, plan.gradients), plan.timeout)
    if ended.how == "answer":
        found: Verdict = ended.value
        return found
    outcome: Outcome = ended.how
    return Verdict(outcome, ended.value)


@serves(RunBatches)
def serve(channel: Channel) -> None:
    """Runs the batches of a request, in a separate process."""
    order = channel.receive()
    checking.disable_guard_timing()
    for batch in run(order.plan, order.known, Path(order.heard), order.deadly):
        channel.send(BatchDone(batch))
