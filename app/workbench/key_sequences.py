"""Key sequences: starts actions from sequences of two keys, and lists the second keys after the first one."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from textual import events
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from buddy.app import actions
from buddy.app.actions import Action, Situation
from buddy.app.actions.key_map import Keymap
from buddy.app.panes.pane import Pane
from buddy.app.reports.formatting import Glyphs
from buddy.app.widgets.look import Cells, look_of


class ActionHost(Protocol):
    """The members of the workbench that key sequences and the palette use."""

    glyphs: Glyphs
    keymap: Keymap

    @property
    def focused(self) -> Widget | None: ...
    @property
    def pane(self) -> Pane: ...

    def situation(self) -> Situation: ...
    async def perform(self, action: Action) -> None: ...
    def update_border_lines(self) -> None: ...
    def pane_commands(self) -> list[tuple[str, str, Callable[[], None]]]: ...
    def set_timer(self, delay: float, callback: Callable[[], None]) -> Timer: ...


# A second key of a sequence, with the action of the sequence.
Continuation = tuple[str, Action]
# How long after the first key of a sequence the second keys are listed. A user who knows the sequence is faster.
WHICH_KEY_SECONDS = 0.4
# The keys that turn the pages of the list, unless the sequence has them as second keys.
PAGE_KEYS = {"down": 1, "pagedown": 1, "right": 1, "up": -1, "pageup": -1, "left": -1}
# The least width of a column of the list, and the least gap between columns, in cells.
_MIN_COLUMN, _MIN_GAP = 20, 1


class WhichKey(Widget):
    """Lists the second keys of a key sequence in columns, over the bottom of the panes.

    A click on a key calls `choose` with its action. `on_resized` is called when the number of pages may have changed,
    because the terminal has another size.
    """

    def __init__(self, choose: Callable[[Action], Awaitable[None]], on_resized: Callable[[], None]) -> None:
        super().__init__(id="which-key")
        self._choose, self._on_resized = choose, on_resized
        self._continuations: list[Continuation] = []
        self._page = 0

    def open(self, prefix: str, continuations: Sequence[Continuation]) -> None:
        """List the second keys after `prefix`, sorted by key."""
        self._continuations = sorted(
            continuations, key=lambda continuation: (continuation[0].lower(), continuation[0].isupper())
        )
        self._page = 0
        self.border_title = prefix
        self._fit()
        self.display = True

    def _fit(self) -> None:
        """Set the height for the size of the terminal, and show the last page if the current one no longer exists."""
        self.styles.height = self._row_count + 1  # one for the border
        self._page = min(self._page, max(0, self.page_count - 1))
        self.refresh()

    def on_resize(self, event: events.Resize) -> None:
        if self.display:
            self._fit()
            self._on_resized()

    def close(self) -> None:
        if self.display:
            self.display = False

    @property
    def page_count(self) -> int:
        """The number of pages of the list."""
        return math.ceil(len(self._continuations) / max(1, self._row_count * self._column_count))

    def turn_page(self, step: int) -> None:
        """Show the page `step` pages after this one, wrapping around at the ends."""
        self._page = (self._page + step) % max(1, self.page_count)
        self.refresh()

    @property
    def page_text(self) -> str:
        """The number of the page and the number of pages, as `1/2`; empty if one page has all keys."""
        return f"{self._page + 1}/{self.page_count}" if self.page_count > 1 else ""

    # ---- the grid ------------------------------------------------------------------------------------------------

    @property
    def _column_count(self) -> int:
        """The number of columns: as many of the width of the longest entry as fit, but at least one."""
        widest = max((len(f"{key} {action.title}") for key, action in self._continuations), default=0)
        return max(1, (self.app.size.width - 1) // max(widest + _MIN_GAP, _MIN_COLUMN))

    @property
    def _column_width(self) -> int:
        return (self.app.size.width - 1) // self._column_count

    @property
    def _row_count(self) -> int:
        """The number of lines of a page: as few as all keys need, but at most half of the screen."""
        needed = math.ceil(len(self._continuations) / self._column_count)
        return max(1, min(needed, self.app.size.height // 2 - 1))

    def _at(self, row: int, column: int) -> Continuation | None:
        """Return the second key in a row and a column of the page, which is filled by columns; `None` without one."""
        if not (0 <= row < self._row_count and 0 <= column < self._column_count):
            return None
        index = self._page * self._row_count * self._column_count + column * self._row_count + row
        return self._continuations[index] if index < len(self._continuations) else None

    def render_line(self, y: int) -> Strip:
        width = self._column_width
        cells: Cells = [(" ", "text")]
        for column in range(self._column_count):
            key, action = self._at(y, column) or ("", None)
            title = action.title if action is not None else ""
            cells += [(key, "key"), (f" {title}"[: width - len(key) - 1].ljust(width - len(key)), "text")]
        return look_of(self.app.theme).strip(cells, self.size.width, "panel")

    async def on_click(self, event: events.Click) -> None:
        offset = event.get_content_offset(self)
        continuation = self._at(offset.y, (offset.x - 1) // self._column_width) if offset is not None else None
        if continuation is not None:
            await self._choose(continuation[1])


class KeySequences:
    """Handles keys before Textual's bindings. After the first key of a sequence, `which_key` lists the second keys.

    `hint` is the text of the status line during a sequence: the second keys, or how to use the list of them.
    """

    def __init__(self, workbench: ActionHost) -> None:
        self._workbench = workbench
        self._prefix = ""
        self._timer: Timer | None = None
        self.hint = ""
        self.which_key = self.make_which_key()

    def make_which_key(self) -> WhichKey:
        """Return a new list of second keys for the screen that is composed next."""
        self.which_key = WhichKey(self._choose, self._show_page)
        return self.which_key

    @property
    def pending(self) -> bool:
        """Whether the first key of a sequence was pressed, and the second one was not yet."""
        return bool(self._prefix)

    async def handle(self, event: events.Key) -> bool:
        """Handle a key of a sequence or of the settings. Returns false for other keys, which are left to bindings."""
        if not isinstance(self._workbench.focused, Pane):
            self.end()
            return False
        if self._prefix:
            await self._handle_second(event)
            return True
        return await self._handle_first(_key_name(event))

    async def _handle_first(self, key: str) -> bool:
        """Handle the first key of a sequence, or a key of the settings. Returns whether it was consumed."""
        workbench, pane = self._workbench, self._workbench.pane.pane_id
        remapped = workbench.keymap.action_for(key, pane)
        if self._workbench.pane.take_key(key):
            return True
        if remapped is not None:
            await workbench.perform(remapped)
            return True
        if actions.sequence_continuations(key, pane):
            self.begin(key)
            return True
        # A default key that the settings have taken from its action does nothing.
        return workbench.keymap.is_unassigned(key, pane)

    def begin(self, key: str) -> None:
        """Handle the first key of a sequence, and show the possible second keys."""
        self._prefix = key
        glyphs = self._workbench.glyphs
        texts = (f"{key}{second} {action.title.lower()}" for second, action in self._enabled_continuations())
        self.hint = f"{key}{glyphs.ellipsis}  " + f" {glyphs.dot} ".join(texts)
        self._timer = self._workbench.set_timer(WHICH_KEY_SECONDS, self._open_list)
        self._workbench.update_border_lines()

    def _enabled_continuations(self) -> list[Continuation]:
        """Return the second keys whose actions are enabled in the pane that has focus."""
        situation = self._workbench.situation()
        continuations = actions.sequence_continuations(self._prefix, self._workbench.pane.pane_id)
        return [(second, action) for second, action in continuations if not action.blocked(situation)]

    def _open_list(self) -> None:
        """List the second keys, unless the second key has been pressed."""
        if not self._prefix or not isinstance(self._workbench.focused, Pane):
            return
        self.which_key.open(self._prefix, self._enabled_continuations())
        self._show_page()

    def _show_page(self) -> None:
        """Show in the hint which page of the list is open, if a sequence was started."""
        if not self._prefix:
            return
        page, glyphs = self.which_key.page_text, self._workbench.glyphs
        more = f"{page} {glyphs.dot} down shows more {glyphs.dot} " if page else ""
        self.hint = f"{self._prefix}{glyphs.ellipsis}  {more}escape closes the list"
        self._workbench.update_border_lines()

    def end(self) -> None:
        """Forget the first key of a sequence, and close the list of the second keys."""
        if not self._prefix:
            return
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._prefix = self.hint = ""
        self.which_key.close()
        self._workbench.update_border_lines()

    async def _handle_second(self, event: events.Key) -> None:
        """Handle the key after the first key of a sequence: perform its action, or turn a page of the list."""
        key = _key_name(event)
        action = dict(actions.sequence_continuations(self._prefix, self._workbench.pane.pane_id)).get(key)
        if action is None and key in PAGE_KEYS and self.which_key.display and self.which_key.page_count > 1:
            self.which_key.turn_page(PAGE_KEYS[key])
            self._show_page()
            return
        await self._choose(action)

    async def _choose(self, action: Action | None) -> None:
        """End the sequence, and perform the action of the second key. `None` means that the key has no action."""
        self.end()
        if action is not None:
            await self._workbench.perform(action)
            self._workbench.update_border_lines()


def _key_name(event: events.Key) -> str:
    """Return a key in the notation of the action registry: its character, or its name if that is not visible."""
    is_visible = event.is_printable and event.character != " "
    return event.character if event.character and is_visible else event.key
