"""Comparisons of stages in the IR pane: which stage the shown one is compared with, the diff, and the actions for it.

A baseline is a rule that selects the other stage, such as "previous".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import DiffMode, IrContent, IrDocument, IrView, diff_layout_at
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports import formatting
from buddy.app.reports.text.rows import DiffRows
from buddy.app.session.stages import StageRow, find_counterpart
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.plain_values import LANGUAGES
from buddy.compiler.protocol.recipe import Recipe

# Which stage a stage is compared with: the stage before it, the marked stage, the same stage before the last edit of
# the recipe, or the corresponding stage of another recipe or graph.
Baseline = Literal["previous", "marked", "edit", "recipe"]
# The order in which `next_diff` switches modes.
DIFF_MODES: tuple[DiffMode, ...] = ("off", "line", "structural")
# The order in which `next_baseline` tries baselines.
BASELINES: tuple[Baseline, ...] = ("marked", "edit", "recipe", "previous")


class TitledRecipe(NamedTuple):
    """A recipe to compare with, and its title."""

    title: str
    recipe: Recipe


class ComparedStages(NamedTuple):
    """The stages of another recipe or of another graph, with the title of that recipe or graph."""

    title: str
    stages: tuple[Stage, ...]

    def counterpart(self, row: StageRow, rows: Sequence[StageRow]) -> Stage | None:
        """The stage in `stages` that corresponds to the stage of `row`, one of `rows`: the stage of the same pass.

        If the other recipe lacks the pass: the stage of the nearest earlier pass of the phase that both have; without
        one, the last stage of the phase; `None` if the phase has no stage.
        """
        own_stages = [other.stage for other in rows]
        own_phase = [stage for stage in own_stages if stage.phase == row.stage.phase]
        index = next((index for index, stage in enumerate(own_phase) if stage is row.stage), len(own_phase))
        latest_first = reversed(own_phase[: index + 1])
        counterparts = (find_counterpart(stage, own_stages, self.stages) for stage in latest_first)
        other_phase = [stage for stage in self.stages if stage.phase == row.stage.phase]
        return next(filter(None, counterparts), other_phase[-1] if other_phase else None)

    def first_difference(self, rows: Sequence[StageRow]) -> StageRow | None:
        """The first of `rows` whose text differs from its pass's stage in `stages`; `None` without one.

        A stage of a pass that the other recipe lacks differs if the pass has changed the IR.
        """
        stages = [row.stage for row in rows]
        for row in rows:
            other = find_counterpart(row.stage, stages, self.stages)
            differs = row.stage.changed if other is None else other.text != row.stage.text
            if differs:
                return row
        return None


class OtherStage(NamedTuple):
    """A stage to compare with, and the baseline that selects it."""

    baseline: Baseline
    stage: Stage


class IrComparison:
    """Compares each stage with the stage that `baseline` selects, as a diff by line or structural; `mode` can be off.

    Only stages in the same language are compared. `others` are the stages of another recipe or graph. `running` is true
    while the engine computes a diff.
    """

    def __init__(self, context: WorkbenchContext, view: IrView, document: IrDocument, stages: IrStages) -> None:
        self._context, self._view, self._document, self._stages = context, view, document, stages
        self.mode: DiffMode = "off"
        self.baseline: Baseline = "previous"
        self.marked_stage: Stage | None = None
        # Whether the stage was marked after the last switch of the baseline.
        self._is_mark_new = False
        self.others: ComparedStages | None = None
        self.running = False

    # ---- the other stage -----------------------------------------------------------------------------------------

    def other_of(self, row: StageRow) -> Stage | None:
        """The stage that the stage of `row` is compared with; `None` if there is no such stage or `mode` is off."""
        other = None if self.mode == "off" else self._comparable_stage(self.baseline, row)
        return self._stages.in_chosen_form(other.stage) if other is not None else None

    def _comparable_stage(self, baseline: Baseline, row: StageRow) -> OtherStage | None:
        """The stage that `baseline` selects for the stage of `row`; `None` without one in the same language.

        If the previous stage is in another language, the baseline "edit" replaces "previous".
        """
        stage = self._stage_in_any_language(baseline, row)
        if stage is None:
            return None
        if stage.language == row.stage.language:
            return OtherStage(baseline, stage)
        return self._comparable_stage("edit", row) if baseline == "previous" else None

    def _stage_in_any_language(self, baseline: Baseline, row: StageRow) -> Stage | None:
        """The stage that `baseline` selects for the stage of `row`, in any language; `None` without one."""
        if baseline == "marked":
            return self.marked_stage
        if baseline == "edit":
            return self._context.state.board.stage_before_edit(row.key)
        if baseline == "recipe":
            return self.others.counterpart(row, self._stages.rows) if self.others is not None else None
        rows = self._stages.rows
        index = next((index for index, other in enumerate(rows) if other.key == row.key), 0)
        # A dump may print each function alone: the previous stage must be of the same function.
        earlier = [other.stage for other in rows[:index] if other.stage.anchor == row.stage.anchor]
        return earlier[-1] if earlier else None

    def content_of(self, row: StageRow) -> IrContent:
        """The text or the diff to draw for a stage."""
        other = self.other_of(row)
        return IrContent(
            row.stage.text, other.text if other is not None else "", self.mode, self._document.only_function
        )

    # ---- the diff ------------------------------------------------------------------------------------------------

    async def compare(self, stage: Stage, other: Stage | None) -> DiffRows | None:
        """The differences of a stage from `other`; `None` if `other` is `None`, `mode` is off, or the request fails."""
        mode, layout = self.mode, diff_layout_at(self._view.width)
        if other is None or mode == "off":
            return None
        if other.text == stage.text:
            return DiffRows((), other.lines, stage.lines, layout)
        self.running = True
        self._view.refresh_edges()
        try:
            answer = await self._context.queries.compare(other.text, stage.text, mode, stage.language)
        finally:
            self.running = False
        if answer is None:
            return None
        return DiffRows(answer.hunks, answer.before_lines, answer.after_lines, layout, answer.aliases)

    # ---- the line above the text ---------------------------------------------------------------------------------

    def header_texts(self) -> list[str]:
        """The mode of the comparison, the numbers of changes, and the other stage; empty without a comparison."""
        if self.mode == "off":
            return []
        mode, other = self._description()
        row, diff = self._stages.chosen_row, self._document.diff
        is_drawn = row is not None and self._document.content == self.content_of(row)
        counts = change_counts(diff, self._context.glyphs) if is_drawn and diff is not None else ""
        return [mode, *filter(None, [counts]), other]

    def state_cells(self) -> Cells:
        """The badge of the comparison: that it is running, or that there is no change."""
        if self.running:
            return [(f" comparing{self._context.glyphs.ellipsis} {key_of('cancel')} cancels ", "notice")]
        diff = self._document.diff
        return no_change_badge(self._document.content, diff) if diff is not None else []

    def _description(self) -> tuple[str, str]:
        """The mode of the comparison and the other stage: `structural diff`, `from canonicalize`."""
        row = self._stages.chosen_row
        other = self._comparable_stage(self.baseline, row) if row is not None else None
        if other is None:
            return f"{self.mode} diff", self._unavailable_reason(row)
        name = other.stage.name
        names = {"previous": name, "marked": f"{name} (marked)", "edit": "before the last edit"}
        if self.others is not None:
            names["recipe"] = f"{name} ({self.others.title})"
        return f"{self.mode} diff", f"from {names[other.baseline]}"

    def _unavailable_reason(self, row: StageRow | None) -> str:
        """The reason why the stage of `row` has no other stage to compare with."""
        stage = self._stage_in_any_language(self.baseline, row) if row is not None else None
        if stage is not None:
            edit_note = ", and no edit changed this stage" if self.baseline == "previous" else ""
            return f"nothing to compare: {stage.name} is {LANGUAGES[stage.language].title}{edit_note}"
        if self.baseline == "recipe":
            return (
                f"{self.others.title} has no such stage"
                if self.others is not None
                else f"press {key_of('compare-recipes')} to choose another recipe"
            )
        has_earlier = self._context.state.board.has_compilation_before_edit
        reasons = {
            "previous": "this is the first stage",
            "marked": f"press {key_of('ir.mark')} to mark a stage",
            "edit": "the last edit added this stage" if has_earlier else "no edit changed it",
        }
        return reasons[self.baseline]

    # ---- actions -------------------------------------------------------------------------------------------------

    def next_diff(self) -> None:
        """Switches to the next mode: no diff, a line diff, a structural diff."""
        self.mode = DIFF_MODES[(DIFF_MODES.index(self.mode) + 1) % len(DIFF_MODES)]
        self._view.open_stage()
        self._context.say("diff off" if self.mode == "off" else " ".join(self._description()))

    def next_baseline(self) -> None:
        """Compares with the stage that the next baseline selects. Skips baselines that select no stage.

        If no diff is shown, or a stage was marked after the last call, starts with the marked stage.
        """
        row = self._stages.chosen_row
        if row is None:
            return
        start = 0 if self.mode == "off" or self._is_mark_new else BASELINES.index(self.baseline) + 1
        self.mode = "structural" if self.mode == "off" else self.mode
        candidates = (*BASELINES[start:], *BASELINES[:start])
        available = (baseline for baseline in candidates if self._comparable_stage(baseline, row) is not None)
        self._is_mark_new = False
        self.baseline = next(available, "previous")
        self._view.open_stage()
        self._context.say(" ".join(self._description()))

    def compare_with(self, others: ComparedStages, at_first_difference: bool = False) -> None:
        """Compares each stage with the corresponding one of another recipe or graph.

        With `at_first_difference`, goes to the first stage that differs.
        """
        self.others, self.baseline = others, "recipe"
        if self.mode == "off":
            self.mode = "structural"
        # The stages of the board have texts in the custom assembly format, like `others`.
        differing = others.first_difference(self._context.state.board.rows()) if at_first_difference else None
        first = self._stages.find(differing.key) if differing is not None else None
        if first is not None:
            self._view.show_line(first, -1)
            self._context.say(f"{' '.join(self._description())}: {first.stage.name} is the first stage that differs")
            return
        self._view.open_stage()
        if at_first_difference:
            self._context.say(f"no stage differs from {others.title}")
        else:
            self._context.say(" ".join(self._description()))

    def mark_stage(self) -> None:
        """Marks the chosen stage, so that other stages can be compared with it."""
        stage = self._stages.chosen_stage
        if stage is not None:
            self.marked_stage, self._is_mark_new = stage, True
            self._view.open_stage()
            key, language = key_of("ir.diff-against"), LANGUAGES[stage.language].title
            self._context.say(
                f"{stage.name} is marked: press {key} to compare another stage with it, if it is {language}"
            )

    def next_change(self) -> None:
        diff = self._document.diff
        self._go_to_change(diff, diff.change_after(self._view.cursor) if diff is not None else None)

    def previous_change(self) -> None:
        diff = self._document.diff
        self._go_to_change(diff, diff.change_before(self._view.cursor) if diff is not None else None)

    def _go_to_change(self, diff: DiffRows | None, row: int | None) -> None:
        if row is None or diff is None:
            self._context.say("the diff has no change")
            return
        self._view.center(row)
        self._context.say(f"change {diff.changes.index(row) + 1} of {len(diff.changes)}")


def change_counts(diff: DiffRows, glyphs: formatting.Glyphs) -> str:
    """Returns the numbers of added and removed lines and of changes: `+13 −23 in 16 changes`; empty without changes."""
    n_changes = len(diff.hunks)
    if not n_changes:
        return ""
    removed = sum(removed_lines for _, removed_lines, _, _ in diff.hunks)
    added = sum(added_lines for _, _, _, added_lines in diff.hunks)
    lines = " ".join(filter(None, formatting.count_change(added, removed, glyphs)))
    return f"{lines} in {formatting.count(n_changes)} change{'s' * (n_changes != 1)}"


def no_change_badge(content: IrContent, diff: DiffRows) -> Cells:
    """Returns the badge of a diff without hunks, which says whether the texts are equal; empty for other diffs."""
    if diff.hunks:
        return []
    return [(" no change " if content.text == content.other else f" no {content.mode} change ", "notice")]
