"""Runs the steps of a dump again with the user's `mlir-opt`, except for the steps that the user skips.

A re-run starts from the last text of the whole module before the first skipped step. All steps are run again once
without skipping any: if a text differs from the dump, the dump comes from another compiler, or from options that its
headers do not contain, and a note reports this.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from buddy.compiler.importers.dumps.pipeline import (
    MODULE_OP,
    DumpPipelineError,
    Pipeline,
    RerunStart,
    StepNumbers,
    possible_pipelines,
    shows_module,
)
from buddy.compiler.importers.dumps.reading import DumpScan, read_text
from buddy.compiler.importers.dumps.records import Dump, DumpStage
from buddy.compiler.mlir.mlir_tool import TOOL_VARIABLE, MlirTool, ToolError, find_tool
from buddy.compiler.protocol import Diagnostic
from buddy.compiler.protocol.errors import BuddyError
from buddy.compiler.protocol.recipe import file_option
from buddy.compiler.support.files import scratch_folder
from buddy.compiler.support.processes.lifetime import describe_exit, kill_group, start_with_pipe

# The seconds between two checks whether the process has ended, and the maximum size of the diagnostics that are shown.
_POLL_SECONDS = 0.05
_MAX_MESSAGES_BYTES = 64 << 10
_ERROR = re.compile(r"error: (.*)")
# A diagnostic of MLIR in a log: it ends at the next header.
_DIAGNOSTIC = re.compile(rb"^[^\n]*?(?:^|[:\s\"'>])(?:error|warning|note|remark): ")
# A location, with up to three more levels of parentheses, and the definition of an alias of one.
_LOCATION = re.compile(
    r'^#loc.*\n| ?\bloc\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\((?:[^()"]|"[^"]*"|\([^()]*\))*\))*\))*\)', re.MULTILINE
)
# The start of the line before each printed module.
_HEADER_START = b"// -----// IR Dump "
# Called with a text that says what is done now.
OnProgress = Callable[[str], object]


class RerunError(BuddyError):
    """The steps cannot be run again; the diagnostic says why."""


@dataclass
class Rerun:
    """The stages of a dump without the skipped steps, and notes for the user.

    `dump` has the stages of the original dump up to the first step that differs, followed by those of the re-run, whose
    log is in `folder`. If `mlir-opt` failed, `problem` is the reason, and the last stage is that of the failed step.
    """

    dump: Dump
    notes: tuple[str, ...]
    problem: Diagnostic | None
    folder: tempfile.TemporaryDirectory[str]


@dataclass
class RerunExecution:
    """A run of `mlir-opt`: the stages in its log, its diagnostics, and its exit code."""

    dump: Dump
    messages: str
    code: int


@dataclass
class _BaseRun:
    """A pipeline of the dump, and the result of running all of its steps from `start` on again.

    `difference` is the first step whose text then differs from the dump, or `None`.
    """

    pipeline: Pipeline
    start: RerunStart
    difference: int | None


class Rerunner:
    """Runs steps of one dump again; caches the results of re-runs without skipped steps.

    `count` is the number of stages of the dump at the start.
    """

    def __init__(self, dump: Dump) -> None:
        self._dump, self.count = dump, len(dump.stages)
        self._base_runs: dict[tuple[str, int, tuple[int, ...]], _BaseRun] = {}

    async def run(self, skipped: Collection[int], on_progress: OnProgress) -> Rerun:
        """Runs the steps after the first skipped one again. Raises `RerunError`.

        `skipped` are the numbers of steps, each that of its first stage in the dump.
        """
        mlir_opt = _find_mlir_opt()
        folder = scratch_folder("rerun")
        try:
            return await self._run(mlir_opt, skipped, Path(folder.name), folder, on_progress)
        except DumpPipelineError as error:
            what = f"the steps cannot be run again: {error}"
            raise RerunError(
                what, str(self._dump.path), "print with --mlir-print-ir-module-scope, or choose a later step"
            ) from error
        except OSError as error:
            what = f"{mlir_opt.path} cannot be run: {error.strerror or error}"
            raise RerunError(what, str(self._dump.path), f"set {TOOL_VARIABLE} to the path of your mlir-opt") from error

    async def _run(
        self, mlir_opt: MlirTool, skipped: Collection[int], path: Path,
        folder: tempfile.TemporaryDirectory[str], on_progress: OnProgress,
    ) -> Rerun:  # fmt: skip
        base = await self._choose_base_run(mlir_opt, skipped, path, on_progress)
        pipeline, start = base.pipeline, base.start
        user_numbers = {
            index: number for number in skipped if (index := _step_of(pipeline, self._dump, number)) is not None
        }
        unsafe = unsafe_steps(pipeline, start.step)
        left_out = {*user_numbers, *unsafe}
        count = len([index for index in range(start.step, len(pipeline.steps)) if index not in left_out])
        on_progress(f"running {count} steps again by {mlir_opt.name}")
        execution = await execute_steps(mlir_opt, self._dump, pipeline, start, left_out, path / "again")
        if not execution.dump.stages and execution.code:
            raise RerunError(_input_problem(mlir_opt, self._dump, start, execution))
        first = min(left_out if base.difference is None else (*left_out, base.difference))
        combined = _combine_stages(
            self._dump, pipeline, start, user_numbers, left_out, execution.dump, pipeline.steps[first].group
        )
        notes = tuple(_describe_run(mlir_opt, base, count, unsafe))
        return Rerun(combined, notes, _failure_diagnostic(mlir_opt, execution), folder)

    async def _choose_base_run(
        self, mlir_opt: MlirTool, skipped: Collection[int], path: Path, on_progress: OnProgress
    ) -> _BaseRun:
        """Returns the pipeline whose re-run agrees with the dump for the most steps."""
        best: _BaseRun | None = None
        for pipeline in possible_pipelines(self._dump.stages):
            steps = [step for number in skipped if (step := _step_of(pipeline, self._dump, number)) is not None]
            if not steps:
                continue
            start = pipeline.start_before(min(steps))
            key = mlir_opt.identity, start.step, (*start.stages, -1, *sorted(pipeline.inner))
            base = self._base_runs.get(key)
            if base is None:
                on_progress(f"checking that {mlir_opt.name} gives the texts of the dump")
                unsafe = unsafe_steps(pipeline, start.step)
                execution = await execute_steps(
                    mlir_opt, self._dump, pipeline, start, unsafe, path / f"base{len(self._base_runs)}"
                )
                if not execution.dump.stages and execution.code:
                    raise RerunError(_input_problem(mlir_opt, self._dump, start, execution))
                base = _BaseRun(
                    pipeline, start, await asyncio.to_thread(self._first_difference, pipeline, start, unsafe, execution)
                )
                self._base_runs[key] = base
            if best is None or _agreement(base) > _agreement(best):
                best = base
            if best.difference is None:
                break
        if best is None:
            titles = ", ".join(self._dump.stages[number].title for number in skipped if number < len(self._dump.stages))
            raise DumpPipelineError(f"{titles} is not a step of the pipeline itself, but of a pass that runs it")
        return best

    def _first_difference(
        self, pipeline: Pipeline, start: RerunStart, skipped: Collection[int], execution: RerunExecution
    ) -> int | None:
        """Returns the first step whose texts in a re-run differ from those of the dump, or `None`."""

        def have_equal_texts(recorded: DumpStage, again: DumpStage) -> bool:
            if recorded.digest == again.digest:
                return True
            text = read_text(self._dump, recorded)
            # MLIR does not print the locations of all block arguments, so they are lost.
            return " loc(" in text and without_locations(text) == without_locations(read_text(execution.dump, again))

        return pipeline.first_difference(execution.dump.stages, start.step, skipped, have_equal_texts)


def without_locations(text: str) -> str:
    """Returns printed MLIR without its locations."""
    return _LOCATION.sub("", text)


def _agreement(base: _BaseRun) -> float:
    """Returns the number of the first stage of the dump in which a re-run differs, infinite if none differs."""
    return float("inf") if base.difference is None else base.pipeline.steps[base.difference].stages[0]


def _step_of(pipeline: Pipeline, dump: Dump, number: int) -> int | None:
    return pipeline.step_of(number) if number < len(dump.stages) else None


def unsafe_steps(pipeline: Pipeline, first: int) -> set[int]:
    """Returns the steps whose options name files: a dump may come from anyone, and its passes could overwrite files."""
    return {index for index in range(first, len(pipeline.steps)) if file_option(pipeline.steps[index].spelling)}


def _find_mlir_opt() -> MlirTool:
    todo = f"set {TOOL_VARIABLE} to the path of the mlir-opt that made the dump, or put mlir-opt on the path"
    try:
        tool = find_tool()
    except ToolError as error:
        raise RerunError(str(error)) from error
    if tool is None:
        raise RerunError("the steps of a dump are run again by your mlir-opt, and none was found", "", todo)
    return tool


# ---- the process -----------------------------------------------------------------------------------------------------


async def execute_steps(
    mlir_opt: MlirTool,
    dump: Dump,
    pipeline: Pipeline,
    start: RerunStart,
    skipped: Collection[int],
    path: Path,
    whole: bool = False,
) -> RerunExecution:
    """Runs the steps from `start` on in a process, and scans its log. If it is cancelled, the process is killed.

    With `whole`, it prints the whole module after each step, even if the dump does not.
    """
    path.mkdir()
    texts = await asyncio.to_thread(_texts_at, dump, start)
    (path / "input.mlir").write_text("".join(texts), encoding="utf-8")
    command = [
        mlir_opt.path,
        "input.mlir",
        f"--pass-pipeline={pipeline.to_text(start.step, skipped)}",
        "-o",
        os.devnull,
    ]
    command += _printing_flags(dump.stages, pipeline, texts[0], whole)
    stderr_path = path / "stderr"
    with stderr_path.open("wb") as stream:
        process, lifetime = start_with_pipe(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stream, cwd=path,
            start_new_session=True,
        )  # fmt: skip
    try:
        while process.poll() is None:
            await asyncio.sleep(_POLL_SECONDS)
    finally:
        lifetime.close()
        if process.poll() is None:
            kill_group(process.pid)
            process.wait()
    log = path / "after_all.log"
    messages = await asyncio.to_thread(_split_messages, stderr_path, log)
    stderr_path.unlink()
    scan = DumpScan(log, "log")
    await asyncio.to_thread(lambda: sum(1 for _ in scan.index()))
    return RerunExecution(scan.dump, messages, process.returncode)


def _texts_at(dump: Dump, start: RerunStart) -> list[str]:
    """Returns the texts that make the module at `start`, its functions in the order of the next text of the module.

    The threads of a compiler may have printed them in another order.
    """
    stages = [dump.stages[number] for number in start.stages]
    following = next((stage for stage in dump.stages[start.stages[-1] + 1 :] if shows_module(stage)), None)
    if len(stages) > 1 and following is not None:
        module = read_text(dump, following)

        def position_in_module(stage: DumpStage) -> float:
            match = re.search(rf"^\s*{re.escape(stage.op)} .*{re.escape(stage.anchor)}\b", module, re.MULTILINE)
            return match.start() if match is not None else math.inf

        stages.sort(key=position_in_module)
    return [read_text(dump, stage) for stage in stages]


def _printing_flags(stages: Sequence[DumpStage], pipeline: Pipeline, text: str, whole: bool) -> Iterator[str]:
    """Yields the flags with which the texts are printed as in the dump."""
    yield "--mlir-print-ir-before-all" if pipeline.is_before else "--mlir-print-ir-after-all"
    yield "--mlir-disable-threading"
    yield "--allow-unregistered-dialect"
    nested = (stages[step.stages[0]] for step in pipeline.steps if step.op != MODULE_OP)
    if whole or any(map(shows_module, nested)):
        yield "--mlir-print-ir-module-scope"
    if " loc(" in text:
        yield "--mlir-print-debuginfo"
    if text.lstrip().startswith('"builtin.module"'):
        yield "--mlir-print-op-generic"


def _split_messages(stderr_path: Path, log: Path) -> str:
    """Writes the IR in the file `stderr_path` to the file `log`; returns the compiler's diagnostics in it."""
    messages, is_message = bytearray(), False
    with stderr_path.open("rb") as source, log.open("wb") as target:
        for line in source:
            if line.startswith(_HEADER_START):
                is_message = False
            elif not is_message and b": " in line[:4096] and _DIAGNOSTIC.match(line[:4096]):
                is_message = True
            if not is_message:
                target.write(line)
            elif len(messages) < _MAX_MESSAGES_BYTES:
                messages += line
    return messages.decode("utf-8", "replace")


def _first_error(execution: RerunExecution) -> str:
    """Returns the first error of `mlir-opt`, or how it ended."""
    match = _ERROR.search(execution.messages)
    return match[1].strip() if match is not None else describe_exit(execution.code)


def _input_problem(mlir_opt: MlirTool, dump: Dump, start: RerunStart, execution: RerunExecution) -> Diagnostic:
    """Returns the error of a run that ended before its first step: `mlir-opt` rejects the pipeline or the text."""
    stage, error = dump.stages[start.stages[0]], _first_error(execution)
    if "PassPipeline" in execution.messages or "Pass-Options-Parser" in execution.messages:
        what = f"{mlir_opt.name} does not know the pipeline of the dump: {error}"
    else:
        what = f"{mlir_opt.name} cannot read the text of {stage.title} (stage {start.stages[0]}): {error}"
    todo = f"set {TOOL_VARIABLE} to the mlir-opt that made the dump"
    return Diagnostic(what, str(dump.path), todo, detail=execution.messages)


def _failure_diagnostic(mlir_opt: MlirTool, execution: RerunExecution) -> Diagnostic | None:
    """Returns the error of the step that failed in a run, `None` if all succeeded."""
    if not execution.code:
        return None
    failed = next((stage for stage in reversed(execution.dump.stages) if stage.failed), execution.dump.stages[-1])
    what = f"{failed.title} failed: {_first_error(execution)}"
    todo = "enable the steps that it needs, or skip it too"
    return Diagnostic(what, f"the re-run by {mlir_opt.name}", todo, detail=execution.messages)


def _describe_run(mlir_opt: MlirTool, base: _BaseRun, count: int, unsafe: Collection[int]) -> Iterator[str]:
    """Yields the notes on a re-run of `count` steps, without the steps `unsafe`, whose options name files."""
    steps = base.pipeline.steps
    if base.difference is not None:
        step = steps[base.difference]
        yield (
            f"running {step.title} (step {base.difference + 1}) again without skipping any step gives another text "
            "than the dump: another mlir-opt, or options that the dump does not name?"
        )
    yield f"{count} steps run again by {mlir_opt.name}"
    if unsafe:
        names = ", ".join(dict.fromkeys(steps[index].title for index in sorted(unsafe)))
        yield f"also skipped, because their options name files: {names}"


# ---- the stages ------------------------------------------------------------------------------------------------------


def _combine_stages(
    dump: Dump, pipeline: Pipeline, start: RerunStart, user_numbers: dict[int, int], left_out: Collection[int],
    again: Dump, first_group: int,
) -> Dump:  # fmt: skip
    """Returns the stages of a dump before group `first_group` of the pipeline, followed by those of a re-run.

    `again` is the dump of the re-run. `user_numbers` maps the indices of steps to the numbers that the user sees. The
    stages of the skipped steps (`left_out`) keep their positions, with the text of the stage before. The stages of
    steps before the start of the re-run are those of the dump.
    """
    numbers = StepNumbers()
    step_numbers = [numbers.add(stage) for stage in dump.stages]
    for index in range(len(pipeline.steps)):
        user_numbers.setdefault(index, step_numbers[pipeline.steps[index].stages[0]])
    recorded = _with_owners([pipeline.step_of(number) for number in range(len(dump.stages))], pipeline.is_before)
    boundary = next(n for n, step in enumerate(recorded) if step is not None and _group(pipeline, step) >= first_group)
    result = Dump(dump.path, dump.format, files=[*dump.files, *again.files], is_complete=True)

    def add_recorded(number: int) -> None:
        step = pipeline.step_of(number)
        result.add(dataclasses.replace(dump.stages[number], deltas=(), step=-1 if step is None else user_numbers[step]))

    for number in range(boundary):
        add_recorded(number)
    steps_not_rerun = {*range(start.step), *left_out}
    unplaced = [n for n in range(boundary, len(dump.stages)) if pipeline.step_of(n) in steps_not_rerun]
    stage_numbers = {
        (step, stage.ran_on or stage.anchor): number
        for number, stage in enumerate(dump.stages)
        if (step := pipeline.step_of(number)) is not None
    }

    def add_unplaced(before: int) -> None:
        while unplaced and unplaced[0] < before:
            number = unplaced.pop(0)
            stage, step = dump.stages[number], pipeline.step_of(number)
            if step is None or step not in left_out:
                add_recorded(number)
                continue
            previous = next((other for other in reversed(result.stages) if other.anchor == stage.anchor), stage)
            result.add(
                dataclasses.replace(
                    previous, title=stage.title, ran_on=stage.ran_on, origin="skipped", deltas=(), failed=False,
                    step=user_numbers[step],
                )
            )  # fmt: skip

    matched = pipeline.match(again.stages, start.step, left_out)
    for step, owner, stage in zip(matched, _with_owners(matched, pipeline.is_before), again.stages, strict=True):
        if owner is not None and _group(pipeline, owner) < first_group:
            continue
        if step is not None:
            add_unplaced(stage_numbers.get((step, stage.ran_on or stage.anchor), pipeline.steps[step].stages[0]))
        elif owner is not None and not pipeline.is_before:
            add_unplaced(pipeline.steps[owner].stages[0])
        result.add(
            dataclasses.replace(
                stage, file=len(dump.files) + stage.file, deltas=(), origin="re-run",
                step=-1 if step is None else user_numbers[step],
            )
        )  # fmt: skip
    if not any(stage.failed for stage in again.stages):
        add_unplaced(len(dump.stages))
    return result


def _group(pipeline: Pipeline, step: int) -> int:
    return pipeline.steps[step].group


def _with_owners(steps: Sequence[int | None], is_before: bool) -> list[int | None]:
    """Returns `steps` with the step that contains each inner stage in place of `None`.

    That is the next step in the list, or the previous one if the dump prints texts before passes.
    """
    result: list[int | None] = []
    last: int | None = None
    for step in steps if is_before else reversed(steps):
        last = last if step is None else step
        result.append(last)
    return result if is_before else result[::-1]
