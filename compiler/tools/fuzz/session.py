"""A campaign of random programs: its plan, its results, and the client that runs it."""

from __future__ import annotations

import contextlib
import math
import tempfile
from collections import Counter
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from buddy.compiler.protocol.recipe import digest
from buddy.compiler.protocol.worker_messages import Message
from buddy.compiler.support import files
from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.lifetime import describe_exit
from buddy.compiler.tools.fuzz.restartable_process import read_crash_log

# Programs per batch: an interruption loses at most the running batch.
BATCH = 50
# "compiled" and "eager" are right, the latter with some nodes in eager; "refused": TorchDynamo captured none of it;
# "invalid": eager rejects it; "wrong", "error", "crash" and "timeout" are faults.
Outcome = Literal["compiled", "eager", "refused", "invalid", "wrong", "error", "crash", "timeout"]
FAULTS: tuple[Outcome, ...] = ("wrong", "error", "crash", "timeout")


# Counts, by the name of a table and a name in it.
Histogram = dict[str, dict[str, int]]
# The modules that determine which programs a seed generates.
_DRAWING = ("operands.py", "statements.py", "writing.py")


class Verdict(msgspec.Struct, frozen=True):
    """The outcome of a program, and the reason if it is not the best outcome.

    `at` is the op of the first statement with a wrong value, for programs that return all values. `compiled` counts the
    operators, dtypes and ranks of the graphs that reached the compiler.
    """

    outcome: Outcome
    why: str = ""
    at: str = ""
    compiled: Histogram = {}


class FuzzPlan(msgspec.Struct, frozen=True):
    """A plan of `count` programs from `seed` on; `shard` is the part of them to run (from 1), and the number of parts.

    `options` are those of the `torch.compile` backend; with `dynamic` sizes are symbolic, and with `gradients` backward
    graphs are compiled too. `extensions` are Python files that are run first and may define op classes, lowerings and
    passes.
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
        """The seeds of the batches of this shard."""
        part, parts = self.shard
        return [self.seed + number for number in range(math.ceil(self.count / BATCH)) if number % parts == part - 1]

    def size(self, seed: int) -> int:
        """The number of programs in the batch of a seed: the last batch may have fewer than the others."""
        return min(BATCH, self.count - BATCH * (seed - self.seed))

    def conditions(self, seed: int) -> str:
        """A short hash of everything except the seed that determines the contents of a batch and its compilation.

        The code of the compiler is not included, because the compiler is under test. Raises `OSError`.
        """
        drawing = [(Path(__file__).parent / name).read_bytes() for name in _DRAWING]
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
    """The smallest program with one kind of failure, as a script; `at` is the field of its verdict."""

    outcome: Outcome
    why: str
    script: str
    at: str = ""


class FuzzBatch(msgspec.Struct, frozen=True):
    """The results of one batch: the number of programs per outcome, and a program for each kind of failure.

    `conditions` are those of its plan. `deadly` are the statements that crashed eager, which its programs do not
    contain. `drawn` counts the kinds of statements, what reached the compiler, and the reasons of other outcomes.
    """

    seed: int
    conditions: str
    outcomes: dict[str, int]
    seconds: float
    faults: tuple[FuzzFault, ...] = ()
    deadly: tuple[str, ...] = ()
    drawn: Histogram = {}


def read(path: Path, plan: FuzzPlan) -> dict[int, FuzzBatch]:
    """The batches with `plan`'s conditions in a file written by `json_lines.append`, by seed. Raises `OSError`."""
    found = files.read_json_lines(path, FuzzBatch)
    return {b.seed: b for b in found if b.seed in plan.seeds() and b.conditions == plan.conditions(b.seed)}


def total(batches: Collection[FuzzBatch]) -> Counter[str]:
    """The number of programs per outcome over all batches."""
    found: Counter[str] = Counter()
    for batch in batches:
        found.update(batch.outcomes)
    return found


def merged(histograms: Iterable[Histogram]) -> Histogram:
    """The sums of all counts of all tables, the most frequent first."""
    found: dict[str, Counter[str]] = {}
    for histogram in histograms:
        for table, counts in histogram.items():
            found.setdefault(table, Counter()).update(counts)
    return {table: dict(counts.most_common()) for table, counts in found.items()}


class RunBatches(Message, frozen=True):
    """Run the batches of `plan` except for those with `known` seeds; answered by a `BatchDone` for each.

    `heard` is the path of the file for the running statement; statements in `deadly`, by the seed of their batch, are
    left out.
    """

    plan: FuzzPlan
    heard: str
    known: Collection[int]
    deadly: Mapping[int, Collection[str]]


class BatchDone(Message, frozen=True):
    batch: FuzzBatch


MISSING = "No module named 'hypothesis'"


class CampaignError(Exception):
    """The process of a campaign could not start, or exited; the text is its last output."""


def run(plan: FuzzPlan, known: Collection[int] = ()) -> Iterator[FuzzBatch]:
    """Yields the batches of `plan` when they are done, except for those with `known` seeds. Raises `CampaignError`.

    If a statement crashes eager and the process, its batch restarts without it.
    """
    done, deadly = set(known), dict[int, list[str]]()
    with tempfile.TemporaryDirectory(prefix="buddy-fuzz-") as folder:
        heard, log = Path(folder, "statement"), Path(folder, "log")
        while True:
            code = yield from _process(plan, heard, log, done, deadly)
            number, _, statement = read_crash_log(heard).partition(" ")
            if code >= 0 or not statement or statement in deadly.get(int(number), ()):
                break
            deadly.setdefault(int(number), []).append(statement)
            heard.unlink()
        if code:
            said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
            raise CampaignError(said[-1] if said else f"it ended with {describe_exit(code)}")


def _process(
    plan: FuzzPlan, heard: Path, log: Path, done: set[int], deadly: Mapping[int, Collection[str]]
) -> Generator[FuzzBatch, None, int]:
    """Yields the batches of one process, which are added to `done`, and returns the process's exit status."""
    # A separate cache: cached artifacts must not affect a campaign, and its files are removed when it is killed.
    apart = {"BUDDY_CACHE": str(log.parent), "TMPDIR": str(log.parent), "OMP_NUM_THREADS": "1"}
    with open(log, "wb") as told:
        process = BlockingWorker("buddy.compiler.tools.fuzz.campaign:serve", BatchDone, told, apart)
    try:
        with contextlib.suppress(BrokenPipeError):
            process.send(RunBatches(plan, str(heard), sorted(done), deadly))
        while (found := process.receive()) is not None:
            done.add(found.batch.seed)
            yield found.batch
        return process.wait()
    finally:
        process.end()
