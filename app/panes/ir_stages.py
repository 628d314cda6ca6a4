"""The stages of the IR pane: the chosen stage, the form in which stages are printed, phases and their tabs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from rich.cells import cell_len

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrView
from buddy.app.reports import formatting
from buddy.app.session.stages import StageKey, StageRow, phase_of
from buddy.app.session.state import MAX_CACHED_FORMS, keep_newest
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import Stage

# ---- tabs of phases --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PhaseTab:
    """The tab of a phase. `number` counts from 1. `mark` is `!` if a pass failed, `~` if the text is out of date.

    `has_content` is false for a phase without IR. `role`, if not empty, colours the tab while it is inactive.
    """

    name: str
    number: int
    mark: str = ""
    has_content: bool = True
    role: str = ""

    @property
    def key(self) -> str:
        """The digit key of the phase; `-` beyond the tenth."""
        return str(self.number % 10) if self.number <= 10 else "-"


def tab_labels(tabs: Sequence[PhaseTab], active: str, width: int) -> list[str]:
    """Returns one label per tab, at most `width` columns in total if possible. `active` is the name of a tab.

    If necessary, tabs lose their names, the tabs that are farthest from the active one first.
    """
    active_index = next((index for index, tab in enumerate(tabs) if tab.name == active), 0)
    farthest_first = sorted(range(len(tabs)), key=lambda index: abs(index - active_index), reverse=True)
    labels = [_label(tab, active=index == active_index) for index, tab in enumerate(tabs)]
    for index in farthest_first[:-1]:
        if sum(map(cell_len, labels)) <= width:
            break
        labels[index] = _label(tabs[index], with_name=False)
    return labels


def tab_cells(tabs: Sequence[PhaseTab], active: str, width: int) -> Cells:
    """Returns the labels of the tabs with their roles. The parameters are those of `tab_labels`."""
    labels = tab_labels(tabs, active, width)
    return [(label, tab_role(tab, active=tab.name == active)) for tab, label in zip(tabs, labels, strict=True)]


def tab_at(tabs: Sequence[PhaseTab], active: str, width: int, x: int) -> PhaseTab | None:
    """Returns the tab that is drawn at column `x`, `None` beyond the last tab."""
    end = 0
    for tab, label in zip(tabs, tab_labels(tabs, active, width), strict=True):
        end += cell_len(label)
        if x < end:
            return tab
    return None


def _label(tab: PhaseTab, *, active: bool = False, with_name: bool = True) -> str:
    """Returns the key, the name and the mark of a tab; in brackets if it is active."""
    text = f"{tab.key} {tab.name}{tab.mark}" if with_name else f"{tab.key}{tab.mark}"
    return f"[{text}]" if active else f" {text} "


def tab_role(tab: PhaseTab, *, active: bool) -> str:
    if active:
        return "tab-active"
    if tab.role:
        return tab.role
    if tab.mark == "!":
        return "bad"
    return "tab" if tab.has_content else "faint"


# ---- stages ----------------------------------------------------------------------------------------------------------


class IrStages:
    """The stages of the current graph, and the chosen one, which the IR pane shows.

    `chosen_key` is the key of the chosen stage. An expected stage, such as the last one of a restored session, is
    chosen as soon as it exists. `is_default` is true as long as the user has chosen no stage. With `generic`, MLIR
    stages have the text of their generic form, after `print_generic` has requested it.
    """

    def __init__(self, context: WorkbenchContext, view: IrView) -> None:
        self._context, self._view = context, view
        self.rows: list[StageRow] = []
        self._by_phase = _RowsByPhase([])
        self.chosen_key: StageKey | None = None
        self.generic = self.is_default = False
        self._expected: StageKey | None = None
        # The chosen stage that an edit has removed. If it comes back, as after an undo, it is chosen again.
        self._removed: StageKey | None = None
        # The phase of the stage that was chosen last.
        self._phase = ""
        # The generic form of texts: by the name of a text, the name and the number of lines of the generic text.
        self._generic_forms: dict[str, tuple[str, int]] = {}

    # ---- the chosen stage ----------------------------------------------------------------------------------------

    @property
    def chosen_row(self) -> StageRow | None:
        """The chosen stage."""
        return self.find(self.chosen_key)

    @property
    def chosen_stage(self) -> Stage | None:
        row = self.chosen_row
        return row.stage if row else None

    @property
    def expected_key(self) -> StageKey | None:
        """The key of the expected stage, or of the chosen stage if no other stage is expected."""
        return self._expected or self.chosen_key

    @property
    def index(self) -> int:
        """The index of the chosen stage, -1 for none."""
        return next((index for index, row in enumerate(self.rows) if row.key == self.chosen_key), -1)

    def find(self, key: StageKey | None) -> StageRow | None:
        """The stage with that key, `None` without one."""
        return next((row for row in self.rows if row.key == key), None)

    def expect(self, key: StageKey) -> None:
        """Chooses the stage with that key when it is available."""
        self._expected = key

    def choose(self, row: StageRow) -> None:
        self._expected, self._removed, self.chosen_key = None, None, row.key
        self.is_default = False
        self._remember_phase()

    def leave_graph(self) -> None:
        """Before another graph is shown, forgets the chosen stage, and expects the stage with its key in that graph."""
        self._expected, self._removed, self.chosen_key = self.expected_key, None, None
        self._generic_forms.clear()

    def update(self) -> StageRow | None:
        """Reads the stages of the compilation, and chooses one if necessary.

        - If no stage was chosen, chooses the last stage of the first phase with MLIR.
        - If the chosen stage no longer exists, chooses the stage before it, or the last one of its phase, until the
          stage comes back or the user chooses another.
        - If a log is followed, and its last stage was chosen, chooses the new last one.

        Returns the stage that is chosen now if it was expected, if it has come back, or if no stage was chosen before;
        otherwise `None`.
        """
        index = self.index
        follows_end = self._context.session.follows_file and 0 <= index == len(self.rows) - 1
        self.update_rows()
        if follows_end and len(self.rows) > index + 1:
            self._expected = self.rows[-1].key
        opened = self.find(self._expected) or self.find(self._removed)
        if opened is not None:
            self.is_default &= self._expected is None
            self.chosen_key, self._expected, self._removed = opened.key, None, None
        if self.chosen_row is None:
            self._removed = self._removed or self.chosen_key
            substitute = self._substitute(index - 1)
            opened = substitute if self.chosen_key is None else None
            self.is_default |= opened is not None
            self.chosen_key = substitute.key if substitute else None
        self._remember_phase()
        return opened

    def _remember_phase(self) -> None:
        """Remembers the phase of the chosen stage, in case the stage disappears."""
        if self.chosen_row is not None:
            self._phase = self.phase

    def _substitute(self, index: int) -> StageRow | None:
        """The stage that replaces the chosen one: stage `index` if its phase is `_phase`, else the end of `_phase`.

        If that phase has no stages: the end of the first phase with MLIR or, for a compiler without MLIR, with Python
        code. In a dump, before any stage was chosen: the first stage, or the last one of a log that is followed.
        """
        if 0 <= index < len(self.rows) and phase_of(self.rows, index) == self._phase:
            return self.rows[index]
        if self._context.workspace.recipe.is_dump and self.rows and not self._phase:
            return self.rows[-1 if self._context.session.follows_file else 0]
        if (end := self.end_of(self._phase)) is not None:
            return end
        languages = ("mlir", "python")
        first = next((number for number, row in enumerate(self.rows) if row.stage.language in languages), -1)
        return self.end_of(phase_of(self.rows, first)) if first >= 0 else None

    # ---- phases --------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """The phase of the chosen stage, or, without one, of the stage that was chosen last."""
        index = self.index
        return phase_of(self.rows, index) if index >= 0 else self._phase

    def end_of(self, phase: str) -> StageRow | None:
        """The first failed stage of a phase, or its last stage if none has failed; `None` for an empty phase."""
        rows = self._rows_by_phase.rows.get(phase, [])
        return next((row for row in rows if row.stage.state == "failed"), rows[-1] if rows else None)

    def position_text(self) -> str:
        """The position of the chosen stage in its phase: `2/7`; empty without a chosen stage."""
        number = self._rows_by_phase.numbers.get(self.chosen_key) if self.chosen_key is not None else None
        return f"{number}/{len(self._rows_by_phase.rows[self.phase])}" if number is not None else ""

    @property
    def _rows_by_phase(self) -> _RowsByPhase:
        """The rows by phase. Grouped again only when the stages change, because a dump has thousands."""
        if self._by_phase.source_rows is not self.rows:
            self._by_phase = _RowsByPhase(self.rows)
        return self._by_phase

    def tabs(self) -> list[PhaseTab]:
        """The tabs of the recipe's phases, including those without stages, then of other phases that stages have."""
        names = [name for name, _ in self._context.state.phases(self._context.workspace.recipe)]
        marks = self._rows_by_phase.marks
        names += [name for name in marks if name not in names]
        return [
            PhaseTab(name, number, marks.get(name, ""), has_content=name in marks)
            for number, name in enumerate(names, 1)
        ]

    def problem_cells(self) -> Cells:
        """The badge of the chosen stage: failed, out of date, or unchanged by its pass; empty for other stages."""
        row = self.chosen_row
        if row is None:
            return []
        if row.stage.state == "failed":
            return [(" FAILED ", "bad")]
        if row.outdated_reason:
            return [(f" STALE: {row.outdated_reason} ", "stale")]
        return [] if row.stage.changed else [(" changed nothing ", "dim")]

    def cost_texts(self) -> list[str]:
        """The time of the pass, and the ops that it added and removed."""
        stage = self.chosen_stage
        if stage is None:
            return []
        changes = formatting.count_change(stage.added, stage.removed, self._context.glyphs)
        # A dump does not say how long its passes took.
        is_dump = self._context.workspace.recipe.is_dump
        times = [] if is_dump else [formatting.milliseconds(stage.milliseconds)]
        return [*times, " ".join(filter(None, changes))]

    # ---- actions -------------------------------------------------------------------------------------------------

    def previous(self) -> None:
        self._move_by(-1, only_changed=False)

    def next(self) -> None:
        self._move_by(1, only_changed=False)

    def previous_changed(self) -> None:
        """Shows the nearest earlier stage whose pass changed the IR."""
        self._move_by(-1, only_changed=True)

    def next_changed(self) -> None:
        """Shows the nearest later stage whose pass changed the IR."""
        self._move_by(1, only_changed=True)

    def _move_by(self, step: Literal[-1, 1], *, only_changed: bool) -> None:
        """Shows the next or the previous stage; with `only_changed`, skips the stages of passes without effect."""
        index = self.index + step
        while 0 <= index < len(self.rows) and only_changed and not self.rows[index].stage.changed:
            index += step
        if 0 <= index < len(self.rows):
            self._view.choose(self.rows[index])
        else:
            direction, end = ("earlier", "first") if step < 0 else ("later", "last")
            self._context.say(f"no {direction} pass changed the IR" if only_changed else f"this is the {end} stage")

    def show_phase(self, number: int) -> None:
        """Shows the last or the failed stage of phase `number`, counted from 1."""
        tabs = self.tabs()
        if number > len(tabs):
            self._context.say(f"there are only {len(tabs)} phases")
            return
        self.show_phase_named(tabs[number - 1].name)

    def show_phase_named(self, name: str) -> None:
        """Shows the last or the failed stage of a phase."""
        row = self.end_of(name)
        if row is None:
            self._context.say(f"no IR in phase {name} yet")
        else:
            self._view.choose(row)

    def show_failure(self) -> None:
        row = next((row for row in self.rows if row.stage.state == "failed"), None)
        if row is not None:
            self._view.choose(row)

    def toggle_generic(self) -> None:
        """Switches between MLIR's generic form and the custom assembly format."""
        self.generic = not self.generic
        self.update_rows()
        self._view.open_stage()
        if not self.generic:
            self._context.say("custom assembly format")

    # ---- generic form --------------------------------------------------------------------------------------------

    def update_rows(self) -> None:
        """Sets `rows` to the stages of the compilation, in the chosen form."""
        rows = self._context.state.board.rows()
        self.rows = [row._replace(stage=self.in_chosen_form(row.stage)) for row in rows] if self.generic else rows

    def in_chosen_form(self, stage: Stage) -> Stage:
        """The stage in the chosen form, if the text in that form is available; otherwise, the stage itself."""
        form = self._generic_forms.get(stage.text) if self.generic else None
        return msgspec.structs.replace(stage, text=form[0], lines=form[1]) if form else stage

    def texts_to_print(self, *stages: Stage | None) -> list[str]:
        """The texts that must be printed in the generic form before these stages can be shown in the chosen form."""
        if not self.generic:
            return []
        generic_texts = {text for text, _ in self._generic_forms.values()}
        texts = [stage.text for stage in stages if stage is not None and stage.language == "mlir"]
        return [text for text in texts if text not in generic_texts]

    async def print_generic(self, texts: Iterable[str]) -> None:
        """Prints texts in the generic form. If a request fails, switches back to the custom assembly format."""
        for text in texts:
            answer = await self._context.queries.reprint(text)
            if answer is None:
                self.generic = False
                break
            self._generic_forms[text] = (answer.form, answer.lines)
            keep_newest(self._generic_forms, MAX_CACHED_FORMS)
        self.update_rows()


class _RowsByPhase:
    """The rows of each phase, the number of each row in its phase (from 1), and the mark of each phase's tab."""

    def __init__(self, rows: list[StageRow]) -> None:
        self.source_rows = rows
        self.rows: dict[str, list[StageRow]] = {}
        self.numbers: dict[StageKey, int] = {}
        phase = ""
        for row in rows:
            phase = row.stage.phase or phase
            phase_rows = self.rows.setdefault(phase, [])
            phase_rows.append(row)
            self.numbers[row.key] = len(phase_rows)
        self.marks = {name: _tab_mark(phase_rows) for name, phase_rows in self.rows.items()}


def _tab_mark(rows: list[StageRow]) -> str:
    """Returns `!` for a phase with a failed stage, `~` if its last stage is out of date, else an empty string."""
    if any(row.stage.state == "failed" for row in rows):
        return "!"
    return "~" if rows and rows[-1].outdated_reason else ""
