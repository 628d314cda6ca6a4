"""Finds the first stage of a dump that shows a failure, by a binary search over its texts.

A dump may have no text of the whole module after a pass on functions. The user's `mlir-opt` then runs such passes again
from the last text without the failure, and prints the module after each pass.
"""

from __future__ import annotations

import asyncio
import dataclasses
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.importers.dumps.headers import MODULE
from buddy.compiler.importers.dumps.pipeline import DumpPipelineError, Pipeline, RerunStart, possible_pipelines
from buddy.compiler.importers.dumps.reading import DumpScan, read_text
from buddy.compiler.importers.dumps.records import ALL_STAGES, Dump, DumpStage
from buddy.compiler.mlir.mlir_tool import ToolError, find_tool
from buddy.compiler.protocol.dump_files import dump_format
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.plain_values import LANGUAGES
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.tools.dumps.rerun import execute_steps, unsafe_steps
from buddy.compiler.tools.reduce.failure import Failure, describe, execute, shows_failure, with_message

# Called with a text that says what is done now.
OnProgress = Callable[[str], object]


class BisectionError(BuddyError):
    """No stage can be found; the diagnostic says why."""


@dataclass
class Suspect:
    """A stage with its text, "" before it is read; `number` is that in the dump, `None` for a stage of a re-run."""

    stage: DumpStage
    text: str
    number: int | None


@dataclass
class FirstFailure:
    """The first text that shows `failure`, and the last text without it, `None` if the first text of all shows it.

    `passes` are the passes between the two texts: there is one, unless the dump has no texts between them. `notes` say
    why there are several.
    """

    failure: Failure
    first: Suspect
    last_good: Suspect | None
    passes: tuple[str, ...]
    tests: int
    notes: tuple[str, ...] = ()

    def lines(self) -> list[str]:
        """Returns the finding in sentences."""
        what = describe(self.failure)
        if self.last_good is None:
            lines = [f"{_position_text(self.first)} shows it already: {what}; the dump has no earlier text"]
        else:
            names = ", ".join(self.passes)
            first, last_good = _position_text(self.first), _position_text(self.last_good)
            lines = [f"{names}: {what} from {first} on, not after {last_good}"]
        return [*lines, f"{self.tests} tests", *(f"note: {note}" for note in self.notes)]

    def texts(self) -> list[tuple[str, str]]:
        """Returns the names of files for the texts before and after, with the texts."""
        suffix = LANGUAGES[self.first.stage.language].suffix
        texts = [(f"after{suffix}", self.first.text)]
        return texts if self.last_good is None else [(f"before{suffix}", self.last_good.text), *texts]

    def summary(self) -> dict[str, object]:
        """Returns the finding as plain values."""
        good = self.last_good
        return {
            "failure": describe(self.failure), "passes": list(self.passes), "stage": self.first.number,
            "name": self.first.stage.title, "ran_on": self.first.stage.ran_on,
            "run_again": self.first.number is None, "last_good_stage": good.number if good is not None else None,
            "tests": self.tests, "notes": list(self.notes),
        }  # fmt: skip


def _position_text(suspect: Suspect) -> str:
    stage = suspect.stage
    on = f" on {stage.ran_on}" if stage.ran_on not in ("", MODULE) else ""
    return f"{stage.title}{on} ({'run again' if suspect.number is None else f'stage {suspect.number}'})"


def read_dump(path: Path, on_progress: OnProgress) -> Dump:
    """Indexes the dump at `path`. Raises `BisectionError`."""
    try:
        text_format = dump_format(path)
        if text_format is None:
            raise BisectionError(f"{path} is not a dump of another compiler")
        scan = DumpScan(path, text_format)
        for _ in scan.index():
            on_progress(f"indexing {path.name}: {len(scan.dump.stages):,} stages")
    except OSError as error:
        raise BisectionError(f"{path} cannot be read: {error.strerror or error}") from error
    return scan.dump


def stages_to_test(dump: Dump, graph: str) -> list[int]:
    """Returns the numbers of the stages of a graph of the dump; "" stands for the module, or its only graph.

    Raises `BisectionError` for an unknown graph, or if there are several and none is of the module.
    """
    names = [name for name in dump.graph_names if name != ALL_STAGES]
    if not names:
        raise BisectionError(f"{dump.path} has no stages")
    chosen = graph or (MODULE if MODULE in names else names[0] if len(names) == 1 else "")
    if chosen not in names:
        problem = f"unknown graph {graph!r}" if graph else "the dump has several graphs and none of the whole module"
        raise BisectionError(problem, str(dump.path), f"choose one with --graph: {', '.join(names)}")
    return [number for number, stage in enumerate(dump.stages) if stage.anchor == chosen]


class StageBisection:
    """The search for the first stage of a graph that shows `failure`."""

    def __init__(self, dump: Dump, failure: Failure, on_progress: OnProgress) -> None:
        self._dump, self._failure, self._on_progress = dump, failure, on_progress
        # Whether a text that has been tested shows the failure, by the digest of its stage.
        self._results_by_digest: dict[str, bool] = {}

    def run(self, numbers: Sequence[int]) -> FirstFailure:
        """Searches these stages. Raises `BisectionError`, and `OSError` if the command cannot start."""
        with tempfile.TemporaryDirectory(prefix="buddy-bisect-") as folder:
            suspects = [self._make_suspect(number) for number in numbers]
            self._store_failure_message(suspects[-1], Path(folder))
            first = self._find_first(suspects, Path(folder))
            if not first:
                return self._make_finding(suspects[0], None, ())
            return self._search_between(suspects[first - 1], suspects[first], Path(folder))

    def _make_suspect(self, number: int) -> Suspect:
        return Suspect(self._dump.stages[number], "", number)

    def _store_failure_message(self, last: Suspect, folder: Path) -> None:
        """Runs the command on the last text; from then on, only a failure with the same message counts.

        Raises `BisectionError` if that text does not show the failure.
        """
        path = self._write_text(last, folder)
        result = execute(self._failure, str(path))
        if not shows_failure(self._failure, result):
            what = f"the last text does not show the failure: the command {result.describe()}"
            todo = "check the command, or choose another graph with --graph"
            raise BisectionError(what, _position_text(last), todo, result.output)
        self._failure = with_message(self._failure, result)
        self._results_by_digest[last.stage.digest] = True

    def _find_first(self, suspects: Sequence[Suspect], folder: Path) -> int:
        """Returns the index of the first suspect that shows the failure, by bisection; the last one must show it."""
        low, high = -1, len(suspects) - 1
        while high - low > 1:
            # The first text is tested at once: if it shows the failure, no pass of the dump is the cause.
            middle = 0 if low < 0 and high == len(suspects) - 1 else (low + high) // 2
            tests_left = (high - low).bit_length()
            self._on_progress(f"testing {_position_text(suspects[middle])}, about {tests_left} tests left")
            if self._shows_failure(suspects[middle], folder):
                high = middle
            else:
                low = middle
        return high

    def _shows_failure(self, suspect: Suspect, folder: Path) -> bool:
        digest = suspect.stage.digest
        if digest not in self._results_by_digest:
            self._results_by_digest[digest] = shows_failure(
                self._failure, execute(self._failure, str(self._write_text(suspect, folder)))
            )
        return self._results_by_digest[digest]

    def _write_text(self, suspect: Suspect, folder: Path) -> Path:
        """Writes the text of a stage to a file, and returns its path."""
        path = folder / f"stage{LANGUAGES[suspect.stage.language].suffix}"
        suspect.text = suspect.text or read_text(self._dump, suspect.stage)
        path.write_text(suspect.text, encoding="utf-8")
        return path

    # ---- passes without a text of the module ---------------------------------------------------------------------

    def _search_between(self, good: Suspect, bad: Suspect, folder: Path) -> FirstFailure:
        """Returns the finding, from the passes between two texts, which are run again if there are several."""
        passes: tuple[str, ...] = (bad.stage.title,)
        try:
            pipeline, start, end = self._steps_between(good, bad)
        except DumpPipelineError:
            return self._make_finding(bad, good, passes)
        if end - start.step <= 0:
            return self._make_finding(bad, good, passes)
        passes = tuple(step.title for step in pipeline.steps[start.step : end + 1])
        try:
            suspects = asyncio.run(self._run_again(pipeline, start, end))
        except (ToolError, OSError, BuddyError) as error:
            notes = (f"the dump has no text of the whole module between these passes: {error}",)
            return self._make_finding(bad, good, passes, notes)
        matching = [suspect for suspect in suspects if suspect.stage.digest == bad.stage.digest]
        if not matching or not self._shows_failure(matching[-1], folder):
            notes = ("running these passes again gives another text than the dump: another mlir-opt?",)
            return self._make_finding(bad, good, passes, notes)
        suspects = [good, *suspects[: suspects.index(matching[-1]) + 1]]
        first = self._find_first(suspects, folder)
        notes = ("the passes between the texts of the dump were run again",)
        return self._make_finding(suspects[first], suspects[first - 1], (suspects[first].stage.title,), notes)

    def _steps_between(self, good: Suspect, bad: Suspect) -> tuple[Pipeline, RerunStart, int]:
        """Returns the pipeline, its first step after the good text, and the step of the bad one."""
        assert good.number is not None
        assert bad.number is not None
        pipeline = next(possible_pipelines(self._dump.stages))
        first, last = pipeline.step_of(good.number), pipeline.step_of(bad.number)
        of_functions = good.stage.anchor != MODULE or good.stage.ran_on not in ("", MODULE)
        if first is None or last is None or pipeline.is_before or of_functions:
            raise DumpPipelineError("the texts are those of single functions")
        return pipeline, RerunStart([good.number], first + 1), last

    async def _run_again(self, pipeline: Pipeline, start: RerunStart, end: int) -> list[Suspect]:
        """Returns the module after each pass of a run from `start` to step `end`."""
        mlir_opt = find_tool()
        if mlir_opt is None:
            raise ToolError("no mlir-opt was found to run them again")
        self._on_progress(f"running {end + 1 - start.step} passes again by {mlir_opt.name}")
        unsafe = sorted(step for step in unsafe_steps(pipeline, start.step) if step <= end)
        if unsafe:
            names = ", ".join(dict.fromkeys(pipeline.steps[step].title for step in unsafe))
            raise BisectionError(f"options of {names} name files, so these passes are not run again")
        left_out = range(end + 1, len(pipeline.steps))
        with scratch_folder("rerun") as folder:
            path = Path(folder) / "again"
            execution = await execute_steps(mlir_opt, self._dump, pipeline, start, left_out, path, whole=True)
            return [
                Suspect(dataclasses.replace(stage, origin="re-run"), read_text(execution.dump, stage), None)
                for stage in execution.dump.stages
            ]

    def _make_finding(
        self, first: Suspect, good: Suspect | None, passes: tuple[str, ...], notes: tuple[str, ...] = ()
    ) -> FirstFailure:
        for suspect in (first, good):
            if suspect is not None:
                suspect.text = suspect.text or read_text(self._dump, suspect.stage)
        return FirstFailure(self._failure, first, good, passes, len(self._results_by_digest), notes)
