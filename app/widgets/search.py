"""Incremental search in a view: the prompt, the lines that match, their count, and steps from match to match."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from textual.dom import DOMNode

from buddy.app.reports.text.search_hits import (
    NO_PATTERN,
    Pattern,
    SlowPatternError,
    limited_time,
    pattern_error,
    read_pattern,
)
from buddy.app.widgets.look import Cells
from buddy.app.widgets.prompt import Prompt
from buddy.app.widgets.textual_helpers import start_worker

# The maximum processor time of one search, in seconds. A search in this process blocks the screen.
SEARCH_SECONDS = 0.3
# The same for finding the matches to highlight in one line.
LINE_SECONDS = 0.05
TOO_SLOW = "too slow: simplify the pattern, or start with \\V to search for plain text"


class FoundLines(NamedTuple):
    """The numbers of the lines that match, in order. `more` is true if the search stopped at its limit of lines."""

    lines: Sequence[int]
    more: bool = False


class Matches:
    """The pattern of a search, and the numbers of the lines that match it, in order."""

    def __init__(self) -> None:
        self.pattern = NO_PATTERN
        self.lines: list[int] = []
        self._line_set: set[int] = set()
        self._is_incomplete = False
        # Whether the pattern is too slow to show its matches in a line.
        self._is_slow = False

    def __contains__(self, line: int) -> bool:
        return line in self._line_set

    def clear(self, pattern: Pattern | None = None) -> None:
        """Removes the lines, and sets the pattern; `None` keeps the current one."""
        if pattern is not None:
            self.pattern = pattern
        self._is_slow = False
        self.set_lines((), False)

    def set_lines(self, lines: Sequence[int], more: bool) -> None:
        """Sets the lines. `more` is true if the search has stopped at its limit, so there are further lines."""
        self.lines, self._line_set, self._is_incomplete = list(lines), set(lines), more

    def first_from(self, line: int) -> int | None:
        """The first matching line from `line` on, wrapping around at the end."""
        if not self.lines:
            return None
        return self.lines[bisect_left(self.lines, line) % len(self.lines)]

    def last_before(self, line: int) -> int | None:
        """The last matching line before `line`, wrapping around at the start."""
        return self.lines[bisect_left(self.lines, line) - 1] if self.lines else None

    def position_text(self, line: int) -> str:
        """The position of a line among the matches: `2/7`, or `2/7+` if the search stopped at its limit of 7 lines."""
        number = bisect_left(self.lines, line) + 1
        return f"{number}/{len(self.lines)}{'+' if self._is_incomplete else ''}"

    def highlight(self, cells: Cells) -> Cells:
        """Returns `cells` with the role `match` for the characters that match the pattern."""
        text = "".join(part for part, _ in cells)
        offsets_in_matches = self._offsets_in_matches(text)
        if not offsets_in_matches:
            return cells
        highlighted: Cells = []
        offset = 0
        for part, role in cells:
            for character in part:
                new_role = "match" if offset in offsets_in_matches else role
                if highlighted and highlighted[-1][1] == new_role:
                    highlighted[-1] = (highlighted[-1][0] + character, new_role)
                else:
                    highlighted.append((character, new_role))
                offset += 1
        return highlighted

    def _offsets_in_matches(self, text: str) -> set[int]:
        """The offsets of the characters in `text` that are in a match; none if the pattern is too slow."""
        if self._is_slow:
            return set()
        try:
            with limited_time(LINE_SECONDS):
                return {offset for match in self.pattern.compile().finditer(text) for offset in range(*match.span())}
        except SlowPatternError:
            self._is_slow = True
            return set()


class SearchedView(Protocol):
    """A view whose lines can be searched. Every `CursorView` is one.

    Lines are numbered from 0. What a line is depends on the view: a row, a line of a text whose rows are folded, a
    point of a plot.
    """

    def find_lines(self, pattern: Pattern) -> FoundLines | None:
        """Returns the lines that match a valid pattern; `None` if only `request_lines` can find them."""

    async def request_lines(self, pattern: Pattern) -> FoundLines | None:
        """Returns the lines that match, found by the engine; `None` if the request has failed."""

    @property
    def search_line(self) -> int:
        """The line at the cursor."""

    def preview_match(self, line: int) -> None:
        """Shows a line while the user types a pattern, without selecting its node."""

    def go_to_match(self, line: int) -> None:
        """Moves the cursor to a line."""

    def reading_position(self) -> object:
        """Returns the cursor and the scroll position, for `restore_reading_position`."""

    def restore_reading_position(self, position: object) -> None:
        """Restores the cursor and the scroll position that `reading_position` returned."""

    def redraw_matches(self) -> None:
        """Draws again after the matches have changed."""

    def report_search(self, text: str) -> None:
        """Shows the pattern and the count after a step, or why there is no match; "" after the search has ended."""


class ViewSearch:
    """Searches a view. While the user types, the view shows the first match from the cursor on, and the prompt a count.

    `node` is the widget that runs requests to the engine. Escape in the prompt restores the position and the search
    from before the prompt was opened. An empty pattern ends the search.
    """

    def __init__(self, view: SearchedView, node: DOMNode) -> None:
        self._view, self._node = view, node
        self.matches = Matches()
        # The line of the match that was shown last, and the line at the cursor then. A view without a visible cursor
        # counts its first line as the cursor's: near its end, it cannot scroll the match there, so the two differ.
        self._shown_line = self._cursor_line = -1
        # Whether the lines of `matches` are those of its pattern; if not, a search is running.
        self._is_loaded = True
        # The actions to perform when the running search has ended.
        self._after_loading: list[Callable[[], object]] = []
        self._prompt: Prompt | None = None
        # The reading position and the pattern before the prompt was opened.
        self._state_before_prompt: tuple[object, Pattern] = (None, NO_PATTERN)

    @property
    def is_active(self) -> bool:
        """Whether there is a pattern."""
        return bool(self.matches.pattern.source)

    @property
    def shown_line(self) -> int:
        """The line of the match that the view shows; -1 without one, or if the user has moved the cursor from it."""
        has_moved = self._cursor_line != self._view.search_line
        return -1 if has_moved or not self.is_active else self._shown_line

    # ---- the prompt ----------------------------------------------------------------------------------------------

    def ask(self, prompt: Prompt) -> None:
        self._prompt = prompt
        self._state_before_prompt = (self._view.reading_position(), self.matches.pattern)
        prompt.ask("search", self.matches.pattern.typed, self._accept, watcher=self)

    def text_changed(self, text: str) -> None:
        """Shows the first match of what the user has typed so far."""
        self._load(read_pattern(text), self._preview)

    def step_requested(self, by: int) -> None:
        """Shows the next match (the previous one if `by` is negative) while the prompt is open."""
        self._when_loaded(lambda: self._show_in_prompt(self._line_after_step(by)))

    def cancelled(self) -> None:
        """Restores the search and the position from before the prompt was opened."""
        self._prompt = None
        position, pattern = self._state_before_prompt
        self._view.restore_reading_position(position)
        self._load(pattern, self._view.redraw_matches)

    def _preview(self) -> None:
        """Shows the first match from the cursor's position before the prompt was opened."""
        self._view.restore_reading_position(self._state_before_prompt[0])
        self._show_in_prompt(self.matches.first_from(self._view.search_line))

    def _show_in_prompt(self, line: int | None) -> None:
        """Shows a match, and its position among the matches in the prompt."""
        if self._prompt is None:
            return
        if line is not None:
            self._view.preview_match(line)
            self._remember_shown(line)
            self._prompt.show_note(self.matches.position_text(line))
        else:
            self._prompt.show_note("no match" if self.is_active else "")
        self._view.redraw_matches()

    def _accept(self, typed: str) -> None:
        """Goes to the match that is shown or, for another pattern, to the first match from the cursor on."""
        pattern = read_pattern(typed)
        self._prompt = None
        # Not always the first match: the up and down keys show others while the prompt is open.
        shown_line = self.shown_line if pattern == self.matches.pattern and self._is_loaded else -1
        self._view.restore_reading_position(self._state_before_prompt[0])
        if shown_line >= 0:
            self.go_to(shown_line)
        else:
            self.find(pattern, jump=True)

    # ---- searching -----------------------------------------------------------------------------------------------

    def find(self, pattern: Pattern, *, jump: bool) -> None:
        """Searches the view. With `jump`, goes to the first match from the cursor on.

        An empty pattern ends the search.
        """

        def show_result() -> None:
            self._view.redraw_matches()
            if not self.is_active:
                self._view.report_search("")
            elif not self.matches.lines:
                self.go_to(None)
            elif jump:
                self.go_to(self.matches.first_from(self._view.search_line))

        self._load(pattern, show_result)

    def set_matches(self, pattern: Pattern, lines: Sequence[int], more: bool) -> None:
        """Sets the pattern and the matching lines, which another search has found. Later steps go to them."""
        self.matches.clear(pattern)
        self.matches.set_lines(lines, more)
        self._shown_line, self._is_loaded, self._after_loading = -1, True, []

    def repeat(self) -> None:
        """Searches for the same pattern in the text that the view shows now."""
        if self.is_active:
            self.highlight(self.matches.pattern)

    def highlight(self, pattern: Pattern) -> None:
        """Finds and highlights the matches in the text that the view shows now, without going to one."""
        self._is_loaded = False
        self._load(pattern, self._view.redraw_matches)

    def end(self) -> None:
        if self.is_active:
            self.find(NO_PATTERN, jump=False)

    def step(self, by: int) -> None:
        """Goes to the next match, or to the previous one if `by` is negative."""
        if self.is_active:
            self._when_loaded(lambda: self.go_to(self._line_after_step(by)))
        else:
            self._view.report_search("no search yet")

    def _line_after_step(self, by: int) -> int | None:
        """The match after the shown one (before it, if `by` is negative). Without a shown one, starts at the cursor."""
        start = self.shown_line if self.shown_line >= 0 else self._view.search_line
        return self.matches.first_from(start + 1) if by > 0 else self.matches.last_before(start)

    def go_to(self, line: int | None) -> None:
        """Goes to a line with a match, and shows its position among the matches. `None` stands for no match."""
        typed = self.matches.pattern.typed
        if line is None:
            self._view.report_search(f"no match for {typed!r}")
            return
        self._view.go_to_match(line)
        self._remember_shown(line)
        self._view.redraw_matches()
        self._view.report_search(f"/{typed}  {self.matches.position_text(line)}")

    def _remember_shown(self, line: int) -> None:
        self._shown_line, self._cursor_line = line, self._view.search_line

    def _when_loaded(self, action: Callable[[], object]) -> None:
        """Performs an action now, or, if a search is running, when it has ended."""
        if self._is_loaded:
            action()
        else:
            self._after_loading.append(action)

    def _load(self, pattern: Pattern, on_loaded: Callable[[], object]) -> None:
        """Finds the lines that match `pattern`, then calls `on_loaded`, unless another search replaces this one.

        If the pattern is invalid, too slow, or the request fails, shows the reason and does not call `on_loaded`.
        """
        if pattern == self.matches.pattern and self._is_loaded:
            on_loaded()
            return
        self._after_loading = [on_loaded]
        self._shown_line = -1
        self.matches.clear(pattern)
        self._is_loaded = False
        if not pattern.source:
            self._set_found(FoundLines(()))
        elif reason := pattern_error(pattern):
            self._fail(reason)
        else:
            self._find(pattern)

    def _find(self, pattern: Pattern) -> None:
        """Finds the lines of a valid pattern, or requests them from the engine."""
        try:
            with limited_time(SEARCH_SECONDS):
                found = self._view.find_lines(pattern)
        except SlowPatternError:
            self._fail(TOO_SLOW)
            return
        if found is not None:
            self._set_found(found)
        else:
            start_worker(self._node, "search", self._request, pattern)

    async def _request(self, pattern: Pattern) -> None:
        """Requests the lines from the engine. Ignores the answer if another search has started meanwhile."""
        found = await self._view.request_lines(pattern)
        if pattern != self.matches.pattern or self._is_loaded:
            return
        if found is not None:
            self._set_found(found)
        else:
            # `request_lines` has shown the reason, but not in the prompt.
            self._fail("not searched" if self._prompt is not None else "")

    def _set_found(self, found: FoundLines) -> None:
        """Sets the lines of the pattern, and performs the actions that wait for them."""
        self.matches.set_lines(*found)
        self._is_loaded = True
        actions, self._after_loading = self._after_loading, []
        for action in actions:
            action()

    def _fail(self, reason: str) -> None:
        """Removes the pattern, and shows the reason unless it is empty."""
        self.matches.clear(NO_PATTERN)
        self._is_loaded, self._after_loading = True, []
        self._view.redraw_matches()
        report = self._prompt.show_note if self._prompt is not None else self._view.report_search
        if reason:
            report(reason)

    # ---- drawing -------------------------------------------------------------------------------------------------

    def text_replaced(self) -> None:
        """Finds the matches again after the rows of the view have changed. Does not repeat a search by the engine."""
        if not self.is_active or not self._is_loaded:
            return
        try:
            with limited_time(SEARCH_SECONDS):
                found = self._view.find_lines(self.matches.pattern)
        except SlowPatternError:
            self._fail(TOO_SLOW)
            return
        if found is not None:
            if list(found.lines) != self.matches.lines:
                self._shown_line = -1
            self.matches.set_lines(*found)

    def highlighted_cells(self, line: int, cells: Cells) -> Cells:
        """The cells of a line, with the matches highlighted except in the first cell, which is the gutter."""
        return [*cells[:1], *self.matches.highlight(cells[1:])] if line in self.matches else cells
