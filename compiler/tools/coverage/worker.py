"""A forked process that checks pairs and may crash, and its supervisor in the parent."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from buddy.compiler.support.processes.parent_death import describe_exit, die_with_parent
from buddy.compiler.tools.coverage.check import check
from buddy.compiler.tools.coverage.plan import RIGHT, CallResult, CoveragePlan, OpDtypePair, PairResult, pair_result
from buddy.compiler.tools.coverage.samples import SampleCall, calls, database, torch_dtype

# Stands for a call's number in messages about the joint program of all calls of a pair.
JOINT = -1
# What C++ code prints before it aborts.
_LAST_WORDS = ("Assertion", "LLVM ERROR", "UNREACHABLE", "terminate called", "what():")


@dataclass(frozen=True)
class CoverageJob:
    """A pair to check. Calls in `known` are left out; with `joint`, all calls are tried in one program first."""

    pair: OpDtypePair
    samples: int
    options: Mapping[str, Any]
    joint: bool = True
    known: frozenset[int] = frozenset()
    backward: bool = False


def serve(pipe: Any, log: str, parent: int) -> None:
    """The forked process: receives jobs through `pipe` and sends back progress and findings.

    It exits with `parent`. A closed pipe would not be noticed, since a fork holds the parent's end of it too.
    """
    die_with_parent(parent)
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o600)
    os.dup2(target, 1)
    os.dup2(target, 2)
    faulthandler.disable()
    while True:
        try:
            job: CoverageJob = pipe.recv()
        except EOFError:
            return
        _examine(job, pipe)


def _examine(job: CoverageJob, pipe: Any) -> None:
    """Sends `("at", number, text)` before each program, `("found", number, finding)` after it, and `("end", why)`."""
    try:
        found = calls(job.pair, job.samples, job.backward)
    except Exception as error:
        pipe.send(("end", f"its samples cannot be made: {type(error).__name__}: {error}"[:300]))
        return
    if job.joint and len(found) > 1 and _together(job, found, pipe):
        pipe.send(("end", ""))
        return
    for number, call in enumerate(found):
        if number not in job.known:
            pipe.send(("at", number, call.text))
            pipe.send(("found", number, check(job.pair, [call], job.options, job.backward)))
    pipe.send(("end", "" if found else "eager answers none of its samples"))


def _together(job: CoverageJob, found: list[SampleCall], pipe: Any) -> bool:
    """Checks all calls as one program.

    Returns whether it was captured and right, so that no call has to be checked alone.

    If the program is partly in eager, this counts for each of its calls.
    """
    pipe.send(("at", JOINT, f"{len(found)} calls in one program"))
    finding = check(job.pair, found, job.options, job.backward)
    if finding.outcome not in RIGHT or finding.outcome == "refused":
        return False
    for number, call in enumerate(found):
        rest = {"call": call.text, "lowerings": {}, "reasons": ()}
        pipe.send(("found", number, msgspec.structs.replace(finding, **rest) if number else finding))
    return True


@dataclass
class _Progress:
    """The findings on a pair so far. `at` is the running program."""

    at: int | None = None
    text: str = ""
    found: dict[int, CallResult] = field(default_factory=dict)
    joint: bool = True


class CoverageWorker:
    """Checks one pair after another in a forked process, and forks another if that crashes or is silent too long.

    The process that owns this must not have used torch's thread pool: a forked child would hang in it.
    """

    def __init__(self, plan: CoveragePlan) -> None:
        self._plan = plan
        self._context = multiprocessing.get_context("fork")
        self._process: Any = None
        self._pipe: Any = None
        self._folder = tempfile.TemporaryDirectory(prefix="buddy-coverage-")
        self._log = os.path.join(self._folder.name, "stderr")

    def check(self, pair: OpDtypePair) -> PairResult:
        start, progress = time.perf_counter(), _Progress()
        options = {"preset": self._plan.preset, "dialect": self._plan.dialect, "threads": 1}
        backward, why = self._plan.backward, None
        while why is None:
            self._start()
            job = CoverageJob(pair, self._plan.samples, options, progress.joint, frozenset(progress.found), backward)
            try:
                self._pipe.send(job)
            except OSError:
                self._process.join()  # it exited between two jobs; another one takes this job
                continue
            why = self._follow(progress)
        seconds = time.perf_counter() - start
        if not progress.found:
            return PairResult(pair.op, pair.dtype, "skipped", skipped=why, seconds=round(seconds, 2), backward=backward)
        findings = [progress.found[number] for number in sorted(progress.found)]
        return pair_result(pair, findings, seconds, self._tolerance(pair), backward)

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
        self._folder.cleanup()

    def _tolerance(self, pair: OpDtypePair) -> str:
        from buddy.compiler.tools.coverage.agreement import tolerance_of

        tolerance, source = tolerance_of(database()[pair.op], torch_dtype(pair.dtype))
        return f"{tolerance} ({source})"

    def _start(self) -> None:
        if self._process is not None and self._process.is_alive():
            return
        self._pipe, theirs = self._context.Pipe()
        self._process = self._context.Process(target=serve, args=(theirs, self._log, os.getpid()), daemon=True)
        self._process.start()
        theirs.close()

    def _follow(self, progress: _Progress) -> str | None:
        """Handles the process's messages until the pair is done; returns why there is no call, or "".

        None if it crashed.
        """
        progress.at = None
        while True:
            if not self._pipe.poll(self._plan.timeout):
                return self._died(progress, "timeout", f"silent for {self._plan.timeout:g} s")
            try:
                word, *rest = self._pipe.recv()
            except (EOFError, ConnectionResetError):
                self._process.join()
                return self._died(progress, "crash", self._cause())
            if word == "at":
                progress.at, progress.text = rest
            elif word == "found":
                progress.found[rest[0]] = rest[1]
            else:
                return str(rest[0])

    def _died(self, progress: _Progress, outcome: Any, cause: str) -> str | None:
        self._process.kill()
        self._process.join()
        if progress.at is None:
            return f"its samples cannot be made: {cause}"
        progress.joint = False
        if progress.at == JOINT:
            return None
        progress.found[progress.at] = CallResult(progress.text, outcome, 0, (cause,))
        # The other calls would most likely take as long.
        return "" if outcome == "timeout" else None

    def _cause(self) -> str:
        code = self._process.exitcode
        text = describe_exit(code)
        with open(self._log, errors="replace") as log:
            said = [line.strip() for line in log if any(words in line for words in _LAST_WORDS)]
        return f"{text}: {said[-1][:300]}" if said else text
