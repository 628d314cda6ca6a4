"""Pass preview: tries passes on a stage in the background, and lists those that change it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import work

from buddy.app.panes.pane import Column
from buddy.app.reports import formatting
from buddy.app.reports.trials import PassPreview, deltas_text, rank_previews
from buddy.app.screens.table import TableScreen
from buddy.app.session.requests import Requester
from buddy.app.widgets.look import Cell
from buddy.compiler.protocol import Tried, TryPasses
from buddy.compiler.protocol.recipe import PassStep

if TYPE_CHECKING:
    from buddy.app.session.session import Session

# For all passes together.
_SECONDS = 60.0


class TrialsScreen(TableScreen[PassPreview]):
    """Returns the pass to insert, or `None`. Closing the screen cancels the trials."""

    TITLE_TEXT = "Passes that change this stage"
    KEYS_TEXT = "enter inserts the pass, q closes"

    def __init__(self, session: Session, text: str, tried: Sequence[PassStep], threads: int) -> None:
        super().__init__(_COLUMNS)
        self._session, self._text, self._candidates, self._threads = session, text, tuple(tried), threads
        self._attempts: list[PassPreview] = []

    def on_mount(self) -> None:
        self._try_all()

    def about(self, row: PassPreview) -> str:
        if row.tried.problem:
            return f"{row.step.name}: {row.tried.problem}"
        return deltas_text(row.tried.deltas, most=20) or "changed operands, types or attributes; the same ops"

    @work(exclusive=True, group="trials")
    async def _try_all(self) -> None:
        frame = TryPasses(0, self._text, self._candidates, self._threads, timeout=_SECONDS)
        done = await Requester(self._session, self.tell).request(frame, self._take_frame)
        if done is None:
            return
        late = f", {done.candidates - done.tried} not tried (time limit)" if done.tried < done.candidates else ""
        self._show_counts(late)

    def _take_frame(self, frame: object) -> None:
        if isinstance(frame, Tried):
            self._attempts.append(PassPreview(self._candidates[frame.number], frame))
            if frame.changed or frame.problem:
                self.show(rank_previews(self._attempts, failed=True))
            self._show_counts("")

    def _show_counts(self, end: str) -> None:
        changing = sum(attempt.tried.changed for attempt in self._attempts)
        self.tell(f"{changing} found, {len(self._attempts)}/{len(self._candidates)} tried{end}")

    def action_choose(self) -> None:
        if self.current is not None and self.current.tried.changed:
            self.dismiss(self.current.step)


def _change(row: PassPreview) -> Cell:
    return ("failed", "bad") if row.tried.problem else (deltas_text(row.tried.deltas, most=3) or "same ops", "text")


_COLUMNS: tuple[Column[PassPreview], ...] = (
    Column("pass", 34, lambda row: (row.step.name, "dim" if row.tried.problem else "accent")),
    Column("on", 6, lambda row: (row.step.anchor.rpartition(".")[2], "dim"), since=90),
    Column("ops", 0, _change),
    Column("time", 8, lambda row: (formatting.milliseconds(row.tried.milliseconds), "dim"), right=True),
)
