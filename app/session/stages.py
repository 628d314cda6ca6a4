"""The stages of one graph, and the state of a graph: its stages, results and problems.

A stage has a key, which pairs it with a stage of another compilation. `StageBoard` is the list that the panes show.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from typing import Literal, NamedTuple

from buddy.app.workspace.session_file import RunRecord, StageKey
from buddy.compiler import protocol as p
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.numerics import NodeNumbers, NumericsReport
from buddy.compiler.protocol.plain_values import LANGUAGES
from buddy.compiler.protocol.recipe import PassStep, Recipe
from buddy.compiler.protocol.run_report import OWN_INPUTS, InputChoice
from buddy.compiler.protocol.searches import NodePrecision


class StageRow(NamedTuple):
    """A stage with its key (pass name and number of earlier stages of that pass).

    `outdated_reason` says why the stage is not one of the current recipe; empty for a stage of the current recipe.
    """

    stage: Stage
    key: StageKey
    outdated_reason: str = ""


class PassRow(NamedTuple):
    """A row of the table of passes: a pass of the recipe, or a built-in step. `stage` is the pass's result, if any.

    `number` is the index of `step` in `Recipe.steps`. A built-in step has the number -1, and no `step`. A row with
    names of passes in `folded` stands for these disabled passes, whose own rows are hidden.
    """

    name: str
    number: int
    step: PassStep | None
    stage: StageRow | None
    folded: tuple[str, ...] = ()


class StagePosition(NamedTuple):
    """Line `line` (from 0) of the stage with the key `key`."""

    key: StageKey
    line: int


def key_stages(stages: Iterable[Stage]) -> list[tuple[StageKey, Stage]]:
    """Pairs each stage with its key, which stays the same if passes with other names are inserted, removed or moved."""
    counts: Counter[str] = Counter()
    pairs = []
    for stage in stages:
        pairs.append(((stage.name, counts[stage.name]), stage))
        counts[stage.name] += 1
    return pairs


def align_stages(before: Sequence[Stage], after: Sequence[Stage]) -> list[tuple[Stage | None, Stage | None]]:
    """Pairs the stages of two compilations: those of the same pass in the same phase. Returns the pairs in order.

    If a pass runs several times in a phase, the runs between the same neighbouring passes are paired. A stage that only
    one compilation has is paired with `None`.
    """
    names_before, names_after = ([(stage.name, stage.phase) for stage in stages] for stages in (before, after))
    pairs: list[tuple[Stage | None, Stage | None]] = []
    only_after: list[Stage] = []
    matcher = SequenceMatcher(None, names_before, names_after, autojunk=False)
    for operation, i, i_end, j, j_end in matcher.get_opcodes():
        old_stages, new_stages = before[i:i_end], after[j:j_end]
        if operation == "equal":
            pairs += zip(old_stages, new_stages, strict=True)
        else:
            pairs += [(stage, None) for stage in old_stages] + [(None, stage) for stage in new_stages]
            only_after += new_stages
    return _pair_moved_stages(pairs, only_after)


def _pair_moved_stages(
    pairs: Sequence[tuple[Stage | None, Stage | None]], only_after: Sequence[Stage]
) -> list[tuple[Stage | None, Stage | None]]:
    """Returns `pairs` with one entry for each stage whose pass was moved, at its old position.

    In `pairs`, such a stage has two entries: (stage, `None`) at its old position, and (`None`, stage) at its new one.
    `only_after` are the stages of the entries (`None`, stage).
    """
    completed: list[tuple[Stage | None, Stage | None]] = []
    unpaired = list(only_after)
    for before, after in pairs:
        if before is not None and after is None:
            name_and_phase = before.name, before.phase
            after = next((stage for stage in unpaired if (stage.name, stage.phase) == name_and_phase), None)
            unpaired = [stage for stage in unpaired if stage is not after]
        completed.append((before, after))
    return [
        (before, after)
        for before, after in completed
        if before is not None or any(after is stage for stage in unpaired)
    ]


def find_counterpart(stage: Stage, stages: Sequence[Stage], others: Sequence[Stage]) -> Stage | None:
    """Returns the stage in `others` that `align_stages` pairs with `stage`, one of `stages`, or `None`."""
    return next((other for own, other in align_stages(stages, others) if own is stage), None)


class StageBoard:
    """Collects the stages of a graph: those of the current compilation, then those of the last one not replaced yet.

    `_complete` and `_previous_complete` are the stages of the last two complete compilations with different texts.
    """

    def __init__(self) -> None:
        self._current: list[Stage] = []
        self._outdated: list[Stage] = []
        self._complete: list[Stage] = []
        self._previous_complete: list[Stage] = []
        self._reason = ""
        self._is_compiling = False
        self._last_stage_time = 0.0
        # Caches the result of `rows` until a stage is added or replaced, because a dump may have thousands.
        self._rows: list[StageRow] | None = None

    def begin(self, reason: str) -> None:
        """Starts a compilation. The current stages are outdated for `reason` until they are replaced."""
        self._outdated = [row.stage for row in self.rows() if row.stage.state != "failed"]
        self._current, self._reason, self._is_compiling = [], reason, True
        self._rows = None
        self._last_stage_time = time.monotonic()

    def add(self, stage: Stage) -> None:
        """Adds a stage of the running compilation. Without a running compilation, ignores it."""
        if self._is_compiling:
            self._current.append(stage)
            self._rows = None
            self._last_stage_time = time.monotonic()

    def finish(self, stages: Sequence[Stage]) -> None:
        """Ends the compilation with all its `stages`."""
        if [stage.text for stage in stages] != [stage.text for stage in self._complete]:
            self._previous_complete, self._complete = self._complete, list(stages)
        self._current, self._outdated, self._is_compiling = list(stages), [], False
        self._rows = None

    def seconds_left(self) -> float | None:
        """Estimates the remaining seconds of the compilation: the time that its outdated stages took before.

        Returns `None` if no compilation is running, or no stage is outdated.
        """
        if not self._is_compiling:
            return None
        milliseconds = [row.stage.milliseconds for row in self.rows() if row.outdated_reason]
        if not milliseconds:
            return None
        return max(0.0, sum(milliseconds) / 1e3 - (time.monotonic() - self._last_stage_time))

    def stage_before_edit(self, key: StageKey) -> Stage | None:
        """Returns the counterpart of the stage with the key `key` in the compilation before the last edit.

        This is the last complete compilation whose texts differ from the current ones. Returns `None` without one.
        """
        stages = [row.stage for row in self.rows()]
        stage = next((row.stage for row in self.rows() if row.key == key), None)
        return find_counterpart(stage, stages, self._compilation_before_edit()) if stage is not None else None

    @property
    def has_compilation_before_edit(self) -> bool:
        """Whether the recipe was compiled before the last edit."""
        return bool(self._compilation_before_edit())

    def _compilation_before_edit(self) -> Sequence[Stage]:
        """Returns the stages of the last complete compilation whose texts differ from those of the current stages."""
        # While the current stages are those of the last complete compilation, the edit was made before that one.
        is_complete = [stage.text for stage in self._current] == [stage.text for stage in self._complete]
        return self._previous_complete if is_complete else self._complete

    def fail(self, stages: Sequence[Stage], reason: str) -> None:
        """Ends the compilation with `stages` (up to the failure). Later stages stay outdated for `reason`.

        Without a running compilation, all stages become outdated.
        """
        if not self._is_compiling:
            self.begin(reason)
        added = {(stage.index, stage.text) for stage in self._current}
        self._current += [stage for stage in stages if (stage.index, stage.text) not in added]
        self._reason, self._is_compiling = reason, False
        self._rows = None

    @property
    def failed_stage(self) -> Stage | None:
        return next((stage for stage in reversed(self._current) if stage.state == "failed"), None)

    def rows(self) -> list[StageRow]:
        """Returns the current stages, then the outdated stages that come after them in the pipeline.

        Callers must not modify the list.
        """
        if self._rows is None:
            self._rows = self._make_rows()
        return self._rows

    def _make_rows(self) -> list[StageRow]:
        """Returns the current stages, and the outdated ones after the last one that was replaced."""
        current = key_stages(self._current)
        current_keys = {key for key, _ in current}
        outdated = key_stages(self._outdated)
        last_replaced = max((index for index, (key, _) in enumerate(outdated) if key in current_keys), default=-1)
        return [
            *(StageRow(stage, key) for key, stage in current),
            *(StageRow(stage, key, self._reason) for key, stage in outdated[last_replaced + 1 :]),
        ]


def phase_of(rows: Sequence[StageRow], index: int) -> str:
    """Returns the phase of row `index`. For a row without a phase, returns that of the closest earlier row, or ""."""
    return next((phase for earlier in range(index, -1, -1) if (phase := rows[earlier].stage.phase)), "")


def stage_file_name(stage: Stage) -> str:
    """Returns the name of the stage's file, such as `07-canonicalize.mlir`. Names sort in the order of the stages."""
    failed_mark = ".failed" * (stage.state == "failed")
    return f"{stage.index:02}-{stage.name}{failed_mark}{LANGUAGES[stage.language].suffix}"


# ---- the state of a graph --------------------------------------------------------------------------------------------


Job = Literal["open", "compile", "run"]


class NodeComparison(NamedTuple):
    """A comparison of every node of `recipe` with its reference."""

    recipe: Recipe
    report: NumericsReport


@dataclass
class GraphState:
    """The state of one graph. Fields of results that do not exist yet are empty or `None`.

    `compiled_recipe`, `run_recipe` and `profiled_recipe` are the recipes of the last complete compilation, of `report`
    and of `profile`; they become `None` if the program has changed since.

    Of the last complete compilation: `remarks` are tuples (pass, node, text), `notes` say how the steps of a dump were
    run again, `compile_seconds` is its duration, and `n_reused_stages` of its stages came from the cache.
    `assignments` are the lowerings of the nodes, by stable name.

    `report` is the last run, on `inputs`, and `previous_report` the last run of another recipe. `restored_run` is the
    run of an earlier session that `report` is from, if it is. `problems` has the error of each kind of job that failed.
    `newest_request` is the number of the last request that compiles or runs the graph.

    By stable name of a node: `node_numbers` are its errors in `comparison`, the last comparison of every node;
    `f32_seconds` its time in the last profile in which it multiplied in f32; `precisions` the result for it of the last
    search for precisions.
    """

    board: StageBoard = field(default_factory=StageBoard)
    assignments: dict[str, p.Assignment] = field(default_factory=dict)
    remarks: tuple[tuple[str, str, str], ...] = ()
    notes: tuple[str, ...] = ()
    compiled_recipe: Recipe | None = None
    compile_seconds: float = 0.0
    n_reused_stages: int = 0
    report: p.RunReport | None = None
    previous_report: p.RunReport | None = None
    run_recipe: Recipe | None = None
    restored_run: RunRecord | None = None
    inputs: InputChoice = OWN_INPUTS
    problems: dict[Job, p.Diagnostic] = field(default_factory=dict)
    newest_request: int = 0
    comparison: NodeComparison | None = None
    node_numbers: dict[str, NodeNumbers] = field(default_factory=dict)
    profile: p.ProfileReport | None = None
    profiled_recipe: Recipe | None = None
    f32_seconds: dict[str, float] = field(default_factory=dict)
    precisions: dict[str, NodePrecision] = field(default_factory=dict)

    def record_start(self, job: Job, request: int, recipe: Recipe) -> None:
        """Records that request number `request` for `recipe` was sent, and drops the last error of the same job."""
        self.newest_request = request
        self.problems.pop(job, None)
        if recipe != self.compiled_recipe:
            self.problems.pop("compile", None)
            self.board.begin("compiling")

    def record_compilation(self, recipe: Recipe | None, frame: p.Compiled) -> None:
        self.compiled_recipe, self.remarks, self.notes = recipe, frame.remarks, frame.notes
        self.compile_seconds, self.n_reused_stages = frame.seconds, frame.reused
        self.problems.pop("compile", None)
        self.board.finish(frame.stages)

    def record_run(self, recipe: Recipe | None, report: p.RunReport) -> None:
        """Records a run of `recipe`. `previous_report` becomes the last report of another recipe."""
        if recipe != self.run_recipe:
            self.previous_report = self.report
        self.report, self.run_recipe, self.restored_run = report, recipe, None
        self.problems.pop("run", None)

    def record_comparison(self, recipe: Recipe, report: NumericsReport) -> None:
        """Records a comparison of every node of `recipe` with the reference."""
        self.comparison, self.node_numbers = NodeComparison(recipe, report), report.by_node()
