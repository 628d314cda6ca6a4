"""Checks pairs of an op and a dtype in a forked process, which may crash, and supervises it from the parent.

The parent is the warm process of a coverage run (`serve`), which imports torch, its operator database and MLIR once,
and forks workers. It receives the plan and sends the list of the plan's pairs; then it receives one pair after another
and sends the result of checking it.
"""

from __future__ import annotations

import runpy
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch

from buddy.compiler.mlir.bindings import PACKAGE, version
from buddy.compiler.ops import registries
from buddy.compiler.passes.pass_runner import own_passes
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support.processes.channel import Channel, serves
from buddy.compiler.support.processes.forks import ForkedWorker
from buddy.compiler.tools.coverage.check import check, tolerance_of
from buddy.compiler.tools.coverage.samples import (
    SampleCall,
    accepted_calls,
    core_ops,
    list_pairs,
    op_infos,
    torch_dtype,
)
from buddy.compiler.tools.coverage.session import (
    RIGHT_OUTCOMES,
    CallChecked,
    CallResult,
    CallStarted,
    CheckPair,
    CoverageJob,
    CoverageListing,
    CoveragePlan,
    JobDone,
    ListPairs,
    OpDtypePair,
    PairChecked,
    PairResult,
    PairsListed,
    make_pair_result,
)

# In messages, the number of the program that has all calls of a pair.
JOINT = -1


def _serve_jobs(channel: Channel) -> None:
    """Runs jobs in the fork until the channel closes."""
    while (job := channel.receive()) is not None:
        _run_job(job, channel.send)


def _run_job(job: CoverageJob, send: Callable[[Message], None]) -> None:
    """Checks the calls of a pair, jointly if possible, else one by one; sends the messages that `CoverageJob` names."""
    try:
        sample_calls = accepted_calls(job.pair, job.samples, job.backward)
    except Exception as error:
        send(JobDone(f"its samples cannot be made: {type(error).__name__}: {error}"[:300]))
        return
    if job.joint and len(sample_calls) > 1 and _check_jointly(job, sample_calls, send):
        send(JobDone())
        return
    for number, call in enumerate(sample_calls):
        if number not in job.finished:
            send(CallStarted(number, call.text))
            send(CallChecked(number, check(job.pair, [call], job.options, job.backward)))
    send(JobDone("" if sample_calls else "eager accepts none of its samples"))


def _check_jointly(job: CoverageJob, sample_calls: list[SampleCall], send: Callable[[Message], None]) -> bool:
    """Checks all calls as one program; if it is captured and right, sends a result for each call.

    Returns whether it did; if not, each call has to be checked alone. If any node of the program runs in
    eager, each call counts as eager.
    """
    send(CallStarted(JOINT, f"{len(sample_calls)} calls in one program"))
    finding = check(job.pair, sample_calls, job.options, job.backward)
    if finding.outcome not in RIGHT_OUTCOMES or finding.outcome == "refused":
        return False
    send(CallChecked(0, finding))
    for number, call in enumerate(sample_calls[1:], 1):
        # The first result has the lowerings and reasons of all calls.
        send(CallChecked(number, msgspec.structs.replace(finding, call=call.text, lowerings={}, reasons=())))
    return True


@dataclass
class _Progress:
    """The results for a pair so far, by number of the call, and the running call.

    `current_call` is the number of the running call, `JOINT` for all calls in one program, `None` while the samples are
    made; `text` describes the call. `joint` says whether to try all calls in one program first.
    """

    current_call: int | None = None
    text: str = ""
    results: dict[int, CallResult] = field(default_factory=dict)
    joint: bool = True


class CoverageWorker:
    """Checks one pair after another in a forked process, and forks again if the fork crashes or is silent too long.

    The parent process must not have used torch's thread pool: a forked child would hang in it.
    """

    def __init__(self, plan: CoveragePlan) -> None:
        self._plan = plan
        self._fork: ForkedWorker | None = None

    def check(self, pair: OpDtypePair) -> PairResult:
        """Returns the result of checking a pair, in as many forks as its crashes require."""
        start, progress = time.perf_counter(), _Progress()
        options = {"preset": self._plan.preset, "dialect": self._plan.dialect, "threads": 1}
        backward, skip_reason = self._plan.backward, None
        while skip_reason is None:
            fork = self._get_fork()
            job = CoverageJob(pair, self._plan.samples, options, progress.joint, frozenset(progress.results), backward)
            try:
                fork.send(job)
            except BrokenPipeError:
                self.close()  # the fork exited between two jobs: another fork takes this job
                continue
            skip_reason = self._receive_results(fork, progress)
        seconds = time.perf_counter() - start
        if not progress.results:
            return PairResult(
                pair.op, pair.dtype, "skipped", skipped=skip_reason, seconds=round(seconds, 2), backward=backward
            )
        findings = [progress.results[number] for number in sorted(progress.results)]
        return make_pair_result(pair, findings, seconds, self._tolerance_text(pair), backward)

    def close(self) -> None:
        if self._fork is not None:
            self._fork.end()
        self._fork = None

    def _tolerance_text(self, pair: OpDtypePair) -> str:
        tolerance, source = tolerance_of(op_infos()[pair.op], torch_dtype(pair.dtype))
        return f"{tolerance} ({source})"

    def _get_fork(self) -> ForkedWorker:
        if self._fork is None or not self._fork.alive:
            self.close()
            self._fork = ForkedWorker(_serve_jobs, CoverageJob, CallStarted | CallChecked | JobDone)
        return self._fork

    def _receive_results(self, fork: ForkedWorker, progress: _Progress) -> str | None:
        """Records the fork's messages in `progress` until the pair is done or the fork ends.

        Returns `None` if another fork has to check the remaining calls, else the reason why the pair has no call, "" if
        it has one.
        """
        progress.current_call = None
        while True:
            try:
                message = fork.receive(self._plan.timeout)
            except TimeoutError as error:
                return self._record_crash(progress, "timeout", str(error))
            if message is None:
                return self._record_crash(progress, "crash", fork.wait_for_cause())
            if isinstance(message, CallStarted):
                progress.current_call, progress.text = message.number, message.text
            elif isinstance(message, CallChecked):
                progress.results[message.number] = message.result
            else:
                return str(message.skipped)

    def _record_crash(self, progress: _Progress, outcome: Any, cause: str) -> str | None:
        """Records that the fork crashed or sent nothing for too long; returns what `_receive_results` does."""
        self.close()
        if progress.current_call is None:
            return f"its samples cannot be made: {cause}"
        progress.joint = False
        if progress.current_call == JOINT:
            return None
        progress.results[progress.current_call] = CallResult(progress.text, outcome, 0, (cause,))
        # After a timeout, the other calls are not checked: they would most likely time out too.
        return "" if outcome == "timeout" else None


# ---- the warm process ------------------------------------------------------------------------------------------------


@serves(ListPairs | CheckPair)
def serve(channel: Channel) -> None:
    """Answers one `ListPairs`, then any number of `CheckPair`, until the channel closes."""
    plan = channel.receive().plan
    _warm_up()
    for path in plan.extensions:
        runpy.run_path(path)
    versions = {"torch": str(torch.__version__), PACKAGE: version()}
    channel.send(PairsListed(CoverageListing(list_pairs(plan), core_ops(), versions)))
    worker = CoverageWorker(plan)
    try:
        while (request := channel.receive()) is not None:
            channel.send(PairChecked(worker.check(request.pair)))
    finally:
        worker.close()


def _warm_up() -> None:
    """Loads what workers need, without running ops: torch's thread pool, once started, hangs in forked processes."""
    torch.set_num_threads(1)
    op_infos()
    registries()
    own_passes()
