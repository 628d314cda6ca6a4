"""From keys and the command palette to methods: finds the method of each action, and handles key sequences."""

from __future__ import annotations

import math
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, Protocol, cast

from textual import events
from textual.binding import Binding, BindingType
from textual.command import CommandPalette, DiscoveryHit, Hit, Hits, Provider
from textual.strip import Strip
from textual.timer import Timer
from textual.widget import Widget

from buddy.app import actions
from buddy.app.actions import ACTIONS, PANE_TITLES, Action, Situation
from buddy.app.actions import Pane as PaneId
from buddy.app.actions.key_map import Keymap
from buddy.app.panes.pane import Pane
from buddy.app.reports.formatting import Glyphs
from buddy.app.widgets.look import Cells, look_of
from buddy.compiler.protocol.errors import BuddyError

# ---- methods of actions ----------------------------------------------------------------------------------------------


Method = Callable[..., object]


class DispatchError(BuddyError):
    """Some actions do not have exactly one method. The message names these actions."""


def methods_of_actions(
    actions: Iterable[Action],
    targets: Iterable[tuple[str, object]],
    panes: Mapping[PaneId, object],
    focused_pane: Callable[[], PaneId],
) -> dict[str, Method]:
    """Returns the method of each action, by the id of the action.

    `Action.target` is a name in `targets`, the id of a pane, or `pane`, which stands for the pane that has focus:
    `focused_pane` returns its id. A name may have several objects in `targets`, of which one has the method. Raises
    `DispatchError` if two actions have the same id, or if an action does not have exactly one method; an action with
    the target `pane` needs its method in every pane.
    """
    named_objects = [*targets, *panes.items()]
    methods: dict[str, Method] = {}
    problems: list[str] = []
    for action in actions:
        if action.target == "pane":
            pane_method = FocusedPaneMethod(action.method, panes, focused_pane)
            candidates: list[Method] = [pane_method] if pane_method.is_in_all_panes else []
        else:
            attributes = [
                getattr(target, action.method, None) for name, target in named_objects if name == action.target
            ]
            candidates = [attribute for attribute in attributes if callable(attribute)]
        if len(candidates) == 1 and action.id not in methods:
            methods[action.id] = candidates[0]
        else:
            problems.append(f"{action.id} ({action.handler})")
    if problems:
        raise DispatchError(f"these actions do not have an id of their own and one method: {', '.join(problems)}")
    return methods


class FocusedPaneMethod:
    """Calls the method called `name` of the pane that has focus."""

    def __init__(self, name: str, panes: Mapping[PaneId, object], focused_pane: Callable[[], PaneId]) -> None:
        self._methods: dict[PaneId, Any] = {pane_id: getattr(pane, name, None) for pane_id, pane in panes.items()}
        self._focused_pane = focused_pane

    @property
    def is_in_all_panes(self) -> bool:
        """Whether each pane has the method."""
        return all(map(callable, self._methods.values()))

    def __call__(self, *arguments: object) -> object:
        return self._methods[self._focused_pane()](*arguments)


# ---- key sequences ---------------------------------------------------------------------------------------------------


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
_MIN_COLUMN_WIDTH, _MIN_GAP = 20, 1


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
        """Lists the second keys after `prefix`, sorted by key."""
        self._continuations = sorted(
            continuations, key=lambda continuation: (continuation[0].lower(), continuation[0].isupper())
        )
        self._page = 0
        self.border_title = prefix
        self._fit()
        self.display = True

    def _fit(self) -> None:
        """Sets the height for the size of the terminal, and shows the last page if the current one no longer exists."""
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
        """Shows the page `step` pages after this one, wrapping around at the ends."""
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
        return max(1, (self.app.size.width - 1) // max(widest + _MIN_GAP, _MIN_COLUMN_WIDTH))

    @property
    def _column_width(self) -> int:
        return (self.app.size.width - 1) // self._column_count

    @property
    def _row_count(self) -> int:
        """The number of lines of a page: as few as all keys need, but at most half of the screen."""
        needed = math.ceil(len(self._continuations) / self._column_count)
        return max(1, min(needed, self.app.size.height // 2 - 1))

    def _at(self, row: int, column: int) -> Continuation | None:
        """Returns the second key in a row and a column of the page, which is filled by columns; `None` without one."""
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
        """Returns a new list of second keys for the screen that is composed next."""
        self.which_key = WhichKey(self._choose, self._show_page)
        return self.which_key

    @property
    def pending(self) -> bool:
        """Whether the first key of a sequence was pressed, and the second one was not yet."""
        return bool(self._prefix)

    async def handle(self, event: events.Key) -> bool:
        """Handles a key of a sequence or of the settings. Returns false for other keys, which are left to bindings."""
        if not isinstance(self._workbench.focused, Pane):
            self.end()
            return False
        if self._prefix:
            await self._handle_second(event)
            return True
        return await self._handle_first(_key_name(event))

    async def _handle_first(self, key: str) -> bool:
        """Handles the first key of a sequence, or a key of the settings. Returns whether it was consumed."""
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
        """Handles the first key of a sequence, and shows the possible second keys."""
        self._prefix = key
        glyphs = self._workbench.glyphs
        texts = (f"{key}{second} {action.title.lower()}" for second, action in self._enabled_continuations())
        self.hint = f"{key}{glyphs.ellipsis}  " + f" {glyphs.dot} ".join(texts)
        self._timer = self._workbench.set_timer(WHICH_KEY_SECONDS, self._open_list)
        self._workbench.update_border_lines()

    def _enabled_continuations(self) -> list[Continuation]:
        """Returns the second keys whose actions are enabled in the pane that has focus."""
        situation = self._workbench.situation()
        continuations = actions.sequence_continuations(self._prefix, self._workbench.pane.pane_id)
        return [(second, action) for second, action in continuations if not action.blocked(situation)]

    def _open_list(self) -> None:
        """Lists the second keys, unless the second key has been pressed."""
        if not self._prefix or not isinstance(self._workbench.focused, Pane):
            return
        self.which_key.open(self._prefix, self._enabled_continuations())
        self._show_page()

    def _show_page(self) -> None:
        """Shows in the hint which page of the list is open, if a sequence was started."""
        if not self._prefix:
            return
        page, glyphs = self.which_key.page_text, self._workbench.glyphs
        more = f"{page} {glyphs.dot} down shows more {glyphs.dot} " if page else ""
        self.hint = f"{self._prefix}{glyphs.ellipsis}  {more}escape closes the list"
        self._workbench.update_border_lines()

    def end(self) -> None:
        """Forgets the first key of a sequence, and closes the list of the second keys."""
        if not self._prefix:
            return
        if self._timer is not None:
            self._timer.stop()
            self._timer = None
        self._prefix = self.hint = ""
        self.which_key.close()
        self._workbench.update_border_lines()

    async def _handle_second(self, event: events.Key) -> None:
        """Handles the key after the first key of a sequence: performs its action, or turns a page of the list."""
        key = _key_name(event)
        action = dict(actions.sequence_continuations(self._prefix, self._workbench.pane.pane_id)).get(key)
        if action is None and key in PAGE_KEYS and self.which_key.display and self.which_key.page_count > 1:
            self.which_key.turn_page(PAGE_KEYS[key])
            self._show_page()
            return
        await self._choose(action)

    async def _choose(self, action: Action | None) -> None:
        """Ends the sequence, and performs the action of the second key. `None` means that the key has no action."""
        self.end()
        if action is not None:
            await self._workbench.perform(action)
            self._workbench.update_border_lines()


def _key_name(event: events.Key) -> str:
    """Returns a key in the notation of the action registry: its character, or its name if that is not visible."""
    is_visible = event.is_printable and event.character != " "
    return event.character if event.character and is_visible else event.key


# ---- the command palette ---------------------------------------------------------------------------------------------


class Palette(CommandPalette):
    """The command palette, which ctrl+c closes like every other screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "escape", show=False, priority=True)]


# The palette lists neither itself nor the action that needs the number of a phase.
UNLISTED_ACTIONS = {"palette", "phase.number"}


class ActionCommands(Provider):
    """Provides the entries of the palette: enabled actions, disabled ones with the reason, and panes of plug-ins."""

    @property
    def _workbench(self) -> ActionHost:
        return cast(ActionHost, self.app)

    async def discover(self) -> Hits:
        for action in self._sorted_actions():
            yield DiscoveryHit(
                _command_title(action), partial(self._workbench.perform, action), help=self._help(action)
            )
        for title, text, show in self._workbench.pane_commands():
            yield DiscoveryHit(title, show, help=text)

    async def search(self, query: str) -> Hits:
        matcher = self.matcher(query)
        for action in self._sorted_actions():
            title = _command_title(action)
            score = command_score(action, query) or matcher.match(title) / _FUZZY_DIVISOR
            if score > 0:
                command = partial(self._workbench.perform, action)
                yield Hit(score, matcher.highlight(title), command, text=title, help=self._help(action))
        for title, text, show in self._workbench.pane_commands():
            score = _words_score(query, (title, "", text)) or matcher.match(title) / _FUZZY_DIVISOR
            if score > 0:
                yield Hit(score, matcher.highlight(title), show, text=title, help=text)

    def _sorted_actions(self) -> list[Action]:
        """Returns the listed actions, the enabled ones first."""
        situation = self._workbench.situation()
        return sorted(filter(is_listed, ACTIONS), key=lambda action: bool(action.blocked(situation)))

    def _help(self, action: Action) -> str:
        """Returns the text below an entry: what the action does, its keys, and why it is disabled."""
        reason = action.blocked(self._workbench.situation())
        keys = f"  ({', '.join(action.keys)})" if action.keys else ""
        return f"{action.tooltip}{keys}" + (f". Disabled: {reason}" if reason else "")


def is_listed(action: Action) -> bool:
    """Whether the palette lists an action. Cursor movements are not listed either."""
    return action.id not in UNLISTED_ACTIONS and not action.id.startswith("move.")


# Textual's scores for similar titles are below 1000. Divided by this, they are below every score of matching words.
_FUZZY_DIVISOR = 1000.0


def command_score(action: Action, query: str) -> float:
    """Returns how well a query matches an action: 5 if it is a key of the action, otherwise as `_words_score`."""
    query = query.strip()
    if query and any(query in (key, key.replace(" ", "")) for key in action.keys):
        return 5.0
    return _words_score(query, (_command_title(action), " ".join(action.synonyms), action.tooltip))


def _words_score(query: str, texts: tuple[str, str, str]) -> float:
    """Returns how well the words of a query match an entry, from 0 (a word matches nothing) to 4.

    `texts` are the title, the synonyms and the description. A word of the query matches a word that starts with it: in
    the title with 4 points, in the synonyms with 3, in the description with 2. The score is the mean over the words of
    the query, of which each has the points of its best match.
    """
    scored_words = [(4.0 - index, word) for index, text in enumerate(texts) for word in _words(text)]
    best_scores: list[float] = []
    for query_word in dict.fromkeys(_words(query)):
        scores = [score for score, word in scored_words if word.startswith(query_word)]
        if not scores:
            return 0.0
        best_scores.append(max(scores))
    return sum(best_scores) / len(best_scores) if best_scores else 0.0


def _words(text: str) -> list[str]:
    """Returns the words of a text in lower case, without punctuation."""
    return re.findall(r"[^\s,:;()`]+", text.lower())


def _command_title(action: Action) -> str:
    """Returns the title of an action in the palette, which starts with the pane that the action is limited to."""
    pane = PANE_TITLES.get(action.pane)
    return f"{pane}: {action.title}" if pane else action.title
