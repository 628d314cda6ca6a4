"""The IR pane: a tab for each phase, every pass's snapshot in it, of which only the lines on the screen are fetched."""

from __future__ import annotations

from typing import ClassVar

from textual import events, work
from textual.binding import BindingType
from textual.message import Message
from textual.strip import Strip

from buddy.app.actions import Pane as PaneId
from buddy.app.panes.assembly import Assembly
from buddy.app.panes.comparison import View
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.report import diagnostic_lines
from buddy.app.panes.tabs import PhaseTab, tab_at, tab_cells
from buddy.app.reports import formatting
from buddy.app.reports.text.differences import DiffRows
from buddy.app.reports.text.folds import Folds
from buddy.app.reports.waiting import waiting_text
from buddy.app.session.stages import Key, StageRow, phase_of
from buddy.app.session.state import Topic
from buddy.app.widgets.bindings import pane_bindings
from buddy.app.widgets.look import Cells, align_both_ends, length

SIDEWAYS = 16


class IrPane(Assembly):
    """Shows one stage: `key` names the one asked for, `text` what is drawn, which follows once its lines are there.

    Rows are lines, or, where the stage is compared with another, rows of the diff; places are kept as lines.
    """

    class StageShown(Message):
        """Another stage is on the screen."""

        def __init__(self, row: StageRow) -> None:
            super().__init__()
            self.row = row

    pane_id: ClassVar[PaneId] = "ir"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("ir")
    BORDER_TITLE = "IR"

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self._phase = ""
        self._drawn: Key | None = None
        self._wanted: Key | None = None
        self._asked: tuple[Key, View] | None = None
        self._places: dict[Key, tuple[int, int]] = {}
        self._marked: set[int] = set()

    # ---- which stage ---------------------------------------------------------------------------------------------

    @property
    def shown(self) -> StageRow | None:
        """The chosen stage."""
        return next((row for row in self.rows if row.key == self.key), None)

    @property
    def coming(self) -> Key | None:
        """The key of the stage that is shown, or will be as soon as there is one."""
        return self._wanted or self.key

    @property
    def phase(self) -> str:
        """The phase whose tab is open."""
        index = self._index
        return phase_of(self.rows, index) if index >= 0 else self._phase

    @property
    def _index(self) -> int:
        return next((k for k, row in enumerate(self.rows) if row.key == self.key), -1)

    def update_from(self, topics: frozenset[Topic]) -> None:
        if "stages" not in topics:
            return
        place = self._index
        self.form_rows()
        wanted = next((row for row in self.rows if row.key == self._wanted), None)
        if wanted is not None:
            self.key, self._wanted = wanted.key, None
            self.post_message(self.StageShown(wanted))
        if self.shown is None:
            self._choose_another(place - 1)
        self.open_stage()

    def _choose_another(self, before: int) -> None:
        """The chosen stage is gone: the one before it, else the end of its phase. At first, the first MLIR there is."""
        first = next((k for k, row in enumerate(self.rows) if row.stage.language == "mlir"), -1)
        if 0 <= before < len(self.rows) and phase_of(self.rows, before) == self._phase:
            other: StageRow | None = self.rows[before]
        else:
            other = self._end_of(self._phase) or (self._end_of(phase_of(self.rows, first)) if first >= 0 else None)
        if other is not None and self.key is None:
            self.post_message(self.StageShown(other))
        self.key = other.key if other else None

    def _end_of(self, phase: str) -> StageRow | None:
        inside = [row for k, row in enumerate(self.rows) if phase_of(self.rows, k) == phase]
        failed = next((row for row in inside if row.stage.state == "failed"), None)
        return failed or (inside[-1] if inside else None)

    def go_place(self, row: StageRow, line: int) -> None:
        self._leave()
        self._places[row.key] = (line, self.page // 2)
        self._wanted, self.key = None, row.key
        # Drawn anew even where the text on the screen is the same one: the line is another.
        self._drawn, self._view = None, View("")
        self.open_stage()
        self.post_message(self.StageShown(row))

    def leave_graph(self) -> None:
        """Forget the text and the places in it: another graph's come, at the same stage as soon as there is one."""
        self._wanted = self._wanted or self.key
        self._places.clear()
        self.forget_reading()
        self.key = self._drawn = None
        self._view, self._asked = View(""), None
        self.rows_changed()

    def expect(self, key: Key) -> None:
        """Show the stage of that key as soon as there is one."""
        self._wanted = key

    def choose(self, row: StageRow, *, tell: bool = True) -> None:
        """Show the stage of `row`."""
        self._wanted = None
        if row.key != self.key:
            self._leave()
        self.key = row.key
        self.open_stage()
        if tell:
            self.post_message(self.StageShown(row))

    def _leave(self) -> None:
        if self.key is not None:
            self._places[self.key] = (self.line_number, self.cursor - self.first_row)

    def open_stage(self) -> None:
        """Bring the chosen stage's lines, then draw them."""
        row = self.shown
        if row is None:
            return
        self._phase = self.phase
        if self.lacks_form(row):
            self.bring_form(row)
            return
        wanted = (row.key, self.view_of(row))
        if wanted[1] != self._view and wanted != self._asked:
            self._asked = wanted
            self._bring(row)
        if len(self.foot(self.width)) != self._foot_height or not self._head_height:
            self.rows_changed()
        self.refresh_edges()

    @work(exclusive=True, group="open")
    async def _bring(self, row: StageRow) -> None:
        wanted = (row.key, self.view_of(row))
        other = self.other_of(row)
        try:
            diff = await self.compared(row, other)
            folds = await self.folds_of(row.stage) if diff is None else Folds(row.stage.lines)
            cursor, top = await self._place_in(row, diff, folds)
            if await self.load_rows(row.stage, other, diff, folds, top) and self.key == row.key:
                self.document.show(row.stage, diff, other, folds)
                self._view = wanted[1]
                self._draw(row, cursor, top)
        finally:
            if self._asked == wanted:
                self._asked = None
        if self.key == row.key and self.view_of(row) != wanted[1]:
            self.open_stage()

    async def _place_in(self, row: StageRow, diff: DiffRows | None, folds: Folds) -> tuple[int, int]:
        """Where the cursor and the screen's first row are to be: where they were, else at the node or a change."""
        line, offset = self._places.get(row.key, (-1, 0))
        if row.key == self._drawn:
            line, offset = self.line_number, self.cursor - self.first_row
        if line < 0 and diff is None:
            found = folds.row_of(max(0, await self._find_node(row.stage.text)))
            return found, self._centered(found)
        line = max(0, min(line, row.stage.lines - 1))
        if diff is None:
            return folds.row_of(line), max(0, folds.row_of(line) - offset)
        cursor = diff.row_of(line) if diff.count and line < row.stage.lines else 0
        if diff.changes and diff.row(cursor).kind == "fold":
            cursor = diff.change_after(cursor) or 0
            return cursor, self._centered(cursor)
        return cursor, max(0, cursor - offset)

    def _centered(self, row: int) -> int:
        return 0 if row < self.page else row - self.page // 2

    def _draw(self, row: StageRow, cursor: int, top: int) -> None:
        self._drawn = row.key
        self.matches.clear()
        self.cursor = 0
        self.rows_changed()
        self.scroll_to(y=top, animate=False, force=True)
        self.center(cursor, tell=False)
        self.mark_value()
        self.name_types()
        self.context.status.redraw()
        if self.matches.pattern.source:
            self.find(self.matches.pattern, jump=False)

    # ---- drawing -------------------------------------------------------------------------------------------------

    def tabs(self) -> list[PhaseTab]:
        """The phases of the preset, then any others that stages are in."""
        names = [name for name, _ in self.state.phases(self.workspace.recipe)]
        inside: dict[str, list[StageRow]] = {}
        for k, row in enumerate(self.rows):
            inside.setdefault(phase_of(self.rows, k), []).append(row)
        names += [name for name in inside if name not in names]
        return [PhaseTab(name, k + 1, _mark(inside.get(name, [])), name in inside) for k, name in enumerate(names)]

    def head(self, width: int) -> list[Cells]:
        return [tab_cells(self.tabs(), self.phase, width), self._stage_line(width)]

    def _stage_line(self, width: int) -> Cells:
        row = self.shown
        if row is None:
            return []
        stage, glyphs = row.stage, self.glyphs
        inside = [other.key for k, other in enumerate(self.rows) if phase_of(self.rows, k) == self.phase]
        parts = [
            *self.reading_parts(),
            *self.diff_parts(),
            f"{inside.index(row.key) + 1}/{len(inside)}" if row.key in inside else "",
            formatting.milliseconds(stage.milliseconds),
            " ".join(filter(None, formatting.op_count_change(stage.added, stage.removed, glyphs))),
            f"line {formatting.count(self.line_number + 1)} of {formatting.count(stage.lines)}",
        ]
        left: Cells = [(" ", "text"), (stage.name, "title"), ("  ", "text")]
        right = [*self.diff_state(), *self._stage_state(row)]
        room = width - length(left) - length(right) - 1
        left.append((formatting.join_fitting([part for part in parts if part], f" {glyphs.dot} ", room), "dim"))
        return align_both_ends(left, right, width)

    def _stage_state(self, row: StageRow) -> Cells:
        if row.stage.state == "failed":
            return [(" FAILED ", "bad")]
        if row.stale:
            return [(f" STALE: {row.stale} ", "stale")]
        return [] if row.stage.changed else [(" changed nothing ", "dim")]

    def foot(self, width: int) -> list[Cells]:
        return [*self._failure(width), *self.legend(width)]

    def _failure(self, width: int) -> list[Cells]:
        """What the pass said that failed here."""
        problem = self.state.problems.get("compile")
        if problem is None or self.stage is None or self.stage.state != "failed":
            return []
        lines: list[Cells] = [[(" ", "text"), *line] for line in diagnostic_lines(problem, width - 2)]
        return [*lines[:6], [("     [ the IR before   ! the whole diagnostic", "dim")]]

    def empty(self, width: int) -> list[Cells]:
        return [[], [(f" {waiting_text(self.state, 'IR', self.glyphs)}", "dim")]]

    def row_strip(self, row: int, width: int) -> Strip:
        return self.row_strips(row, width)[0]

    def row_strips(self, row: int, width: int) -> list[Strip]:
        if self.document.diff is not None:
            return self.diff_strips(row, width)
        line, number = self.line_at(row), self.document.line_of(row)
        mark, role = self._mark(row, number, line)
        arrows, further = self.before_line(number, line)
        gutter: Cells = [(f"{mark}{number + 1:>{self.document.digits}} ", role), *arrows]
        room = width - length(gutter)
        note = self.function_note(number, room)
        kept = [*note, *self.folded_behind(number)]
        label = [] if note else self.beside(row, line, room)
        strips = self._line_strips("after", number, line, None, room, kept, label)
        strips = self._behind(gutter, [(" " * (length(gutter) - length(further)), role), *further], strips)
        return [self.look.over(strip, self.background(row)) for strip in strips]

    def mark_node(self, before: str) -> None:
        """Draw the rows again that come from the selected node, or did from the one selected before."""
        marked = {row for row in self.rows_on_screen() if self.context.selection.node in self._nodes_of(row)}
        for row in marked ^ self._marked:
            self.refresh_row(row)
        self._marked = marked
        self.refresh_row(self.cursor)

    @work(exclusive=True, group="follow")
    async def follow_selection(self) -> None:
        """Go to the first line of the selected node, where this stage has one and is still shown once it is found."""
        text = self.document.text
        place = await self._find_node(text) if text else -1
        if place >= 0 and self.document.text == text:
            row = self.document.folds.row_of(place) if self.document.diff is None else self.row_of(place)
            self.center(row, tell=False)

    async def _find_node(self, text: str) -> int:
        """The line of `text` that is most the selected node's own, or -1."""
        return await self.context.queries.find_place(text, self.context.selection.node)

    def _nodes_of(self, row: int) -> tuple[str, ...]:
        line = self.line_at(row)
        return line.nodes if line else ()

    # ---- actions: which stage ------------------------------------------------------------------------------------

    def previous(self) -> None:
        self._step(-1, changed=False)

    def next(self) -> None:
        self._step(1, changed=False)

    def previous_changed(self) -> None:
        self._step(-1, changed=True)

    def next_changed(self) -> None:
        self._step(1, changed=True)

    def _step(self, by: int, *, changed: bool) -> None:
        place = self._index + by
        while 0 <= place < len(self.rows) and changed and not self.rows[place].stage.changed:
            place += by
        if 0 <= place < len(self.rows):
            self.choose(self.rows[place])
        else:
            self.say("this is the " + ("first" if by < 0 else "last") + " snapshot")

    def show_phase(self, number: int) -> None:
        """Show the end of phase `number`, counted from 1."""
        tabs = self.tabs()
        if number > len(tabs):
            self.say(f"there are {len(tabs)} phases")
            return
        self.show_phase_named(tabs[number - 1].name)

    def show_phase_named(self, name: str) -> None:
        row = self._end_of(name)
        if row is None:
            self.say(f"no IR in phase {name} yet")
        else:
            self.choose(row)

    def show_failure(self) -> None:
        row = next((row for row in self.rows if row.stage.state == "failed"), None)
        if row is not None:
            self.choose(row)

    # ---- actions: lines ------------------------------------------------------------------------------------------

    def moved(self) -> None:
        """At once and not by a message, so that what the selection changes is drawn together with the move."""
        line = self.line_at(self.cursor)
        self.context.selection.select_one_of(line.nodes if line is not None else ())
        self.mark_value()
        self.refresh_arrows()

    def toggle_wrap(self) -> None:
        """Long lines on several lines of the screen, or cut at its edge."""
        self.wrapped, self.left = not self.wrapped, 0
        self.rows_changed()
        self.say("long lines are wrapped" if self.wrapped else "long lines are cut: > scrolls sideways")

    def lines_arrived(self) -> None:
        """Lines that were waited for are here: draw them."""
        if self.wrapped:
            self.rows_changed()
        self.refresh()

    def scroll_lines_left(self) -> None:
        self._sideways(max(0, self.left - SIDEWAYS))

    def scroll_lines_right(self) -> None:
        self._sideways(self.left + SIDEWAYS)

    def _sideways(self, left: int) -> None:
        if left != self.left:
            self.left = left
            self.refresh()

    def open_line(self) -> None:
        """The node of the line, or the diagnostic of a stage that failed; a fold is unfolded."""
        diff = self.document.diff
        if diff is not None and diff.count and diff.row(self.cursor).kind == "fold":
            self.toggle_fold()
            return
        line = self.line_at(self.cursor)
        if self.stage is not None and self.stage.state == "failed" and not (line and line.nodes):
            self.context.dialogs.open_problem(self.state.problem)
        elif line is not None and line.nodes:
            self.context.selection.go_node(line.nodes)
        else:
            self.say("no graph node is known for this line")

    def ask_write(self) -> None:
        stage = self.stage
        if stage is None:
            return
        suffix = {"mlir": "mlir", "llvm": "ll", "asm": "s", "ptx": "ptx"}.get(stage.language, "txt")
        self.context.dialogs.ask("write to", f"{stage.index:02d}-{stage.name}.{suffix}", self._write_to)

    @work(group="write")
    async def _write_to(self, path: str) -> None:
        if path.strip():
            content = await self.context.queries.whole_text(self.document.text)
            if content is not None:
                self.context.files.write(path.strip(), content)

    def copied(self) -> str:
        line = self.line_at(self.cursor)
        return line.text if line else ""

    def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        if offset is None or offset.y != 0:
            super().on_click(event)
            # Textual would have the base class do it once more.
            event.prevent_default()
            self._unfold_clicked(offset.y if offset is not None else -1)
            if offset is not None:
                self.pick_at(offset.x, offset.y)
            return
        tab = tab_at(self.tabs(), self.phase, self.width, offset.x)
        if tab is not None:
            self.show_phase_named(tab.name)

    def _unfold_clicked(self, y: int) -> None:
        row = self.row_at(y) if y > 0 else -1
        if row >= 0 and self.document.diff is not None and self.document.diff.row(row).kind == "fold":
            self.toggle_fold()


def _mark(rows: list[StageRow]) -> str:
    if any(row.stage.state == "failed" for row in rows):
        return "!"
    return "~" if rows and rows[-1].stale else ""
