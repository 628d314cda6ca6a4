"""Reconstructs the pass pipeline of a dump of MLIR from the headers of its stages, so that its steps can run again.

A step is a pass in the pipeline. A dump may have several stages of one step: a pass on functions has one for each
function.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, pairwise

from buddy.compiler.importers.dumps.headers import MODULE
from buddy.compiler.importers.dumps.records import DumpStage
from buddy.compiler.protocol.errors import BuddyError

MODULE_OP = "builtin.module"
# Passes that run another pipeline on functions, each with the pass in that pipeline by default. The stages of the inner
# pass are in the dump before the stage of the outer pass.
_INNER_PASSES = {"inline": "canonicalize"}
# The parent ops of functions that are not directly in the module; headers do not name the parents.
_PARENTS = {"gpu.func": "gpu.module", "spirv.func": "spirv.module"}


class DumpPipelineError(BuddyError):
    """The steps of a dump cannot be run again; the text is the reason."""


def is_step(stage: DumpStage) -> bool:
    """Returns whether a stage is of a pass over MLIR that its header names by its argument."""
    return bool(stage.op and stage.pipeline)


def shows_module(stage: DumpStage) -> bool:
    """Returns whether the text of a stage is the whole module."""
    return stage.anchor == MODULE


class StepNumbers:
    """Numbers the steps of stages that are added one by one: a step has the number of its first stage."""

    def __init__(self) -> None:
        self._positions = _Positions()
        self._first: dict[tuple[object, ...], int] = {}
        self._count = 0

    def add(self, stage: DumpStage) -> int:
        """Adds the next stage of the dump. Returns the number of its step, or -1 if it belongs to none."""
        number, self._count = self._count, self._count + 1
        if not is_step(stage):
            return -1
        return self._first.setdefault((stage.before, stage.pipeline, self._positions.position_of(stage)), number)


class _Positions:
    """The position of each stage in the pipeline.

    A position consists of a group, which is a pass on the module or the passes between two of them, an op, and an index
    within the group. Texts before passes and texts after passes are counted separately.
    """

    def __init__(self) -> None:
        # Keys say whether texts are before passes. Passes on the module have odd groups, the passes between them even.
        self._groups: Counter[bool] = Counter()
        self._counts: dict[bool, Counter[tuple[str, str]]] = {False: Counter(), True: Counter()}

    def position_of(self, stage: DumpStage) -> tuple[int, str, int]:
        """Returns the position of the next stage: its group, its op, and its index within the group."""
        counts = self._counts[stage.before]
        if stage.op == MODULE_OP:
            self._groups[stage.before] += 2
            counts.clear()
            return self._groups[stage.before] - 1, stage.op, 0
        counts[stage.op, _symbol(stage)] += 1
        return self._groups[stage.before], stage.op, counts[stage.op, _symbol(stage)] - 1


def _symbol(stage: DumpStage) -> str:
    """Returns what the pass ran on, or else what the text shows."""
    return stage.ran_on or stage.anchor


@dataclass
class PipelineStep:
    """A pass of the pipeline, which runs on each op with the name `op`.

    `spelling` is the pass with its options. `group` is that of `_Positions`. `stages` are the numbers of its stages.
    """

    title: str
    op: str
    spelling: str
    group: int
    stages: list[int] = field(default_factory=list)


@dataclass
class RerunStart:
    """The start of a re-run: the stages whose texts together are the module, and the first step to run on it."""

    stages: list[int]
    step: int


class Pipeline:
    """The steps of a dump in the order of their execution.

    `inner` are the numbers of stages that come from the inner pipelines of passes; they belong to no step. `is_before`
    says that the texts of the steps are before the passes.
    """

    def __init__(self, stages: Sequence[DumpStage], inner: Collection[int]) -> None:
        """Raises `DumpPipelineError` if the functions of the dump have run different passes."""
        self._stages = stages
        self.steps: list[PipelineStep] = []
        self.inner = frozenset(inner)
        self.is_before = _shows_before(stages)
        self._by_stage: dict[int, int] = {}
        self._collect_steps()

    def _collect_steps(self) -> None:
        """Sets the steps. Raises `DumpPipelineError` if functions have run different passes."""
        positions, numbers = _Positions(), dict[tuple[int, str, int], int]()
        steps: list[PipelineStep] = []
        for number, stage in enumerate(self._stages):
            if number in self.inner or not is_step(stage) or stage.before != self.is_before:
                continue
            position = positions.position_of(stage)
            if position not in numbers:
                numbers[position] = len(steps)
                spelling = re.sub(r"\s+", " ", stage.pipeline).replace(" }", "}").replace("{ ", "{")
                steps.append(PipelineStep(_title(stage), stage.op, spelling, position[0]))
            step = steps[numbers[position]]
            if step.title != _title(stage):
                what = f"{step.title} and {_title(stage)} (stage {number}) ran at the same place on different functions"
                raise DumpPipelineError(f"the pipeline is not known: {what}, or the dump lacks stages")
            step.stages.append(number)
        # Functions that run in several threads are interleaved.
        self.steps = [steps[numbers[position]] for position in sorted(numbers)]
        self._by_stage = {stage: index for index, step in enumerate(self.steps) for stage in step.stages}
        self._reject_different_functions()

    def _reject_different_functions(self) -> None:
        """Raises `DumpPipelineError` if a pass ran on some functions only. The last passes may not have ended."""
        for step, following in pairwise(self.steps):
            is_last = following.group == self.steps[-1].group
            is_same_pipeline = (step.group, step.op) == (following.group, following.op)
            if is_same_pipeline and not is_last and len(step.stages) != len(following.stages):
                first_run = f"{step.title} ran on {len(step.stages)} functions"
                second_run = f"{following.title} on {len(following.stages)}"
                raise DumpPipelineError(f"the pipeline is not known: {first_run} and {second_run}")

    def step_of(self, stage: int) -> int | None:
        """Returns the index of the step that stage number `stage` belongs to; `None` if it belongs to none."""
        return self._by_stage.get(stage)

    def start_before(self, first: int) -> RerunStart:
        """Returns the latest start before step `first` at which the dump has the whole module.

        Raises `DumpPipelineError` if the dump has no such text.
        """
        for index in range(first if self.is_before else first - 1, -1, -1):
            whole = self._whole_text(index)
            if whole is not None:
                return RerunStart([whole], index if self.is_before else index + 1)
        index = 0 if self.is_before else 1
        parts = self.steps[0].stages
        # Passes on functions may print each function alone, before any pass on the module.
        are_functions = not any(shows_module(self._stages[number]) for number in parts)
        if self.steps[0].op != MODULE_OP and index <= first and are_functions:
            return RerunStart(parts, index)
        raise DumpPipelineError(
            f"the dump has no text of the whole module before {self.steps[first].title} "
            f"(step {first + 1} of {len(self.steps)})"
        )

    def _whole_text(self, index: int) -> int | None:
        """Returns the number of the stage whose text is the module with all functions at step `index`.

        The text is before or after the step, as all texts of the dump are. `None` if the dump has no such text.
        """
        step = self.steps[index]
        neighbour = index - 1 if self.is_before else index + 1
        is_end = not 0 <= neighbour < len(self.steps) or self.steps[neighbour].group != step.group
        if not is_end and len(step.stages) > 1:
            return None
        stage = step.stages[0] if self.is_before else step.stages[-1]
        return stage if shows_module(self._stages[stage]) else None

    def to_text(self, first: int, skipped: Collection[int] = ()) -> str:
        """Returns the pipeline from step `first` on, without the `skipped` ones, in the syntax of `mlir-opt`."""
        parts = []
        executed = [step for index, step in enumerate(self.steps) if index >= first and index not in skipped]
        for (_, op), steps in groupby(executed, lambda step: (step.group, step.op)):
            passes = ",".join(step.spelling for step in steps)
            nested = passes if op == MODULE_OP else f"{op}({passes})"
            parts.append(f"{_PARENTS[op]}({nested})" if op in _PARENTS else nested)
        return f"{MODULE_OP}({','.join(parts)})"

    def match(self, stages: Sequence[DumpStage], first: int, skipped: Collection[int] = ()) -> list[int | None]:
        """Returns the step of each stage of a re-run from step `first` on, `None` for a stage of an inner pipeline."""
        executed = [index for index in range(first, len(self.steps)) if index not in skipped]
        # If a pass on the module is skipped, the passes before and after it are one group.
        groups = _group_passes(executed, lambda index: self.steps[index].op)
        matched: list[int | None] = [None] * len(stages)
        for numbers in _group_passes(range(len(stages)), lambda number: stages[number].op):
            is_module = stages[numbers[0]].op == MODULE_OP
            while is_module and groups and self.steps[groups[0][0]].op != MODULE_OP:
                groups.pop(0)
            if groups and is_module == (self.steps[groups[0][0]].op == MODULE_OP):
                self._match_group(stages, numbers, groups.pop(0), matched)
        return matched

    def _match_group(
        self, stages: Sequence[DumpStage], numbers: Sequence[int], group: Sequence[int], matched: list[int | None]
    ) -> None:
        """Sets the entries of `matched` for the stages `numbers`, which are those of the steps `group`."""
        by_symbol: dict[tuple[str, str], list[int]] = {}
        for number in numbers:
            by_symbol.setdefault((stages[number].op, _symbol(stages[number])), []).append(number)
        for (op, _), symbol_numbers in by_symbol.items():
            steps = [index for index in group if self.steps[index].op == op]
            # The stages of an inner pipeline are at the end, or at the start in a dump of texts before passes.
            shift = max(0, len(symbol_numbers) - len(steps)) if self.is_before else 0
            for number, step in zip(symbol_numbers[shift:], steps, strict=False):
                # A function that is deleted has stages of the inner pipeline only.
                matched[number] = step if self.steps[step].title == _title(stages[number]) else None

    def first_difference(
        self,
        stages: Sequence[DumpStage],
        first: int,
        skipped: Collection[int],
        equal: Callable[[DumpStage, DumpStage], bool],
    ) -> int | None:
        """Returns the first step whose texts in a re-run from step `first` on differ from those of the dump.

        `None` if all are `equal`; `stages` are those of the re-run, without the `skipped` steps.
        """
        rerun_stages = {
            (step, _symbol(stage)): stage
            for step, stage in zip(self.match(stages, first, skipped), stages, strict=True)
            if step is not None
        }
        for index in range(first, len(self.steps)):
            if index in skipped:
                continue
            for number in self.steps[index].stages:
                stage = self._stages[number]
                rerun_stage = rerun_stages.pop((index, _symbol(stage)), None)
                if rerun_stage is None or not equal(stage, rerun_stage):
                    return index
            if any(step == index for step, _ in rerun_stages):
                return index
        return None


def _group_passes(indices: Iterable[int], op_of: Callable[[int], str]) -> list[list[int]]:
    """Returns groups of indices: each pass on the module is one, and the passes between two of them are one."""
    groups: list[list[int]] = []
    for is_module, run in groupby(indices, lambda index: op_of(index) == MODULE_OP):
        members = list(run)
        groups += [[index] for index in members] if is_module else [members]
    return groups


def possible_pipelines(stages: Sequence[DumpStage]) -> Iterator[Pipeline]:
    """Yields the pipelines that the stages may be of. Raises `DumpPipelineError` if no pipeline is found.

    The pipelines differ in the stages that they attribute to inner pipelines, such as that of the inliner. Such stages
    look like those of the outer pipeline, so only a re-run shows which pipeline is right.
    """
    if not any(map(is_step, stages)):
        raise DumpPipelineError("the dump does not name the passes of an MLIR pipeline")
    seen: set[frozenset[int]] = set()
    problem: DumpPipelineError | None = None
    has_pipeline = False
    for choose in _CHOICES:
        inner = frozenset(_inner_stages(stages, choose))
        if inner in seen:
            continue
        seen.add(inner)
        try:
            pipeline = Pipeline(stages, inner)
        except DumpPipelineError as error:
            problem = problem or error
            continue
        has_pipeline = True
        yield pipeline
    if not has_pipeline and problem is not None:
        raise problem


# ---- stages of inner pipelines ---------------------------------------------------------------------------------------


def _all_of(run: list[int], _stages: Sequence[DumpStage]) -> list[int]:
    return run


def _all_but_first(run: list[int], stages: Sequence[DumpStage]) -> list[int]:
    """Returns the stages without the first one of each function, which is of the outer pipeline."""
    first: dict[str, int] = {}
    for number in run:
        first.setdefault(_symbol(stages[number]), number)
    return [number for number in run if number not in first.values()]


def _none_of(_run: list[int], _stages: Sequence[DumpStage]) -> list[int]:
    return []


# The possible choices of the stages of an inner pipeline, among a run of stages that may be of it.
_CHOICES: tuple[Callable[[list[int], Sequence[DumpStage]], list[int]], ...] = (_all_of, _all_but_first, _none_of)


def _inner_stages(
    stages: Sequence[DumpStage], choose: Callable[[list[int], Sequence[DumpStage]], list[int]]
) -> Iterator[int]:
    """Yields the numbers of the stages that `choose` selects among those that an inner pipeline may have made."""
    is_before = _shows_before(stages)
    numbers = [n for n, stage in enumerate(stages) if is_step(stage) and stage.before == is_before]
    for position, number in enumerate(numbers):
        inner = _INNER_PASSES.get(_title(stages[number]))
        if inner is None:
            continue
        neighbours = numbers[position + 1 :] if is_before else numbers[:position][::-1]
        run: list[int] = []
        for other in neighbours:
            if _title(stages[other]) != inner or stages[other].op == MODULE_OP:
                break
            run.append(other)
        yield from choose(sorted(run), stages)


def _shows_before(stages: Sequence[DumpStage]) -> bool:
    """Returns whether the dump has only texts before passes.

    If it also has texts after passes, the steps are the passes with a text after them.
    """
    return all(stage.before for stage in stages if is_step(stage))


def _title(stage: DumpStage) -> str:
    """Returns the argument of the pass of a stage, without its options."""
    return re.split(r"[{\s]", stage.pipeline, maxsplit=1)[0]
