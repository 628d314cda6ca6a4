"""Whether the verdicts of `buddy-tui run` are right: no false alarm on models, and no planted fault called right.

Models are compiled as they are, in float32 and in bfloat16, and have to be called right. Then small faults are planted
in the captured graphs of some of them, while the eager program stays as it is, and have to be called wrong.

    python -m tests.reliability verdicts --output verdicts.jsonl        # goes on where it was interrupted
    python -m tests.reliability.verdicts verdicts.jsonl                 # the results by kinds of faults
    python -m tests.reliability.verdicts --only "ViT, 2 layers"         # the cases of one model, or one by its number
"""

from __future__ import annotations

import argparse
import logging
import math
import multiprocessing
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import lru_cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from buddy.compiler.frontend.capture import capture
from buddy.compiler.protocol import OutputReport
from buddy.compiler.support import files
from buddy.compiler.support.processes.lifetime import describe_exit
from tests.reliability import verdict_faults
from tests.reliability.campaign import Attempt, Batch, Campaign, Fault, Note, Tried
from tests.reliability.planting import Planted, Subject, subjects_of
from tests.reliability.verdict_models import DTYPES, models

RIGHT, FALSE_ALARM, FOUND, MISSED = "right", "false alarm", "found", "missed"
# A fault that moves all results by less than the roundings of correct runs do, measured in double precision.
HIDDEN = "below roundings"
# Seconds for a case: the largest model takes minutes where others use the machine, too.
PATIENCE = 3600.0


class Case(NamedTuple):
    """A model in an element type, as it is or with a fault planted."""

    model: str
    dtype: str
    fault: Planted | None = None

    @property
    def kind(self) -> str:
        return self.fault.kind if self.fault else "models as they are"

    def __str__(self) -> str:
        return f"{self.model}, {self.dtype}: {self.fault.name if self.fault else 'as it is'}"


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """All cases, by number: those of one model and type follow each other, and the largest model comes last."""
    faults = [Case(case.model, dtype, case.fault) for case in verdict_faults.cases() for dtype in case.dtypes]
    found = [*(Case(name, dtype) for name in models() for dtype in DTYPES), *faults]
    order = {name: number for number, name in enumerate(models())}
    return tuple(sorted(found, key=lambda case: (order[case.model], case.dtype)))


def tried(case: Case, subjects: Sequence[Subject]) -> Note:
    """What `buddy-tui run` says of a case, whose graphs `subjects` are, in this process."""
    reports = [report for subject in subjects for report in subject.run(case.fault).outputs]
    wrong = [report for report in reports if report.verdict != "ok"]
    said = "; ".join(map(_in_words, wrong or reports))
    if case.fault is None:
        outcome = RIGHT if reports and not wrong else FALSE_ALARM
    elif wrong or not reports:
        outcome = FOUND
    else:
        effects = [effect for subject in subjects for effect in subject.effects(case.fault)]
        outcome = HIDDEN if effects and max(map(max, effects)) <= 1.0 else MISSED
        said += "; the fault is " + ", ".join(f"{most:.2g} (rms {rms:.2g})" for most, rms in effects) + " of roundings"
    return Note(0, outcome, said, (case.kind, case.dtype), str(case))


def _in_words(report: OutputReport) -> str:
    infinite = "an element is infinite or NaN on one side"
    error = f"{report.max_abs:.2e}" if math.isfinite(report.max_abs) else infinite
    spread = f" of {report.spread:.2e}" if report.spread >= 0 else ""
    return f"{report.name} {report.dtype} {report.verdict}: {error}{spread}"


class Worker:
    """A forked process for the cases of one model in one type, which may die of any: it is captured once."""

    def __init__(self, model: str, dtype: str) -> None:
        self.serves = model, dtype
        self._pipe, theirs = multiprocessing.Pipe()
        self._process = multiprocessing.get_context("fork").Process(
            target=_serve, args=(model, dtype, theirs, self._pipe)
        )
        self._process.start()
        theirs.close()

    def tried(self, case: Case, number: int, seconds: float = PATIENCE) -> Note:
        """Returns the result of a case; `is_alive` tells whether the process can take another."""
        try:
            self._pipe.send(number)
            found = self._pipe.recv() if self._pipe.poll(seconds) else f"there was no result in {seconds:g} s"
        except (EOFError, OSError):
            self._process.join()
            found = describe_exit(self._process.exitcode or 0)
        if isinstance(found, str):
            self.close()
            return Note(number, "broken off", found, (case.kind, case.dtype), str(case))
        return Note(number, found.outcome, found.why, found.marks, found.what)

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def close(self) -> None:
        self._process.kill()
        self._process.join()


def _serve(model: str, dtype: str, pipe: Connection, other: Connection) -> None:
    other.close()
    subjects: list[Subject] = []
    while True:
        try:
            case = cases()[pipe.recv()]
        except EOFError:
            return
        try:
            subjects = subjects or subjects_of(models()[model].program(dtype))
            pipe.send(tried(case, subjects))
        except Exception as error:
            pipe.send(f"{type(error).__name__}: {error}"[:1000])
            return


class Workers:
    """One worker at a time, as long as cases are of its model and type."""

    def __init__(self) -> None:
        self._worker: Worker | None = None

    def tried(self, number: int) -> Note:
        case = cases()[number]
        worker = self._worker
        if worker is None or worker.serves != case[:2] or not worker.is_alive:
            self.close()
            worker = self._worker = Worker(case.model, case.dtype)
        return worker.tried(case, number)

    def attempt(self, seed: int, count: int) -> Tried:
        """The cases from number `seed` on: what has no verdict as it should have is a fault."""
        notes = [self.tried(number) for number in range(seed, min(seed + count, len(cases())))]
        faults = tuple(Fault(n.outcome, f"{n.what}: {n.why}", f"--only {n.number}") for n in notes if _is_fault(n))
        return Tried(dict(Counter(note.outcome for note in notes)), faults, notes=tuple(notes))

    def close(self) -> None:
        if self._worker is not None:
            self._worker.close()
        self._worker = None


def _is_fault(note: Note) -> bool:
    return note.outcome not in (RIGHT, FOUND, HIDDEN)


@contextmanager
def quiet() -> Iterator[None]:
    """One thread, so that this process can be forked, what captures need imported, and no words of libraries."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    logging.getLogger("transformers").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases()
        capture(torch.relu, (torch.ones(2),))
        try:
            yield
        finally:
            torch.set_num_threads(threads)


@contextmanager
def _trial() -> Iterator[Attempt]:
    with quiet(), closing(Workers()) as workers:
        yield workers.attempt


CAMPAIGN = Campaign(
    "verdicts",
    "models called right, and planted faults called wrong",
    len(cases()),
    1,
    _trial,
    conditions=f"1, {len(cases())} cases",
)


# ---- reports ---------------------------------------------------------------------------------------------------------


def table(batches: Sequence[Batch]) -> list[str]:
    """For each kind of fault, and for models as they are, how many cases were called what they are."""
    counts: defaultdict[str, Counter[tuple[str, bool]]] = defaultdict(Counter)
    for batch in batches:
        for note in batch.tried.notes:
            kind, dtype = note.marks
            for row in (kind, *(() if note.outcome in (RIGHT, FALSE_ALARM) else ("**all faults**",))):
                counts[row][dtype, not _is_fault(note)] += 1
    lines = ["| | " + " | ".join(DTYPES) + " |", "|---|" + "---:|" * len(DTYPES)]
    for row in sorted(counts, key=lambda name: (name.startswith("**"), name)):
        found = counts[row]
        cells = [f"{found[dtype, True]} of {found[dtype, True] + found[dtype, False]}" for dtype in DTYPES]
        lines.append(f"| {row} | " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, help="the file of a campaign")
    parser.add_argument("--only", metavar="CASE", help="the cases of a model, or a case by its number")
    options = parser.parse_args()
    if options.only is None:
        found = (
            {} if options.file is None else {batch.seed: batch for batch in files.read_json_lines(options.file, Batch)}
        )
        print("\n".join(table(list(found.values()))))
        return 0
    wanted = [(n, case) for n, case in enumerate(cases()) if options.only in (str(n), case.model)]
    if not wanted:
        parser.error(f"there is no model and no case {options.only!r}")
    faults = 0
    with quiet(), closing(Workers()) as workers:
        for number, _ in wanted:
            note = workers.tried(number)
            faults += _is_fault(note)
            print(f"{note.number} {note.outcome}: {note.what}: {note.why}", flush=True)
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
