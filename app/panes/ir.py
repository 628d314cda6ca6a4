"""The IR pane: a tab for each phase, and the IR after each pass. It fetches only the lines near the screen."""

from __future__ import annotations

from typing import ClassVar

from textual import events, work
from textual.binding import BindingType
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip

from buddy.app.actions import Pane as PaneId
from buddy.app.actions import key_of
from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_assembly import AssemblyGutter
from buddy.app.panes.ir_comparison import IrComparison
from buddy.app.panes.ir_document import IrDocument, diff_layout_at
from buddy.app.panes.ir_folds import IrFolds, StageSymbols
from buddy.app.panes.ir_jumps import IrJumps, StageSearch
from buddy.app.panes.ir_lines import IrLines, IrTypes
from buddy.app.panes.ir_loader import IrLoader
from buddy.app.panes.ir_names import IrNames, IrReferences
from buddy.app.panes.ir_painter import LinePainter, RowPainter
from buddy.app.panes.ir_stages import IrStages, tab_at, tab_cells
from buddy.app.panes.pane import LinkedPane, RowMark
from buddy.app.reports import formatting
from buddy.app.reports.progress_texts import waiting_texts
from buddy.app.reports.text.search_hits import Pattern
from buddy.app.screens.detail import diagnostic_lines
from buddy.app.session.line_cache import AnnotatedLine
from buddy.app.session.stages import StageKey, StageRow
from buddy.app.session.state import Topic
from buddy.app.widgets.look import Cells, align_both_ends, cells_length
from buddy.app.widgets.search import FoundLines
from buddy.app.widgets.textual_helpers import pane_bindings
from buddy.app.workspace.session_file import SavedCursor
from buddy.compiler.protocol import Stage
from buddy.compiler.protocol.plain_values import LANGUAGES

# The number of columns that a key scrolls sideways.
SCROLL_COLUMNS = 16
# The maximum number of lines that are shown of the diagnostic of a failed pass.
MAX_FAILURE_LINES = 6


class IrPane(LinkedPane):
    """Shows the chosen stage of `stages`. Rows are lines of the stage, or rows of its diff from another stage.

    `document` is the text that is drawn. If another stage is chosen, it stays the same until the lines of that stage
    are loaded. `left` is the first column on the screen. Components such as `jumps` and `folds` have one task
    each; they use the pane as an `IrView`.
    """

    class StageShown(Message):
        """The user has chosen another stage, or a stage is shown for the first time."""

        def __init__(self, row: StageRow) -> None:
            super().__init__()
            self.row = row

    pane_id: ClassVar[PaneId] = "ir"
    BINDINGS: ClassVar[list[BindingType]] = pane_bindings("ir")
    BORDER_TITLE = "IR"
    selects_rows = True

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.left = 0
        self.document = document = IrDocument(context.session.cache)
        self.stages = stages = IrStages(context, self)
        self.jumps = jumps = IrJumps(context, self, document, stages)
        self.comparison = IrComparison(context, self, document, stages)
        self.assembly = AssemblyGutter(context, self, document)
        self._symbols = symbols = StageSymbols(context.queries)
        self.folds = IrFolds(context, self, document, stages, symbols, jumps, self.assembly)
        self._loader = IrLoader(context, self, document, stages, self.comparison, self.folds)
        search = self.search
        self.stage_search = stage_search = StageSearch(context, stages, jumps, search)
        self.names = names = IrNames(context, self, document)
        self.references = IrReferences(context, self, document, stages, symbols, names, jumps, search, stage_search)
        self.types = IrTypes(context, self, document, stages, jumps)
        self.lines = IrLines(context, self, document, stages, self.types)
        self.line_painter = LinePainter(self, search.matches, names, self.types, context.glyphs.ellipsis)
        self.painter = RowPainter(context, self, document, self.line_painter, search.matches, jumps, self.assembly)

    @property
    def targets(self) -> list[tuple[str, object]]:
        """The components whose methods are handlers of actions, each with its name in `Action.handler`."""
        return [
            ("ir_assembly", self.assembly),
            ("ir_comparison", self.comparison),
            ("ir_folds", self.folds),
            ("ir_jumps", self.jumps),
            ("ir_lines", self.lines),
            ("ir_names", self.names),
            ("ir_references", self.references),
            ("ir_search", self.stage_search),
            ("ir_stages", self.stages),
            ("ir_types", self.types),
        ]

    # ---- the chosen stage ----------------------------------------------------------------------------------------

    @property
    def rows(self) -> list[StageRow]:
        """All stages, in the chosen form."""
        return self.stages.rows

    @property
    def chosen_key(self) -> StageKey | None:
        return self.stages.chosen_key

    @property
    def chosen_row(self) -> StageRow | None:
        """The chosen stage, with its key."""
        return self.stages.chosen_row

    @property
    def chosen_stage(self) -> Stage | None:
        return self.stages.chosen_stage

    @property
    def is_drawn(self) -> bool:
        """Whether the chosen stage is on the screen, with the chosen comparison."""
        row = self.chosen_row
        return row is not None and self.document.content == self.comparison.content_of(row)

    def update_from(self, topics: frozenset[Topic]) -> None:
        if "stages" not in topics:
            return
        self._loader.remember_position()
        opened = self.stages.update()
        if opened is not None:
            self.post_message(self.StageShown(opened))
        self.open_stage()
        if self.chosen_stage is None:
            # The reason why there is no IR yet may have changed.
            self.refresh()

    def choose(self, row: StageRow, *, notify: bool = True) -> None:
        """Shows the stage of `row`; with `notify`, posts `StageShown`."""
        self._loader.remember_position()
        self.stages.choose(row)
        self.open_stage()
        if notify:
            self.post_message(self.StageShown(row))

    def show_line(self, row: StageRow, line: int) -> None:
        """Shows a line of the stage of `row`; -1 is the first change of its diff."""
        self._loader.remember_position()
        self._loader.set_line(row, line)
        self.stages.choose(row)
        self.open_stage()
        self.post_message(self.StageShown(row))

    def expect(self, key: StageKey, cursor: SavedCursor | None) -> None:
        """Shows the stage with that key when it is available, with the cursor at `cursor`."""
        self.stages.expect(key)
        if cursor is not None:
            self._loader.restore_cursor(key, cursor)

    @property
    def cursor_to_save(self) -> SavedCursor | None:
        """The position of the cursor in the chosen or expected stage, `None` if it was never shown."""
        key = self.stages.expected_key
        return self._loader.cursor_to_save(key) if key is not None else None

    def leave_graph(self) -> None:
        """Clears the text and the positions before another graph is shown, at the same stage if possible."""
        self.stages.leave_graph()
        self.jumps.clear()
        self.document.clear()
        self._symbols.clear()
        self._loader.clear()
        self.rows_changed()

    def open_stage(self) -> None:
        """Loads the lines of the chosen stage, then draws them."""
        row = self.chosen_row
        if row is None or not self._loader.load(row):
            return
        is_layout_outdated = len(self.foot(self.width)) != self._foot_height or not self._head_height
        if is_layout_outdated:
            self.rows_changed()
        self.refresh_edges()

    def draw_stage(self, cursor: int, top: int) -> None:
        """Draws the document after its text has changed, with the cursor on row `cursor`, from row `top` on."""
        self.search.matches.clear()
        # The row of the previous text may not exist in this one.
        self.cursor = 0
        self.rows_changed()
        self.scroll_to(y=top, animate=False, force=True)
        self.center(cursor, notify=False)
        self._loader.note_cursor_line()
        self.names.update()
        self.types.name_types()
        self.context.status.redraw()
        self.search.repeat()

    # ---- search of the chosen stage ------------------------------------------------------------------------------

    # The engine has the whole text, the cache only parts of it: `request_lines` searches.
    def find_lines(self, pattern: Pattern) -> FoundLines | None:
        return None if self.document.text else FoundLines(())

    async def request_lines(self, pattern: Pattern) -> FoundLines | None:
        result = await self.context.queries.search(self.document.text, pattern)
        return FoundLines(result.lines, result.more) if result is not None else None

    @property
    def search_line(self) -> int:
        return self.line_number

    def preview_match(self, line: int) -> None:
        """Shows a line, or the fold that hides it: only `go_to_match` unfolds."""
        document = self.document
        row = document.folds.row_of(line) if document.diff is None else document.diff.row_of(line)
        self.center(row, notify=False)

    def go_to_match(self, line: int) -> None:
        self.jumps.go_to(line)

    # ---- rows and lines ------------------------------------------------------------------------------------------

    @property
    def row_count(self) -> int:
        return self.document.row_count

    @property
    def line_number(self) -> int:
        """The number of the line of the stage's text at the cursor; at a removed line, of the line after it."""
        return self.document.line_of(self.cursor)

    def line_at(self, row: int) -> AnnotatedLine | None:
        """The line on `row`, `None` if it is not cached. A removed line is a line of the other text."""
        return self.document.line_at(row)

    def row_of(self, line: int) -> int:
        """The row of a line of the stage's text. Unfolds the line if necessary."""
        document = self.document
        if document.diff is not None:
            previous_count = document.row_count
            row, _ = document.reveal_in_diff(document.diff, line)
            if document.row_count != previous_count:
                self.rows_changed()
            return row
        if document.hides(line):
            offset = self.cursor - self.first_row
            document.reveal(line)
            self.place_line(line, offset)
        return document.folds.row_of(line)

    def place_line(self, line: int, offset: int) -> None:
        """Draws after a change of folds, with the cursor on `line`, `offset` rows below the first row on the screen."""
        self.cursor = self.document.folds.row_of(line)
        self.rows_changed()
        self.keep_cursor_at(offset)
        self.names.update()

    def rows_changed(self) -> None:
        """Updates the layout and draws again; a diff is also arranged for the current width."""
        document, layout = self.document, diff_layout_at(self.width)
        if document.diff is not None and document.diff.layout != layout:
            line, offset = self.line_number, self.cursor - self.first_row
            document.diff.arrange(layout)
            self.cursor = document.diff.row_of(line) if document.diff.count and line < document.line_count else 0
            self.keep_cursor_at(offset)
        super().rows_changed()

    def redraw_lines(self) -> None:
        """Discards the cached drawn lines, and draws again with the cursor on the same screen line."""
        offset = self.cursor - self.first_row
        self.line_painter.clear_cache()
        self.rows_changed()
        self.keep_cursor_at(offset)

    def draw_fetched_lines(self) -> None:
        if self.wrapped:
            self.rows_changed()
        self._loader.note_cursor_line()
        self.refresh()

    # ---- drawing -------------------------------------------------------------------------------------------------

    def head(self, width: int) -> list[Cells]:
        return [tab_cells(self.stages.tabs(), self.stages.phase, width), self._stage_line(width)]

    def _stage_line(self, width: int) -> Cells:
        """The line with the name of the stage, the form, the comparison, the position, and badges."""
        stage = self.chosen_stage
        if stage is None:
            return []
        facts = [
            "generic form" if self.stages.generic else "",
            *self.folds.header_texts(),
            *self.comparison.header_texts(),
            self.stages.position_text(),
            *self.stages.cost_texts(),
            f"line {formatting.count(self.line_number + 1)} of {formatting.count(stage.lines)}",
        ]
        left: Cells = [(" ", "text"), (stage.name, "title"), ("  ", "text")]
        right = [*self.comparison.state_cells(), *self.stages.problem_cells()]
        columns = width - cells_length(left) - cells_length(right) - 1
        left.append((formatting.join_fitting(list(filter(None, facts)), f" {self.glyphs.dot} ", columns), "dim"))
        return align_both_ends(left, right, width)

    def foot(self, width: int) -> list[Cells]:
        return [*self._failure_lines(width), *self.types.legend(width)]

    def _failure_lines(self, width: int) -> list[Cells]:
        """The first lines of the diagnostic and the keys to press, if the pass of the chosen stage has failed."""
        problem = self.state.problems.get("compile")
        if problem is None or self.chosen_stage is None or self.chosen_stage.state != "failed":
            return []
        lines: list[Cells] = [[(" ", "text"), *line] for line in diagnostic_lines(problem, width - 2)]
        before_key, diagnostic_key = key_of("ir.previous"), key_of("diagnostic")
        hint = f"     {before_key} shows the IR before the pass   {diagnostic_key} shows the whole diagnostic"
        return [*lines[:MAX_FAILURE_LINES], [(hint, "dim")]]

    def empty(self, width: int) -> list[Cells]:
        texts = waiting_texts(self.state, "IR", "compile", self.glyphs)
        return [[], *([(f" {text}", "dim")] for text in texts)]

    def render_lines(self, crop: Region) -> list[Strip]:
        if self.document.diff is not None:
            self.document.fetch_ahead(self.first_row + self.page, self.page)
        return super().render_lines(crop)

    def row_strip(self, row: int, width: int) -> Strip:
        return self.row_strips(row, width)[0]

    def row_strips(self, row: int, width: int) -> list[Strip]:
        return [self.look.on_background(strip, self.background(row)) for strip in self.painter.strips(row, width)]

    # ---- the selected node ---------------------------------------------------------------------------------------

    def selection_changed(self, previous: str) -> None:
        """Draws again the rows that come from the selected node, or from the node that was selected before."""
        self.refresh_marks()
        self.refresh_row(self.cursor)

    def mark_of(self, row: int) -> RowMark:
        line, selection = self.line_at(row), self.context.selection
        if line is None or not line.nodes:
            return RowMark()
        return RowMark(selection.node in line.node_set, not selection.linked_nodes.isdisjoint(line.own_node_set))

    @work(exclusive=True, group="follow")
    async def follow_selection(self) -> None:
        """Goes to the main line of the selected node, unless another stage is shown before the line is found."""
        text = self.document.text
        line = await self.context.queries.find_main_line(text, self.context.selection.node) if text else -1
        if line >= 0 and self.document.text == text:
            row = self.document.folds.row_of(line) if self.document.diff is None else self.row_of(line)
            self.center(row, notify=False)

    def nodes_of(self, row: int) -> tuple[str, ...]:
        line = self.line_at(row)
        return line.nodes if line else ()

    def after_move(self) -> None:
        # A message would select the node later: this way, the move and the new selection are drawn together.
        self.context.selection.select_one_of(self.nodes_of(self.cursor))
        self._loader.note_cursor_line()
        self.names.update()
        self.assembly.refresh_arrows()

    # ---- actions -------------------------------------------------------------------------------------------------

    def toggle_wrap(self) -> None:
        """Wraps long lines, or truncates them at the edge of the screen."""
        self.wrapped, self.left = not self.wrapped, 0
        self.rows_changed()
        if self.wrapped:
            self.say("long lines are wrapped")
        else:
            self.say(f"long lines are truncated: {key_of('ir.right')} scrolls sideways")

    def scroll_lines_left(self) -> None:
        self._scroll_sideways(max(0, self.left - SCROLL_COLUMNS))

    def scroll_lines_right(self) -> None:
        self._scroll_sideways(self.left + SCROLL_COLUMNS)

    def _scroll_sideways(self, left: int) -> None:
        if left != self.left:
            self.left = left
            self.refresh()

    def toggle_sources(self) -> None:
        """Shows the node and the Python line of every line, or only of the cursor's line."""
        shows_all = self.painter.shows_sources = not self.painter.shows_sources
        self.rows_changed()
        self.say("each line shows its node and Python line" if shows_all else "only the cursor's line shows its nodes")

    def open_line(self) -> None:
        """Goes to the node of the cursor's line.

        Unfolds folded lines of a diff instead. On a line without a node in a failed stage, shows the diagnostic.
        """
        diff = self.document.diff
        if diff is not None and diff.count and diff.row(self.cursor).kind == "fold":
            self.folds.toggle_fold()
            return
        nodes = self.nodes_of(self.cursor)
        if self.chosen_stage is not None and self.chosen_stage.state == "failed" and not nodes:
            self.context.dialogs.open_problem(self.state.problem)
        elif nodes:
            self.context.selection.go_to_one_of(nodes)
        else:
            self.say("this line comes from no node of the graph")

    def ask_write(self) -> None:
        """Asks for a path, and writes the text of the stage to it."""
        stage = self.chosen_stage
        if stage is None:
            return
        suffix = LANGUAGES[stage.language].suffix
        self.context.dialogs.ask("write to", f"{stage.index:02d}-{stage.name}{suffix}", self._write_to)

    @work(group="write")
    async def _write_to(self, path: str) -> None:
        if path.strip():
            content = await self.context.queries.fetch_text(self.document.text)
            if content is not None:
                self.context.files.write(path.strip(), content)

    def text_to_copy(self) -> str:
        line = self.line_at(self.cursor)
        return line.text if line else ""

    def copy(self) -> None:
        """Copies the line at the cursor, or all lines of the selected rows, in a text with the folded ones."""
        rows, document = self.selected_range, self.document
        if len(rows) == 1:
            super().copy()
        elif document.diff is None:
            last_row_line = document.line_of(rows[-1])
            stop = last_row_line + document.folds.hidden_count(last_row_line) + 1
            self.copy_lines_of_stage(document.line_of(rows[0]), stop)
        else:
            sources = [source for row in rows if (source := document.source_of(row)) is not None]
            self.context.jobs.begin("copy", self.copy_lines, sources)

    def copy_lines_of_stage(self, first: int, stop: int, description: str = "") -> None:
        """Copies lines `first` to `stop` (exclusive) of the stage's text. The message calls them `description`."""
        text = self.document.text
        self.context.jobs.begin("copy", self.copy_lines, [(text, line) for line in range(first, stop)], description)

    # ---- clicks --------------------------------------------------------------------------------------------------

    def on_click(self, event: events.Click) -> None:
        """Shows the phase of a clicked tab. On a row, moves the cursor, unfolds, and picks the name under the mouse."""
        offset = event.get_content_offset(self)
        if offset is None or offset.y != 0:
            super().on_click(event)
            # Otherwise, Textual would call the handler of the base class again.
            event.prevent_default()
            if offset is not None:
                self._unfold_at(offset.y)
                self._pick_name_at(offset.x, offset.y)
            return
        tab = tab_at(self.stages.tabs(), self.stages.phase, self.width, offset.x)
        if tab is not None:
            self.stages.show_phase_named(tab.name)

    def _unfold_at(self, y: int) -> None:
        """In a diff, unfolds the folded equal lines at line `y` of the pane, if any."""
        row = self.row_at(y)
        if row >= 0 and self.document.diff is not None and self.document.diff.row(row).kind == "fold":
            self.folds.toggle_fold()

    def _pick_name_at(self, x: int, y: int) -> None:
        """Picks the name at column `x` and line `y` of the pane, which is on the cursor's row."""
        line, row_line = self.line_at(self.cursor), self.row_line_at(y)
        if line is not None and row_line is not None and self.document.diff is None:
            self.names.pick_at(*self.painter.character_at(line, x, row_line.line))
