"""The passes pane: built-in steps and the passes of the recipe, in execution order, with times and op counts."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from typing import ClassVar

import msgspec
from textual.binding import BindingType

from buddy.app.actions import Pane as PaneId
from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.pane import TablePane
from buddy.app.panes.pass_rows import fold_rows, insertion_index, new_step, pass_rows, row_keys
from buddy.app.reports import formatting
from buddy.app.reports.compilations import candidate_passes
from buddy.app.reports.text.search_hits import Pattern, matching_lines
from buddy.app.screens.picker import PickerChoice, PickerScreen
from buddy.app.session.stages import PassRow, StageKey, StageRow
from buddy.app.session.state import Topic
from buddy.app.widgets.look import Cell, Cells
from buddy.app.widgets.search import FoundLines
from buddy.app.widgets.table import Column, cells_text
from buddy.app.widgets.textual_helpers import pane_bindings
from buddy.compiler.protocol import COMPILER_NAMES, PassInfo, Stage
from buddy.compiler.protocol.recipe import OptionValue, PassStep, Recipe

# The steps that are not passes of the recipe, each with its description.
BUILT_IN_STEPS = {
    "fx": "the captured graph, as PyTorch prints it",
    "graph": "the captured graph as a Buddy graph",
    "lower": "the nodes of the graph lowered to MLIR, {dialect} first",
    "translate": "the LLVM dialect translated to LLVM IR",
    "codegen": "LLVM IR compiled to machine code",
}
# The width of the column with the bars, in cells.
BAR_COLUMN_WIDTH = 16
# The minimum width of the pane, in cells, for a column with the options of passes.
MIN_WIDTH_FOR_OPTIONS = 76
# The ops on which MLIR passes can run.
ANCHORS = ("builtin.module", "func.func")


class PassesPane(TablePane[PassRow]):
    """A table of passes. The IR pane shows the stage of the row under the cursor.

    The field `stage` of a row is a `StageRow`. So the stage itself, with its text and its time, is `row.stage.stage`.
    """

    pane_id: ClassVar[PaneId] = "passes"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("passes")
    BORDER_TITLE = "Passes"
    sortable = False  # The rows are in the order of execution.

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.rows: list[PassRow] = []
        # The rows without folding. Their indices are the lines of a search.
        self._unfolded_rows: list[PassRow] = []
        # For each of `rows`, the index in `_unfolded_rows` of the first row that it stands for.
        self._first_lines: list[int] = []
        # Whether all disabled passes have rows of their own.
        self._shows_disabled = False
        # The keys (see `row_keys`) of the disabled passes that the user has unfolded.
        self._shown_passes: set[StageKey] = set()
        # Whether the cursor is where it was at the start: the user has not moved it yet.
        self._is_untouched = True
        # Whether the cursor goes to the first pass that changes something, as soon as such a pass has run.
        self._waits_for_change = False
        # Whether the stages are of a dump that prints each function separately.
        self._has_function_stages = False
        self._columns = self._make_columns()

    # ---- the table -----------------------------------------------------------------------------------------------

    def _make_columns(self) -> list[Column[PassRow]]:
        """Returns the columns. A dump has no options, and its column of times marks the passes that were run again."""
        name: Column[PassRow] = Column("pass", 0, lambda row: (self._shown_name(row), self._name_role(row)))
        time: Column[PassRow] = Column("time", 7, self._time_cell, right_aligned=True)
        first_columns = [
            Column("", 3, self._state_cell),
            Column("on", 6, lambda row: (self._anchor_text(row), "dim"), min_width=54),
        ]
        last_columns = [Column("ops", 11, self._change_cell, right_aligned=True, min_width=54)]
        if self._is_dump:
            return [*first_columns, name, replace(time, title=""), *last_columns]
        return [
            *first_columns,
            name,
            Column("options", 0, self._options_cell, min_width=MIN_WIDTH_FOR_OPTIONS),
            time,
            Column("", BAR_COLUMN_WIDTH, self._bar_cell, min_width=100),
            *last_columns,
        ]

    def _state_cell(self, row: PassRow) -> Cell:
        """The mark of a row: failed, off, not compiled or out of date, changed something, or changed nothing."""
        stage = row.stage.stage if row.stage else None
        problem = self.state.problems.get("compile")
        has_problem = problem is not None and row.number >= 0 and problem.step == row.number
        if has_problem or (stage and stage.state == "failed"):
            return ("[!]", "bad")
        if row.folded:
            return ("[ ]", "dim")
        if row.step is None and not self._is_dump:
            return ("", "dim")
        if row.step is not None and not row.step.enabled:
            return ("[ ]", "dim")
        if stage is None or (row.stage and row.stage.outdated_reason):
            return ("[~]", "stale")
        return ("[x]", "ok") if stage.changed else ("[=]", "dim")

    @property
    def _is_dump(self) -> bool:
        return self.workspace.recipe.is_dump

    def _anchor_text(self, row: PassRow) -> str:
        """The op that an MLIR pass runs on, `module` or `func`; for other passes their level, `graph` or `llvm`.

        In a dump, the function, if each function is printed separately; otherwise empty.
        """
        if row.step is None or self._is_dump:
            return row.stage.stage.anchor if self._has_function_stages and row.stage is not None else ""
        anchor = row.step.anchor.rpartition(".")[2]
        return anchor if row.step.level == "mlir" else row.step.level

    def _shown_name(self, row: PassRow) -> str:
        has_hint = row.folded and self.width < MIN_WIDTH_FOR_OPTIONS
        return f"{row.name}: {key_of('passes.toggle')} shows" if has_hint else row.name

    def _options_cell(self, row: PassRow) -> Cell:
        return (f"{key_of('passes.toggle')} shows them" if row.folded else _options_text(row.step), "dim")

    def _name_role(self, row: PassRow) -> str:
        """The role of the name of a row: faint for passes that are off or, in a dump, changed nothing."""
        if row.folded:
            return "faint"
        if self._is_dump:
            return "text" if row.stage is not None and row.stage.stage.changed else "faint"
        if row.step is None:
            return "accent"
        return "text" if row.step.enabled else "faint"

    def _time_cell(self, row: PassRow) -> Cell:
        """The time of a row, or `failed` or `off`; in a dump, `re-run` if the pass was run again."""
        if self._state_cell(row)[0] == "[!]":
            return ("failed", "bad")
        if row.folded:
            return ("", "faint")
        if row.step is not None and not row.step.enabled:
            return ("off", "faint")
        if self._is_dump:
            return ("re-run" if row.stage is not None and row.stage.stage.again else "", "accent")
        return (formatting.milliseconds(row.stage.stage.milliseconds) if row.stage else "", "dim")

    def _bar_cell(self, row: PassRow) -> Cell:
        """A bar for the time of a row, relative to the slowest row. Bars below half a cell are omitted."""
        slowest = max((other.stage.stage.milliseconds for other in self.rows if other.stage), default=0.0)
        if row.stage is None or slowest <= 0 or row.stage.stage.milliseconds < slowest / (2 * BAR_COLUMN_WIDTH):
            return ("", "dim")
        return (formatting.progress_bar(row.stage.stage.milliseconds / slowest, BAR_COLUMN_WIDTH, self.glyphs), "bar")

    def _change_cell(self, row: PassRow) -> Cell:
        if row.stage is None or (row.step is not None and not row.step.enabled):
            return ("", "dim")
        stage = row.stage.stage
        return (" ".join(filter(None, formatting.count_change(stage.added, stage.removed, self.glyphs))), "dim")

    def foot(self, width: int) -> list[Cells]:
        row = self.current
        if row is None:
            return []
        change_text, _ = self._change_cell(row)
        facts = (self._anchor_text(row), change_text, _options_text(row.step), self._summary(row))
        text = f" {self.glyphs.dot} ".join(filter(None, facts))
        return [[(" " + formatting.clip(text, width - 2, self.glyphs), "dim")]]

    def _summary(self, row: PassRow) -> str:
        """The description of a built-in step, of a phase of the backend, or of a pass; the names of folded passes."""
        if row.folded:
            return ", ".join(row.folded)
        if self._is_dump:
            return self._dump_summary(row.stage.stage) if row.stage else ""
        if row.step is None:
            recipe = self.workspace.recipe
            owner = COMPILER_NAMES.get(recipe.backend, recipe.backend)
            description = BUILT_IN_STEPS.get(row.name, f"{owner}'s phase {row.name}")
            return description.format(dialect=recipe.dialect)
        return next((info.summary for info in self.state.passes if info.name == row.name), "")

    def _dump_summary(self, stage: Stage) -> str:
        """The number of lines of a stage of a dump, and whether its pass has changed them or was run again."""
        if stage.state == "skipped":
            return "skipped: the text is that of the stage before"
        rerun_note = f" {self.glyphs.dot} run again by mlir-opt" if stage.again else ""
        return f"{formatting.count(stage.lines)} lines{'' if stage.changed else ' unchanged'}{rerun_note}"

    def empty(self, width: int) -> list[Cells]:
        return [[(" waiting for the engine", "dim")]]

    # ---- rows ----------------------------------------------------------------------------------------------------

    @property
    def current(self) -> PassRow | None:
        return self.rows[self.cursor] if self.cursor < len(self.rows) else None

    def update_from(self, topics: frozenset[Topic]) -> None:
        if "passes" in topics or "stages" in topics:
            self.refill()

    def refill(self) -> None:
        """Updates the rows from the recipe and its stages, and draws the table."""
        recipe, current = self.workspace.recipe, self.current
        self._columns = self._make_columns()
        rows = pass_rows(recipe, self.state.board.rows()) if self.workspace.is_loaded else []
        self._unfolded_rows = self.rows = rows
        self._has_function_stages = len({row.stage.stage.anchor for row in rows if row.stage is not None}) > 1
        if not self._shows_disabled:
            preset = next((preset.recipe for preset in self.state.presets if preset.name == recipe.preset), None)
            self.rows = fold_rows(rows, preset, self._is_dump, self._shown_passes)
        lines_of_rows = [max(1, len(row.folded)) for row in self.rows]
        self._first_lines = [0, *accumulate(lines_of_rows)][: len(self.rows)]
        if self._is_dump and current is not None and current.step is not None:
            self._restore_cursor(current.number, current.step.anchor)
        self.redraw_changed_lines()
        if self._waits_for_change:
            self.show_first_change()

    def _restore_cursor(self, number: int, anchor: str) -> None:
        """Moves the cursor to the nearest row of pass `number` of a dump, whose anchor is `anchor`.

        A re-run may have added or removed stages above the row.
        """
        rows_of_pass = [
            index
            for index, row in enumerate(self.rows)
            if row.step and (row.number, row.step.anchor) == (number, anchor)
        ]
        self.cursor = min(rows_of_pass, key=lambda index: abs(index - self.cursor), default=self.cursor)

    def toggle_disabled(self) -> None:
        """Gives each disabled pass a row of its own, or folds them again. The cursor stays on its pass."""
        current = self.current
        self._shows_disabled = any(row.folded for row in self.rows)
        self._shown_passes.clear()
        self.refill()
        if current is not None:
            name = current.folded[0] if current.folded else current.name
            rows = list(enumerate(self.rows))
            same_row = (index for index, row in rows if row.number == current.number and row.name == current.name)
            row_with_pass = (index for index, row in rows if name in (row.name, *row.folded))
            self.center(next(same_row, next(row_with_pass, self.cursor)))

    def unfold(self) -> None:
        """Gives the passes that are folded under the cursor rows of their own."""
        if self.current is not None and self.current.folded:
            self._unfold(self.cursor)

    def _unfold(self, row: int) -> None:
        """Gives the passes that are folded in `row` rows of their own."""
        first = self._first_lines[row]
        self._shown_passes |= set(row_keys(self._unfolded_rows)[first : first + len(self.rows[row].folded)])
        self.refill()

    def show_stage(self, stage: StageRow) -> None:
        """Moves the cursor to the row of a stage, without a `Moved` message."""
        rows = enumerate(self.rows)
        index = next((index for index, row in rows if row.stage and row.stage.key == stage.key), None)
        if index is not None:
            self.center(index, notify=False)

    def move_to_first_change(self) -> None:
        """Moves the cursor to the first pass that changes something, unless the cursor has been moved before."""
        if self._is_untouched:
            self._is_untouched = False
            self.show_first_change()

    def show_first_change(self) -> None:
        """Moves the cursor to the first pass that changes something: now, or as soon as such a pass has run."""
        rows = enumerate(self.rows)
        index = next((index for index, row in rows if row.step and row.stage and row.stage.stage.changed), None)
        self._waits_for_change = index is None
        if index is not None:
            self.center(index)

    def stop_waiting_for_change(self) -> None:
        """Leaves the cursor on its row when the first pass changes something."""
        self._waits_for_change = False

    def note_move(self) -> None:
        """Notes that the user has moved the cursor, so that `move_to_first_change` leaves it there."""
        self._is_untouched = self._waits_for_change = False

    # ---- search: its lines are the rows without folding ----------------------------------------------------------

    def line_of(self, row: int) -> int:
        return self._first_lines[row] if row < len(self._first_lines) else row

    def _row_of(self, line: int) -> int:
        """The row of a line, or the row in which it is folded."""
        return max(0, bisect_right(self._first_lines, line) - 1)

    def find_lines(self, pattern: Pattern) -> FoundLines | None:
        return FoundLines(matching_lines([cells_text(self._columns, row) for row in self._unfolded_rows], pattern))

    def preview_match(self, line: int) -> None:
        """Shows a pass, or the row in which it is folded: only `go_to_match` unfolds."""
        self.center(self._row_of(line), notify=False)

    def go_to_match(self, line: int) -> None:
        if self.rows[self._row_of(line)].folded:
            self._unfold(self._row_of(line))
        self.center(self._row_of(line))

    # ---- actions -------------------------------------------------------------------------------------------------

    def toggle_pass(self) -> None:
        """Disables or enables the pass under the cursor. If passes are folded there, unfolds them instead."""
        row = self.current
        self.unfold()
        if row is not None and row.step is not None:
            change = "off" if row.step.enabled else "on"
            self.context.edits.edit(self.workspace.recipe.toggled(row.number), f"{row.name} {change}")

    def delete(self) -> None:
        row = self.current
        if row is not None and row.step is not None:
            steps = list(self.workspace.recipe.steps)
            del steps[row.number]
            self._edit_steps(steps, f"{row.name} removed")

    def try_passes(self) -> None:
        """Runs the passes of the catalogue on the stage of the cursor's row, and inserts the chosen pass below it."""
        row = self.current
        if row is None or row.stage is None or row.stage.stage.language != "mlir":
            self.say("select an MLIR pass that has run, or `lower`")
            return
        from buddy.app.screens.tables import TrialsScreen

        recipe = self.workspace.recipe
        candidates = candidate_passes(recipe.steps, self.state.passes)
        screen = TrialsScreen(self.context.session, row.stage.stage.text, candidates, recipe.threads)
        self.app.push_screen(screen, self._insert_step)

    def _insert_step(self, step: PassStep | None) -> None:
        """Inserts below the cursor a pass that was tried, in the phase of the nearest pass above with a phase."""
        if step is None:
            return
        steps = list(self.workspace.recipe.steps)
        index = insertion_index(steps, self._step_index_above, step.level)
        phase = next((other.phase for other in reversed(steps[:index]) if other.level != "graph" and other.phase), "")
        steps.insert(index, msgspec.structs.replace(step, phase=phase))
        self._edit_steps(steps, f"{step.name} inserted")
        self._show_step(index)

    @property
    def _step_index_above(self) -> int:
        """The index in the recipe of the pass at or above the cursor; -1 if the cursor is above all passes."""
        numbers = [row.number for row in self.rows[: self.cursor + 1] if row.step is not None]
        return numbers[-1] if numbers else -1

    def details(self) -> None:
        """Shows details of the pass under the cursor: options, time, changed op counts, remarks about nodes."""
        from buddy.app.screens.detail import pass_screen

        if self.current is not None:
            remarks = [remark for remark in self.state.remarks if remark[0] == self.current.name]
            self.app.push_screen(pass_screen(self.current, self._summary(self.current), remarks, self.glyphs))

    def duplicate(self) -> None:
        """Inserts an enabled copy of the pass under the cursor below it."""
        row = self.current
        if row is not None and row.step is not None:
            steps = list(self.workspace.recipe.steps)
            steps.insert(row.number + 1, msgspec.structs.replace(row.step, enabled=True))
            self._edit_steps(steps, f"{row.name} duplicated")
            self._show_step(row.number + 1)

    def switch_anchor(self) -> None:
        """Switches the op on which the pass under the cursor runs between module and function."""
        row = self.current
        if row is None or row.step is None:
            return
        info = next((entry for entry in self.state.passes if entry.name == row.name), None)
        if row.step.level != "mlir" or (info is not None and info.ours):
            self.say(f"{row.name} runs only on {row.step.anchor or 'the graph'}")
            return
        index = ANCHORS.index(row.step.anchor) + 1 if row.step.anchor in ANCHORS else 0
        anchor = ANCHORS[index % len(ANCHORS)]
        self.context.edits.edit(self.workspace.recipe.with_step(row.number, anchor=anchor), f"{row.name} on {anchor}")

    def move_step_down(self) -> None:
        self._move_step(1)

    def move_step_up(self) -> None:
        self._move_step(-1)

    def _move_step(self, by: int) -> None:
        """Exchanges the pass under the cursor with the pass that is `by` passes below it (above it if negative)."""
        row = self.current
        if row is None or row.step is None:
            return
        steps = list(self.workspace.recipe.steps)
        target = row.number + by
        if not 0 <= target < len(steps) or (steps[target].level == "graph") != (row.step.level == "graph"):
            self.say(f"{row.name} cannot move further: graph passes stay before `lower`, and the other passes after it")
            return
        steps[row.number], steps[target] = steps[target], steps[row.number]
        self._edit_steps(steps, f"{row.name} moved", merge_key=f"move {row.name}")
        self._show_step(target)

    def insert(self) -> None:
        """Lists the passes of the catalogue, and inserts the chosen one below the cursor."""
        choices = [PickerChoice(info.name, info.summary, info) for info in self.state.passes]
        self.app.push_screen(PickerScreen("Insert a pass", choices), self._insert_pass)

    def _insert_pass(self, info: PassInfo | None) -> None:
        """Inserts a pass of the catalogue below the cursor, with its default options."""
        if info is None:
            return
        steps = list(self.workspace.recipe.steps)
        index = insertion_index(steps, self._step_index_above, info.level)
        steps.insert(index, new_step(info, steps, index))
        self._edit_steps(steps, f"{info.name} inserted")
        self._show_step(index)

    def edit_options(self) -> None:
        row = self.current
        if row is None or row.step is None:
            return
        info = next((entry for entry in self.state.passes if entry.name == row.name), None)
        if info is None or not info.options:
            self.say(f"{row.name} has no options")
            return
        from buddy.app.screens.pass_options import OptionScreen

        self.app.push_screen(OptionScreen(info, row.step), lambda options: self._set_options(row, options))

    def _set_options(self, row: PassRow, options: tuple[tuple[str, OptionValue], ...] | None) -> None:
        if options is not None:
            self.context.edits.edit(
                self.workspace.recipe.with_step(row.number, options=options), f"options of {row.name}"
            )

    def choose_preset(self) -> None:
        """Lists the presets, and replaces the recipe by the chosen one."""
        current = self.workspace.recipe.preset
        choices = [
            PickerChoice(preset.name, preset.summary, preset.recipe, marked=preset.name == current)
            for preset in self.state.presets
        ]
        self.app.push_screen(PickerScreen("Start from a preset", choices), self._use_preset)

    def _use_preset(self, preset: Recipe | None) -> None:
        if preset is not None:
            self.context.edits.edit(self.workspace.with_steps_of(preset), f"preset {preset.preset}")

    def _edit_steps(self, steps: list[PassStep], title: str, merge_key: str = "") -> None:
        """Replaces the passes of the recipe. `RecipeEditor.edit` describes `title` and `merge_key`."""
        self.context.edits.edit(msgspec.structs.replace(self.workspace.recipe, steps=tuple(steps)), title, merge_key)

    def _show_step(self, index: int) -> None:
        """Moves the cursor to the row of pass `index` of the recipe. Unfolds all passes if it is folded."""
        self.refill()
        numbers = [row.number for row in self.rows]
        if index not in numbers and not self._shows_disabled:
            self.toggle_disabled()
            numbers = [row.number for row in self.rows]
        self.center(numbers.index(index) if index in numbers else self.cursor)

    def text_to_copy(self) -> str:
        row = self.current
        if row is None:
            return ""
        return row.step.spelling() if row.step else row.name


def _options_text(step: PassStep | None) -> str:
    return " ".join(f"{key}={value}" for key, value in step.options) if step else ""
