"""Defines the plan and the results of a campaign of random programs, and runs a campaign in a separate process."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import digest
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support import files
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit
from buddy.compiler.tools.fuzz.restartable_process import read_crash_log

# The number of programs per batch: an interruption loses at most the running batch.
BATCH = 50
# The outcomes of a program. "compiled" and "eager" have right results, "eager" with some nodes in eager. "refused":
# TorchDynamo captures no graph, or PyTorch's own tracing causes the difference. "invalid": eager raises an error.
# "wrong", "error", "crash" and "timeout" are faults.
Outcome = Literal["compiled", "eager", "refused", "invalid", "wrong", "error", "crash", "timeout"]
FAULTS: tuple[Outcome, ...] = ("wrong", "error", "crash", "timeout")


# Counts by the name of their table, such as "operators", and the name of their row.
Histogram = dict[str, dict[str, int]]
# The files beside this one that determine which programs a seed generates.
_DRAWING_MODULES = ("operands.py", "statements.py", "writing.py")


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of a program, and the reason if it is not "compiled".

    `at` is the op of the first statement with a wrong value, "" if unknown. `compiled` counts the operators, dtypes
    and ranks of the graphs that reached the compiler.
    """

    outcome: Outcome
    why: str = ""
    at: str = ""
    compiled: Histogram = {}


class FuzzPlan(msgspec.Struct, frozen=True):
    """A plan of `count` programs, in batches of `BATCH`; the n-th batch, counted from 0, has the seed `seed + n`.

    The batches may be divided into shards: shard `(i, n)` is every n-th batch, from batch i on, counted from 1. A
    program has at most `statements` statements, and may take `timeout` seconds. `options` are those of the
    `torch.compile` backend. With `dynamic`, sizes are symbolic; with `gradients`, backward graphs are compiled too.
    `extensions` are Python files that are run first and may define op classes, lowerings and passes.
    """

    count: int
    seed: int = 0
    shard: tuple[int, int] = (1, 1)
    statements: int = 10
    timeout: float = 60.0
    options: Mapping[str, Any] = {}
    extensions: tuple[str, ...] = ()
    dynamic: bool = False
    gradients: bool = False

    def seeds(self) -> list[int]:
        """Returns the seeds of the batches of this shard."""
        shard_number, shard_count = self.shard
        return [
            self.seed + number
            for number in range(math.ceil(self.count / BATCH))
            if number % shard_count == shard_number - 1
        ]

    def size(self, seed: int) -> int:
        """Returns the number of programs in the batch of a seed: the last batch may have fewer than the others."""
        return min(BATCH, self.count - BATCH * (seed - self.seed))

    def conditions(self, seed: int) -> str:
        """Returns a short hash of all that determines a batch's programs and their compilation, except the seed.

        The code of the compiler is not included, because the compiler is under test. Raises `OSError`.
        """
        drawing = [(Path(__file__).parent / name).read_bytes() for name in _DRAWING_MODULES]
        extensions = [Path(path).read_bytes() for path in self.extensions]
        return digest(
            self.size(seed),
            self.statements,
            self.dynamic,
            self.gradients,
            sorted(self.options.items()),
            extensions,
            *drawing,
        )


class FuzzFault(msgspec.Struct, frozen=True):
    """The smallest program with one kind of failure, as a script; `why` and `at` are those of its verdict."""

    outcome: Outcome
    why: str
    script: str
    at: str = ""


class FuzzBatch(msgspec.Struct, frozen=True):
    """The results of one batch: the number of programs per outcome, and the smallest program for each kind of failure.

    `conditions` is `FuzzPlan.conditions` of its seed. `crashing` are the statements that crashed eager: its programs do
    not contain them. `drawn` counts the kinds of statements, what reached the compiler, and reasons of verdicts.
    """

    seed: int
    conditions: str
    outcomes: dict[str, int]
    seconds: float
    faults: tuple[FuzzFault, ...] = ()
    crashing: tuple[str, ...] = msgspec.field(default=(), name="deadly")  # the name in files of results
    drawn: Histogram = {}


def read_batches(path: Path, plan: FuzzPlan) -> dict[int, FuzzBatch]:
    """Returns the batches in a file of JSON lines, by seed, that `plan` would run in the same way. Raises `OSError`."""
    batches = files.read_json_lines(path, FuzzBatch)
    return {b.seed: b for b in batches if b.seed in plan.seeds() and b.conditions == plan.conditions(b.seed)}


def total(batches: Collection[FuzzBatch]) -> Counter[str]:
    """Returns the number of programs per outcome over all batches."""
    outcomes: Counter[str] = Counter()
    for batch in batches:
        outcomes.update(batch.outcomes)
    return outcomes


def merge_histograms(histograms: Iterable[Histogram]) -> Histogram:
    """Returns the sums of the counts of several histograms, the most frequent first in each table."""
    sums: dict[str, Counter[str]] = {}
    for histogram in histograms:
        for table, counts in histogram.items():
            sums.setdefault(table, Counter()).update(counts)
    return {table: dict(counts.most_common()) for table, counts in sums.items()}


class RunBatches(Message, frozen=True):
    """Run the batches of `plan` except for those whose seeds are in `finished`; answered by a `BatchDone` for each.

    `crash_log` is the path of the file that records the running statement. `crashing` maps the seed of a batch to the
    statements that crashed eager; the programs of the batch will not contain them.
    """

    plan: FuzzPlan
    crash_log: str
    finished: Collection[int]
    crashing: Mapping[int, Collection[str]]


class BatchDone(Message, frozen=True):
    """The results of a batch that has been run."""

    batch: FuzzBatch


# The last line of the campaign's log if the package is not installed.
HYPOTHESIS_MISSING = "No module named 'hypothesis'"


class CampaignError(BuddyError):
    """The process of a campaign could not start, or exited; the text is its last output."""


def run(plan: FuzzPlan, finished: Collection[int] = ()) -> Iterator[FuzzBatch]:
    """Yields the batches of `plan` when they are done, except for those with `finished` seeds. Raises `CampaignError`.

    If a statement crashes eager, and with it the process, its batch is started again without the statement.
    """
    finished_seeds, crashing = set(finished), dict[int, list[str]]()
    with tempfile.TemporaryDirectory(prefix="buddy-fuzz-") as folder:
        crash_log, log = Path(folder, "statement"), Path(folder, "log")
        while True:
            code = yield from _run_process(plan, crash_log, log, finished_seeds, crashing)
            batch_seed, _, statement = read_crash_log(crash_log).partition(" ")
            was_killed = code < 0  # by a signal
            if not was_killed or not statement or statement in crashing.get(int(batch_seed), ()):
                break
            crashing.setdefault(int(batch_seed), []).append(statement)
            crash_log.unlink()
        if code:
            lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise CampaignError(lines[-1] if lines else f"its process ended with {describe_exit(code)}")


def _run_process(
    plan: FuzzPlan, crash_log: Path, log: Path, finished_seeds: set[int], crashing: Mapping[int, Collection[str]]
) -> Generator[FuzzBatch, None, int]:
    """Yields the batches of one process, and adds their seeds to `finished_seeds`; returns its exit status."""
    # A separate cache, because cached artifacts must not affect a campaign. All files of the process are in the folder
    # of the log, which is removed even if the process is killed.
    environment = {"BUDDY_CACHE": str(log.parent), "TMPDIR": str(log.parent), "OMP_NUM_THREADS": "1"}
    with open(log, "wb") as log_file:
        process = BlockingWorker("buddy.compiler.tools.fuzz.campaign:serve", BatchDone, log_file, environment)
    try:
        with contextlib.suppress(BrokenPipeError):
            process.send(RunBatches(plan, str(crash_log), sorted(finished_seeds), crashing))
        while (message := process.receive()) is not None:
            finished_seeds.add(message.batch.seed)
            yield message.batch
        return process.wait()
    finally:
        process.end()
