"""The client of a campaign of random programs. Imports neither torch nor Hypothesis."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Collection, Generator, Iterator, Mapping
from pathlib import Path

from buddy.compiler.support.processes.interpreters import BlockingWorker
from buddy.compiler.support.processes.parent_death import describe_exit
from buddy.compiler.tools.fuzz.crash_log import read_crash_log
from buddy.compiler.tools.fuzz.plan import BatchDone, FuzzBatch, FuzzPlan, RunBatches

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
