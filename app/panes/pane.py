"""The base classes of panes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

from buddy.app.actions import Pane as PaneId
from buddy.app.panes.context import WorkbenchContext
from buddy.app.session.line_cache import PAGE_LINES
from buddy.app.session.state import State, Topic, keep_newest
from buddy.app.widgets.cursor_view import CursorView
from buddy.app.widgets.table import Row, TableView
from buddy.app.workspace.workspace import Workspace

# The number of rows for which a pane keeps the marks that it has drawn: more than a screen has.
MAX_DRAWN_MARKS = 1000


class Pane(CursorView):
    """A pane of the workbench, which draws a part of the state of the session."""

    pane_id: ClassVar[PaneId]

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(id=self.pane_id)
        self.context = context

    @property
    def state(self) -> State:
        return self.context.state

    @property
    def workspace(self) -> Workspace:
        return self.context.workspace

    def update_from(self, topics: frozenset[Topic]) -> None:
        """Updates the pane if it draws one of `topics`, the parts of the state that have changed."""

    def take_key(self, key: str) -> bool:
        """Handles a key before the actions do. Returns whether the pane has handled the key."""
        return False

    def say(self, message: str) -> None:
        self.context.say(message)

    def after_move(self) -> None:
        # Posted to the application, which handles it: the way through the queues of all parents takes a millisecond.
        self.app.post_message(self.Moved(self, self.cursor))

    # ---- search --------------------------------------------------------------------------------------------------

    def ask_search(self) -> None:
        """Asks for a pattern, and shows its matches while the user types."""
        self.search.ask(self.context.dialogs.prompt)

    def next_match(self) -> None:
        self.search.step(1)

    def previous_match(self) -> None:
        self.search.step(-1)

    def end_search(self) -> None:
        self.search.end()

    def report_search(self, text: str) -> None:
        self.say(text)

    # ---- the selected node ---------------------------------------------------------------------------------------

    def selection_changed(self, previous: str) -> None:
        """Updates the marks of rows. `previous` is the stable name of the node that was selected before."""

    def show_node(self, stable: str) -> None:
        """Moves the cursor to the row of the node with that stable name, and scrolls to it."""

    def follow_selection(self) -> object:
        """Moves the cursor to the selected node. Called when the cursor of another pane has stayed on the node."""

    # ---- copying -------------------------------------------------------------------------------------------------

    def text_to_copy(self) -> str:
        """The text that the copy key copies."""
        return ""

    def copy(self) -> None:
        self.context.dialogs.copy(self.text_to_copy())

    def extend_down(self) -> None:
        """Selects one more row below, or one less above."""
        self.extend_selection(self.cursor + 1)

    def extend_up(self) -> None:
        """Selects one more row above, or one less below."""
        self.extend_selection(self.cursor - 1)

    async def copy_lines(self, lines: Sequence[tuple[str, int]], description: str = "") -> None:
        """Copies lines, each a pair of the hash of its text and its number. Loads lines that are not cached first.

        The message calls the lines `description`. If a request fails, copies nothing.
        """
        cache = self.context.session.cache
        # Loading a line loads its page, so one line of each page is enough.
        line_of_page = {(text, number // PAGE_LINES): (text, number) for text, number in lines}
        for text, number in line_of_page.values():
            if not await self.context.queries.load_lines(text, number, 1):
                return
        loaded = [cache.get(text, number) for text, number in lines]
        self.context.dialogs.copy("\n".join(line.text if line is not None else "" for line in loaded), description)


class RowMark(NamedTuple):
    """Whether a row comes from the selected node, and whether it comes from a node of the linked Python line.

    `Selection` explains both.
    """

    is_selected: bool = False
    is_linked: bool = False


class LinkedPane(Pane):
    """A pane whose rows come from nodes. It draws the rows of the linked Python line on another background."""

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        # The marks of rows as they were drawn last.
        self._drawn_marks: dict[int, RowMark] = {}

    def mark_of(self, row: int) -> RowMark:
        raise NotImplementedError

    def refresh_marks(self) -> None:
        """Redraws the rows on the screen whose marks have changed."""
        self.refresh_rows([row for row in self.rows_on_screen() if self.mark_of(row) != self._drawn_marks.get(row)])

    def background(self, row: int) -> str:
        mark = self._drawn_marks[row] = self.mark_of(row)
        keep_newest(self._drawn_marks, MAX_DRAWN_MARKS)
        return super().background(row) or ("linked-line" if mark.is_linked else "")


class TablePane(Pane, TableView[Row]):
    """A pane whose rows are a table."""
