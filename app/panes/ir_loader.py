"""Loads the chosen stage of the IR pane: its generic form, its diff or its folds, and the lines on the screen."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.ir_comparison import IrComparison
from buddy.app.panes.ir_document import NO_CONTENT, IrContent, IrDocument, IrView
from buddy.app.panes.ir_folds import IrFolds
from buddy.app.panes.ir_stages import IrStages
from buddy.app.reports.text.rows import DiffRows, Folds
from buddy.app.reports.text.search_hits import Pattern
from buddy.app.session.line_cache import PAGE_LINES, AnnotatedLine
from buddy.app.session.stages import StageKey, StageRow
from buddy.app.session.state import MAX_CACHED_TEXTS, keep_newest
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.workspace.session_file import SavedCursor
from buddy.compiler.protocol import FollowNode, NodeRow, Stage
from buddy.compiler.protocol.texts import BOUNDARY_LINE


class LoaderView(IrView, Protocol):
    """A view whose text the loader replaces."""

    @property
    def page(self) -> int:
        """The number of rows on the screen."""

    def draw_stage(self, cursor: int, top: int) -> None:
        """Draws another text of the document, with the cursor on row `cursor`, from row `top` on."""


class IrRows(NamedTuple):
    """The rows of a stage that is shown next: lines that `folds` does not hide, or rows of the diff from `other`.

    `IrDocument.show` takes the fields as its arguments.
    """

    stage: Stage
    diff: DiffRows | None
    other: Stage | None
    folds: Folds

    def lines_on(self, top: int, page: int) -> list[tuple[str, int]]:
        """The lines to load before `page` rows from row `top` on can be drawn, each as (name of its text, number)."""
        stage, diff, other, folds = self
        if diff is None or other is None:
            numbers = [folds.line_of(row) for row in range(top, min(top + page, folds.count))] or [0]
            # Loading a line loads its page, so one line of each page is enough.
            line_of_page = {number // PAGE_LINES: number for number in numbers}
            return [(stage.text, number) for number in line_of_page.values()]
        to_load: dict[tuple[str, int], None] = {}  # an ordered set
        for number in range(top, min(top + page, diff.count)):
            row = diff.row(number)
            after, before = row.after, row.before
            if row.kind in ("removed", "added"):
                # The partner, a line of the other text, is needed to highlight the words that differ.
                after, before = max(after, row.partner), max(before, row.partner)
            lines = [(stage.text, after), (other.text, before)]
            to_load |= dict.fromkeys((text, line) for text, line in lines if line >= 0)
        return list(to_load)

    def cursor_and_top(self, line: int, offset: int, page: int) -> tuple[int, int]:
        """The row of the cursor and the first row on the screen, so that `line` is `offset` rows below the first row.

        If the line is folded in a diff, the cursor is on the next change instead. For -1, it is on the first change of
        a diff. A change is in the middle of the `page` rows on the screen.
        """
        wants_first_change = line < 0
        line = max(0, min(line, self.stage.lines - 1))
        if self.diff is None:
            row = self.folds.row_of(line)
            return row, max(0, row - offset)
        if wants_first_change and self.diff.changes:
            first_change = self.diff.changes[0]
            return first_change, _first_row_around(first_change, page)
        cursor = self.diff.row_of(line) if self.diff.count and line < self.stage.lines else 0
        if self.diff.changes and self.diff.row(cursor).kind == "fold":
            cursor = self.diff.change_after(cursor) or 0
            return cursor, _first_row_around(cursor, page)
        return cursor, max(0, cursor - offset)


# The content of a line with more characters is not saved: the line is found again by its number and its node.
MAX_SAVED_CHARACTERS = 1000


class CursorPosition(NamedTuple):
    """The cursor in a stage: its line in the text named `text`, and its distance in rows from the first row.

    `content` is the text of the line, `nodes` are the nodes that it comes from, and `node` is the node that was
    selected then; with them, the line is found in another text. With `is_by_number`, the line was requested by its
    number, -1 for the first change of a diff.
    """

    text: str
    line: int
    offset: int
    content: str = ""
    nodes: tuple[str, ...] = ()
    node: str = ""
    is_by_number: bool = False


# The names of values, blocks, aliases and types in a line. An edit of the recipe renumbers them.
_NAMES = re.compile(r"[%#!^][\w$.-]+(?:[:#]\d+)?")
# The pattern of any such name in another text.
_ANY_NAME = r"[%#!^][\w$.:#-]+"
# Of the lines of a node in a text, at most this many are checked. If one of them does not match `BOUNDARY_LINE`, the
# text has the node.
_MAX_CHECKED_LINES = 6
# The number of characters at the start of a line that are searched for in another text.
_MAX_SEARCHED = 300
# If a node has no line, the lines of at most this many direct and indirect users are searched.
_MAX_USERS = 6
# The maximum number of names of fused nodes in a message.
_MAX_FUSED_NAMES = 3


def similar_lines(content: str) -> Pattern:
    """Returns the pattern of lines that differ from `content` in the names of values and aliases only."""
    start = content.strip()[:_MAX_SEARCHED]
    return Pattern(start, _ANY_NAME.join(map(re.escape, _NAMES.split(start))))


def users_of(rows: Sequence[NodeRow], node: str) -> list[str]:
    """Returns the stable names of the users of `node`, then of their users, and so on; at most `_MAX_USERS`."""
    queue = [row.index for row in rows if row.stable == node]
    users: dict[int, NodeRow] = {}
    while queue and len(users) < _MAX_USERS:
        index = queue.pop(0)
        new_users = [row for row in rows if index in row.inputs and row.index not in users]
        users |= {row.index: row for row in new_users}
        queue += [row.index for row in new_users]
    return [row.stable for row in users.values()][:_MAX_USERS]


class IrLoader:
    """Loads stages in the background, and keeps the cursor of each stage on the line or the node that the user follows.

    An edit of the recipe, an undo or a reload may give a stage another text. The loader finds the line of the cursor
    again in that text.
    """

    def __init__(
        self,
        context: WorkbenchContext,
        view: LoaderView,
        document: IrDocument,
        stages: IrStages,
        comparison: IrComparison,
        folds: IrFolds,
    ) -> None:
        self._context, self._view, self._document = context, view, document
        self._stages, self._comparison, self._folds = stages, comparison, folds
        self._drawn_key: StageKey | None = None
        # The stage that is being loaded, and the content to draw when it is loaded.
        self._requested: tuple[StageKey, IrContent] | None = None
        # The last position of the cursor in each stage.
        self._positions: dict[StageKey, CursorPosition] = {}
        # The last position in each text of a stage, because an undo brings an earlier text back.
        self._text_positions: dict[tuple[StageKey, str], CursorPosition] = {}
        # The name of the text, the number and the content of the line at the cursor. The line is stored here because a
        # restart of the engine clears the cache.
        self._noted_line: tuple[str, int, AnnotatedLine] | None = None

    # ---- the cursor ----------------------------------------------------------------------------------------------

    def note_cursor_line(self) -> None:
        """Notes the line at the cursor, to find it in another text later. Called when the cursor has moved."""
        line = self._document.line_at(self._view.cursor)
        if line is not None:
            self._noted_line = (self._document.text, self._view.line_number, line)

    def remember_position(self) -> None:
        """Remembers the position of the cursor in the chosen stage, if the stage is drawn."""
        if self._stages.chosen_key is not None and self._stages.chosen_key == self._drawn_key:
            self._remember(self._stages.chosen_key, self._current_position())

    def _remember(self, key: StageKey, position: CursorPosition) -> None:
        self._positions[key] = self._text_positions[key, position.text] = position
        keep_newest(self._text_positions, MAX_CACHED_TEXTS)

    def _current_position(self) -> CursorPosition:
        """The position of the cursor on the screen."""
        view, text = self._view, self._document.text
        line = AnnotatedLine("")
        if self._noted_line is not None:
            noted_text, noted_number, noted_line = self._noted_line
            if (noted_text, noted_number) == (text, view.line_number):
                line = noted_line
        node = self._context.selection.node
        return CursorPosition(text, view.line_number, view.cursor - view.first_row, line.text, line.nodes, node)

    def set_line(self, row: StageRow, line: int) -> None:
        """Sets the line at which the stage of `row` is shown next, and marks the stage to be loaded again."""
        self._positions[row.key] = CursorPosition(row.stage.text, line, self._view.page // 2, is_by_number=True)
        self._drawn_key, self._document.content = None, NO_CONTENT

    def cursor_to_save(self, key: StageKey) -> SavedCursor | None:
        """The last position of the cursor in a stage; `None` if the stage was never shown."""
        position = self._current_position() if key == self._drawn_key else self._positions.get(key)
        if position is None:
            return None
        content = position.content if len(position.content) <= MAX_SAVED_CHARACTERS else ""
        node = position.node if position.node in position.nodes else next(iter(position.nodes), "")
        return SavedCursor(position.text, position.line, position.offset, content, node)

    def restore_cursor(self, key: StageKey, saved: SavedCursor) -> None:
        """Sets the position of the cursor in a stage that is not shown yet to a saved one."""
        nodes, selected = ((saved.node,) if saved.node else ()), self._context.selection.node
        self._positions[key] = CursorPosition(saved.text, saved.line, saved.offset, saved.content, nodes, selected)

    def clear(self) -> None:
        """Forgets the positions in the stages of the previous graph."""
        self._positions.clear()
        self._text_positions.clear()
        self._drawn_key = self._requested = self._noted_line = None

    # ---- loading -------------------------------------------------------------------------------------------------

    def load(self, row: StageRow) -> bool:
        """Starts to load a stage, unless it is shown or being loaded.

        Returns false if the generic form of the stage must be printed first; then opens the stage again later.
        """
        texts_to_print = self._stages.texts_to_print(row.stage, self._comparison.other_of(row))
        if texts_to_print:
            self._context.jobs.begin("ir-form", self._print_generic, texts_to_print)
            return False
        content = self._comparison.content_of(row)
        if content != self._document.content and (row.key, content) != self._requested:
            self._requested = (row.key, content)
            self._context.jobs.begin("ir-load", self._load, row)
        return True

    async def _print_generic(self, texts: Sequence[str]) -> None:
        """Prints texts in the generic form, then opens the stage again."""
        await self._stages.print_generic(texts)
        self._view.open_stage()

    async def _load(self, row: StageRow) -> None:
        """Loads the diff or the folds of a stage and the lines on the screen. If the stage is still chosen, draws it.

        If another comparison was chosen meanwhile, opens the stage again.
        """
        stage, content, other = row.stage, self._comparison.content_of(row), self._comparison.other_of(row)
        try:
            diff = await self._comparison.compare(stage, other)
            if diff is not None and content.text != content.other:
                await self._folds.narrow(diff, stage)
            folds = await self._folds.folds_of(stage) if diff is None else Folds(stage.lines)
            rows = IrRows(stage, diff, other, folds)
            cursor, top = await self._cursor_and_top(row.key, rows)
            if await self._load_lines(rows, top) and self._stages.chosen_key == row.key:
                previous_position, previous_language = self._current_position(), self._document.language
                is_other_stage = row.key != self._drawn_key
                self._document.show(*rows)
                self._document.content = content
                self._drawn_key = row.key
                self._view.draw_stage(cursor, top)
                if is_other_stage and previous_position.text and previous_language == stage.language == "mlir":
                    self._context.jobs.begin("ir-follow", self._report_node, row, previous_position)
        finally:
            if self._requested == (row.key, content):
                self._requested = None
        if self._stages.chosen_key == row.key and self._comparison.content_of(row) != content:
            self._view.open_stage()

    async def _cursor_and_top(self, key: StageKey, rows: IrRows) -> tuple[int, int]:
        """Returns the row of the cursor and the first row on the screen.

        If the same node is selected as at the last position in the stage, the cursor has this position. Otherwise, it
        is on the main line of the selected node, or, in a diff that hides this line, on the first change. If the stage
        has another text than at the last position, the line is found again in the new text.
        """
        view, text = self._view, rows.stage.text
        position, node = self._positions.get(key), self._context.selection.node
        if key == self._drawn_key:
            position = self._current_position()
            if position.text != text:
                self._remember(key, position)
        if position is not None and position.text != text:
            position_in_text = self._text_positions.get((key, text))
            if position_in_text is None or position_in_text.node != node:
                line = await self._find_again(position, rows.stage)
                position_in_text = position._replace(line=line, offset=min(position.offset, view.page - 1))
            return rows.cursor_and_top(position_in_text.line, position_in_text.offset, view.page)
        if position is not None and (position.is_by_number or node in ("", position.node, *position.nodes)):
            return rows.cursor_and_top(position.line, position.offset, view.page)
        line = await self._main_line_of_selected(text)
        if position is not None and line < 0:
            return rows.cursor_and_top(position.line, position.offset, view.page)
        if rows.diff is None:
            row = rows.folds.row_of(max(0, line))
        elif line >= 0 and rows.diff.row(rows.diff.row_of(line)).kind != "fold":
            row = rows.diff.row_of(line)
        else:
            return rows.cursor_and_top(-1, 0, view.page)
        return row, _first_row_around(row, view.page)

    async def _find_again(self, position: CursorPosition, stage: Stage) -> int:
        """Returns the line in the text of `stage` that corresponds to `position`, which is in another text.

        Of the lines that differ in names only, and come from the same node, it is the line with the nearest number.
        Without such lines, it is the main line of the node, or else the line with the same number.
        """
        queries = self._context.queries
        result = await queries.search(stage.text, similar_lines(position.content)) if position.content.strip() else None
        lines: Sequence[int] = result.lines if result is not None else ()
        if position.nodes:
            node = position.node if position.node in position.nodes else position.nodes[0]
            lines_of_node = frozenset(await queries.find_lines_of_node(stage.text, node))
            lines = [line for line in lines if line in lines_of_node]
            if not lines and lines_of_node:
                lines = [await queries.find_main_line(stage.text, node)]
        return min(lines, key=lambda line: abs(line - position.line), default=min(position.line, stage.lines - 1))

    async def _main_line_of_selected(self, text: str) -> int:
        """Returns the main line of the selected node, or else of its nearest user with one, or else -1."""
        node, info = self._context.selection.node, self._context.state.info
        readers = users_of(info.rows if info is not None else (), node)
        return await self._context.queries.find_main_line(text, node, tuple(readers))

    async def _report_node(self, row: StageRow, previous: CursorPosition) -> None:
        """Shows a message about the node that the user follows, if the stage of `row` has fused it or lacks it.

        `previous` is the position of the cursor before the stage was shown. The message says with which nodes the node
        is fused, or before or after which stage it has no line.
        """
        selection, node = self._context.selection, previous.node
        if not node or node not in previous.nodes or selection.node != node or self._is_other_pane_searched():
            return
        line = self._document.line_at(self._view.cursor)
        name = selection.name_of(node)
        if line is None:
            return
        if node in line.nodes and not BOUNDARY_LINE.match(line.text):
            others = [selection.name_of(other) for other in line.nodes if other not in previous.nodes]
            if others:
                more = f" and {len(others) - _MAX_FUSED_NAMES} more" if len(others) > _MAX_FUSED_NAMES else ""
                self._context.say(f"{name} is fused with {', '.join(others[:_MAX_FUSED_NAMES])}{more} here")
            return
        range_text = await self._node_range_text(row, node)
        if range_text:
            cursor_text = f"; the cursor is at {selection.name_of(line.nodes[0])}" if line.nodes else ""
            self._context.say(f"{name} {range_text}{cursor_text}")

    async def _node_range_text(self, row: StageRow, node: str) -> str:
        """Returns `has no line after X` or `has no line before X` for a node; empty if the stage of `row` has a line.

        In "after X", X is the first stage without a line of the node; a pass's remark about the node follows, if any.
        In "before X", X is the first stage with a line.
        """
        rows = list(self._stages.rows)
        texts = tuple(dict.fromkeys(other.stage.text for other in rows))
        answer = await self._context.queries.request(FollowNode(0, texts, node, _MAX_CHECKED_LINES))
        traces = answer.traces if answer is not None else ()
        texts_with_node = {trace.text for trace in traces if not all(map(BOUNDARY_LINE.match, trace.excerpts))}
        has_node = [other.stage.text in texts_with_node for other in rows]
        index = next((number for number, other in enumerate(rows) if other.key == row.key), len(rows) - 1)
        last_with_node = next((number for number in range(index, -1, -1) if has_node[number]), -1)
        if last_with_node == index:
            return ""
        if last_with_node < 0:
            first_name = next((rows[number].stage.name for number in range(index, len(rows)) if has_node[number]), "")
            return f"has no line before {first_name}" if first_name else "has no line in any stage"
        # The pass that merged the op into another one has a remark; a later pass may have removed the rest of the op.
        passes = {other.stage.name for other in rows[: last_with_node + 2]}
        remarks = [
            f" ({pass_name}: {text})"
            for pass_name, subject, text in self._context.state.remarks
            if subject == node and pass_name in passes
        ]
        last_remark = remarks[-1] if remarks else ""
        return f"has no line after {rows[last_with_node + 1].stage.name}{last_remark}"

    def _is_other_pane_searched(self) -> bool:
        """Whether another pane has focus, and searches: then the messages of the search must stay on the screen."""
        layout = self._context.layout
        pane = layout.panes[layout.pane_id]
        return layout.pane_id != "ir" and isinstance(pane, CursorView) and pane.search.is_active

    async def _load_lines(self, rows: IrRows, top: int) -> bool:
        """Loads the lines of the rows on the screen. Returns whether all requests have succeeded."""
        queries = self._context.queries
        # A list, not a generator: after a failed request, the other lines are still loaded.
        return all([await queries.load_lines(text, line, 1) for text, line in rows.lines_on(top, self._view.page)])


def _first_row_around(row: int, page: int) -> int:
    """Returns the first row on the screen so that `row` is in the middle; 0 if the first page shows it."""
    return 0 if row < page else row - page // 2
