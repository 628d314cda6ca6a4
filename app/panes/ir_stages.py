"""The stages of the IR pane: which one is chosen, its phase, and the form in which it is printed."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_document import IrView
from buddy.app.panes.layout import PhaseTab
from buddy.app.reports import formatting
from buddy.app.session.stages import Key, StageRow, phase_of
from buddy.app.session.state import MAX_CACHED_FORMS, keep_newest
from buddy.app.widgets.look import Cells
from buddy.compiler.protocol import Stage


class IrStages:
    """The stages of the shown graph. `key` is the key of the chosen stage.

    With `generic`, an MLIR stage has the text of its generic form once `print_generic` has requested it.
    """

    def __init__(self, context: WorkbenchContext, view: IrView) -> None:
        self._context, self._view = context, view
        self.rows: list[StageRow] = []
        self.key: Key | None = None
        self.generic = False
        self._expected: Key | None = None
        self._phase = ""
        self._forms: dict[str, tuple[str, int]] = {}

    # ---- the chosen stage ----------------------------------------------------------------------------------------

    @property
    def shown(self) -> StageRow | None:
        """The chosen stage."""
        return self.find(self.key)

    @property
    def stage(self) -> Stage | None:
        """The chosen stage, without its key."""
        row = self.shown
        return row.stage if row else None

    @property
    def expected_key(self) -> Key | None:
        """The key of the stage that is shown, or that will be shown when it is available."""
        return self._expected or self.key

    @property
    def index(self) -> int:
        """The index of the chosen stage, -1 for none."""
        return next((k for k, row in enumerate(self.rows) if row.key == self.key), -1)

    def find(self, key: Key | None) -> StageRow | None:
        """The stage with that key."""
        return next((row for row in self.rows if row.key == key), None)

    def expect(self, key: Key) -> None:
        """Choose the stage with that key when it is available."""
        self._expected = key

    def choose(self, row: StageRow) -> None:
        self._expected, self.key = None, row.key
        self._note_phase()

    def leave_graph(self) -> None:
        """Clear the stages before another graph is shown, which is opened at the same stage."""
        self._expected, self.key = self.expected_key, None
        self._forms.clear()

    def update(self) -> StageRow | None:
        """Read the stages of the compilation. Returns the stage that was opened, if that is another one.

        If the chosen stage no longer exists, chooses the stage before it, or the last of its phase; at first, the last
        stage of the first phase with MLIR.
        """
        index = self.index
        self.read_board()
        opened = self.find(self._expected)
        if opened is not None:
            self.key, self._expected = opened.key, None
        if self.shown is None:
            other = self._substitute(index - 1)
            opened = other if self.key is None else None
            self.key = other.key if other else None
        self._note_phase()
        return opened

    def _note_phase(self) -> None:
        if self.shown is not None:
            self._phase = self.phase

    def _substitute(self, before: int) -> StageRow | None:
        if 0 <= before < len(self.rows) and phase_of(self.rows, before) == self._phase:
            return self.rows[before]
        first = next((k for k, row in enumerate(self.rows) if row.stage.language == "mlir"), -1)
        return self.end_of(self._phase) or (self.end_of(phase_of(self.rows, first)) if first >= 0 else None)

    # ---- phases --------------------------------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """The phase of the chosen stage."""
        index = self.index
        return phase_of(self.rows, index) if index >= 0 else self._phase

    def end_of(self, phase: str) -> StageRow | None:
        """The failed stage of a phase, else its last stage."""
        inside = [row for k, row in enumerate(self.rows) if phase_of(self.rows, k) == phase]
        return next((row for row in inside if row.stage.state == "failed"), inside[-1] if inside else None)

    def position_text(self) -> str:
        """The position of the chosen stage in its phase: `2/7`."""
        inside = [row.key for k, row in enumerate(self.rows) if phase_of(self.rows, k) == self.phase]
        return f"{inside.index(self.key) + 1}/{len(inside)}" if self.key in inside else ""

    def tabs(self) -> list[PhaseTab]:
        """The phases of the preset, then any other phases of stages."""
        names = [name for name, _ in self._context.state.phases(self._context.workspace.recipe)]
        inside: dict[str, list[StageRow]] = {}
        for k, row in enumerate(self.rows):
            inside.setdefault(phase_of(self.rows, k), []).append(row)
        names += [name for name in inside if name not in names]
        return [PhaseTab(name, k + 1, _mark(inside.get(name, [])), name in inside) for k, name in enumerate(names)]

    def problem_cells(self) -> Cells:
        """The badge of the chosen stage: failed, outdated, or unchanged by its pass."""
        row = self.shown
        if row is None:
            return []
        if row.stage.state == "failed":
            return [(" FAILED ", "bad")]
        if row.outdated_reason:
            return [(f" STALE: {row.outdated_reason} ", "stale")]
        return [] if row.stage.changed else [(" changed nothing ", "dim")]

    def cost_texts(self) -> list[str]:
        """The time of the pass, and the ops that it added and removed."""
        stage = self.stage
        if stage is None:
            return []
        changes = formatting.op_count_change(stage.added, stage.removed, self._context.glyphs)
        return [formatting.milliseconds(stage.milliseconds), " ".join(filter(None, changes))]

    # ---- actions -------------------------------------------------------------------------------------------------

    def previous(self) -> None:
        """Show the stage one pass earlier."""
        self._step(-1, changed=False)

    def next(self) -> None:
        """Show the stage one pass later."""
        self._step(1, changed=False)

    def previous_changed(self) -> None:
        """Show the nearest earlier stage that its pass changed."""
        self._step(-1, changed=True)

    def next_changed(self) -> None:
        """Show the nearest later stage that its pass changed."""
        self._step(1, changed=True)

    def _step(self, by: int, *, changed: bool) -> None:
        index = self.index + by
        while 0 <= index < len(self.rows) and changed and not self.rows[index].stage.changed:
            index += by
        if 0 <= index < len(self.rows):
            self._view.choose(self.rows[index])
        else:
            self._context.say("this is the " + ("first" if by < 0 else "last") + " snapshot")

    def show_phase(self, number: int) -> None:
        """Show the end of phase `number`, counted from 1."""
        tabs = self.tabs()
        if number > len(tabs):
            self._context.say(f"there are {len(tabs)} phases")
            return
        self.show_phase_named(tabs[number - 1].name)

    def show_phase_named(self, name: str) -> None:
        """Show the end of a phase."""
        row = self.end_of(name)
        if row is None:
            self._context.say(f"no IR in phase {name} yet")
        else:
            self._view.choose(row)

    def show_failure(self) -> None:
        """Show the stage whose pass failed."""
        row = next((row for row in self.rows if row.stage.state == "failed"), None)
        if row is not None:
            self._view.choose(row)

    def toggle_generic(self) -> None:
        """Switch between MLIR's generic form and the custom assembly format."""
        self.generic = not self.generic
        self.read_board()
        self._view.open_stage()
        if not self.generic:
            self._context.say("the custom assembly format")

    # ---- generic form --------------------------------------------------------------------------------------------

    def read_board(self) -> None:
        """Read the stages of the compilation, in the chosen form."""
        self.rows = [row._replace(stage=self.in_chosen_form(row.stage)) for row in self._context.state.board.rows()]

    def in_chosen_form(self, stage: Stage) -> Stage:
        """The stage in the chosen form, if that is printed."""
        form = self._forms.get(stage.text) if self.generic else None
        return msgspec.structs.replace(stage, text=form[0], lines=form[1]) if form else stage

    def texts_to_print(self, *stages: Stage | None) -> list[str]:
        """The texts of these stages that are not in the chosen form yet."""
        if not self.generic:
            return []
        printed = {text for text, _ in self._forms.values()}
        texts = [stage.text for stage in stages if stage is not None and stage.language == "mlir"]
        return [text for text in texts if text not in printed]

    async def print_generic(self, texts: Iterable[str]) -> None:
        """Print texts in the generic form. If that fails, return to the custom assembly format."""
        for text in texts:
            made = await self._context.queries.reprint(text)
            if made is None:
                self.generic = False
                break
            self._forms[text] = (made.form, made.lines)
            keep_newest(self._forms, MAX_CACHED_FORMS)
        self.read_board()


def _mark(rows: list[StageRow]) -> str:
    if any(row.stage.state == "failed" for row in rows):
        return "!"
    return "~" if rows and rows[-1].outdated_reason else ""
