"""A campaign of random programs: batch by batch, each from a seed of its own, so that it can be shared out and resumed.

Hypothesis draws the programs of a batch and, where one fails, makes it smaller until nothing can be left out.

`python -m buddy.compiler.fuzzing.campaign PARENT PLAN KNOWN`, the latter two JSON, writes a line of JSON to stdout for
each batch, and ends with the process PARENT.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections import Counter
from collections.abc import Collection, Iterator

import msgspec
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import Flaky

from buddy.compiler.engine.lifeline import die_with_parent
from buddy.compiler.fuzzing.disposable import Disposable
from buddy.compiler.fuzzing.plan import BATCH, FAULTS, Batch, Outcome, Plan, Verdict
from buddy.compiler.fuzzing.writing import scripts
from buddy.compiler.presets import presets

PHASES = (Phase.generate, Phase.shrink)


class _Fault(Exception):
    """A program that failed, for Hypothesis, which looks for a smaller one that fails alike."""


def run(plan: Plan, known: Collection[int] = ()) -> Iterator[Batch]:
    """Try the batches of `plan` but for those whose seeds are `known`."""
    with Disposable("buddy.compiler.fuzzing.checking", "check") as worker:
        _check(plan, worker)
        for number in plan.seeds():
            if number not in known:
                yield _Trial(plan, worker, number).batch()


def _check(plan: Plan, worker: Disposable) -> None:
    """Ends this process over what every program would fail of: a preset that there is none of, a broken extension."""
    preset = plan.options.get("preset", "default")
    if preset not in presets():
        raise SystemExit(f"no preset {preset!r}; there are {', '.join(presets())}")
    if plan.extensions:
        ended = worker.ask(("", {}, plan.extensions), plan.timeout)
        if ended.how != "answer":
            raise SystemExit(f"an extension cannot be run: {ended.value}")


class _Trial:
    """One batch under way."""

    def __init__(self, plan: Plan, worker: Disposable, number: int) -> None:
        self._plan, self._worker, self._number = plan, worker, number
        self._outcomes: Counter[str] = Counter()
        self._found: tuple[str, Verdict] | None = None

    def batch(self) -> Batch:
        start = time.perf_counter()
        fewer = min(BATCH, self._plan.count)
        test = given(scripts(self._plan.statements))(self._try)
        chosen = settings(
            max_examples=fewer,
            deadline=None,
            database=None,
            phases=PHASES,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        with contextlib.suppress(_Fault, Flaky):  # what failed last is the least program, and is kept
            seed(self._number)(chosen(test))()
        seconds = round(time.perf_counter() - start, 2)
        if self._found is None:
            return Batch(self._number, dict(self._outcomes), seconds)
        script, verdict = self._found
        return Batch(self._number, dict(self._outcomes), seconds, verdict.outcome, verdict.why, script)

    def _try(self, script: str) -> None:
        verdict = verdict_of(self._worker, script, self._plan)
        if self._found is None:
            self._outcomes[verdict.outcome] += 1
        if verdict.outcome in FAULTS and (self._found is None or _alike(self._found[1], verdict)):
            self._found = (script, verdict)
            raise _Fault


def _alike(one: Verdict, other: Verdict) -> bool:
    """Whether a smaller program fails as the first one did, rather than in some other way."""
    return one.outcome == other.outcome and one.why.split(":")[0] == other.why.split(":")[0]


def verdict_of(worker: Disposable, script: str, plan: Plan) -> Verdict:
    """What became of a script in the disposable process, which may have died of it."""
    ended = worker.ask((script, dict(plan.options), plan.extensions), plan.timeout)
    if ended.how == "answer":
        found: Verdict = ended.value
        return found
    outcome: Outcome = ended.how
    return Verdict(outcome, ended.value)


def main(words: list[str]) -> int:
    die_with_parent(int(words[0]))
    plan, known = msgspec.json.decode(words[1], type=Plan), msgspec.json.decode(words[2], type=list[int])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for batch in run(plan, known):
        print(msgspec.json.encode(batch).decode(), file=answers, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
