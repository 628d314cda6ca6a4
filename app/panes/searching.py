"""What of the IR pane is about finding: search in one stage and in all, definitions and uses, jumps there and back."""

from __future__ import annotations

from collections.abc import Sequence

from textual import work

from buddy.app.panes.context import WorkbenchContext
from buddy.app.panes.diffing import Diffing
from buddy.app.panes.navigation import JumpHistory, StagePosition
from buddy.app.panes.values import NAME, all_names, definition_pattern, use_pattern, used_values
from buddy.app.reports.text.patterns import Pattern, case_sensitive_regex, read_pattern
from buddy.app.reports.text.search_hits import StageHits, first_and_last_text, stages_with_hits
from buddy.app.reports.text.wrapping import wrap_segments
from buddy.app.session.bounded import TEXTS, keep_newest
from buddy.app.session.stages import Key, StageRow
from buddy.compiler.protocol import Hits, Stage, Symbol
from buddy.compiler.protocol.regex import PatternError


class Searching(Diffing):
    """Goes to lines: in the stage on the screen, or in any other."""

    def __init__(self, context: WorkbenchContext) -> None:
        super().__init__(context)
        self.key: Key | None = None
        self.jumps = JumpHistory()
        self.searching = False
        self._operand = (-1, 0)
        # The row whose names were gone through, and which of them is the one meant.
        self._picked = (-1, 0)
        self._symbols: dict[str, tuple[Symbol, ...]] = {}

    @property
    def stage(self) -> Stage | None:
        return self.shown.stage if self.shown else None

    def go_place(self, row: StageRow, line: int) -> None:
        """Show line `line` of the stage of `row`."""
        raise NotImplementedError

    # ---- the name under the cursor -------------------------------------------------------------------------------

    @property
    def names(self) -> list[str]:
        """The names on the cursor's line."""
        line = self.line_at(self.cursor)
        return all_names(line.text) if line else []

    @property
    def picked(self) -> str:
        """The name that was picked on the cursor's line, "" for none."""
        row, place = self._picked
        found = self.names if row == self.cursor else []
        return found[place % len(found)] if found else ""

    def mark_value(self) -> None:
        """Underline the name under the cursor wherever it stands on the screen."""
        before, found = self.value, self.names
        self.value = self.picked or (found[0] if found else "")
        if self.value == before:
            return
        for row in self.rows_on_screen():
            line = self.line_at(row)
            if line and any(value and value in line.text for value in (before, self.value)):
                self.refresh_row(row)

    def next_name(self) -> None:
        self._pick(1)

    def previous_name(self) -> None:
        self._pick(-1)

    def _pick(self, by: int) -> None:
        found = self.names
        if not found:
            self.say("no name on this line")
            return
        place = found.index(self.value) + by if self.value in found else 0
        self._picked = (self.cursor, place % len(found))
        self.mark_value()
        self.say(f"{self.value}: {self._picked[1] + 1} of {len(found)} names on this line")

    def pick_at(self, x: int, y: int) -> None:
        """Pick the name at column `x` and line `y` of the pane, which is on the cursor's row."""
        line, spot = self.line_at(self.cursor), self.spot_at(y)
        if line is None or spot is None or self.document.diff is not None:
            return
        text, room = self.drawn_text(line), self.width - self.margin
        place = x - self.margin + self.left
        if self.wrapped:
            parts = wrap_segments(text, room)
            piece = parts[min(spot.line, len(parts) - 1)]
            place = piece.first + max(0, place - piece.indent)
        hit = next((found[0] for found in NAME.finditer(text) if found.start() <= place < found.end()), "")
        if hit in self.names:
            self._picked = (self.cursor, self.names.index(hit))
            self.mark_value()

    # ---- search in this stage ------------------------------------------------------------------------------------

    def ask_search(self) -> None:
        self.context.dialogs.ask(
            "search", self.matches.pattern.typed, lambda text: self.find(read_pattern(text), jump=True)
        )

    @work(exclusive=True, group="search")
    async def find(self, pattern: Pattern, *, jump: bool = True) -> None:
        """Search the stage; an empty pattern ends the search."""
        self.matches.clear(pattern)
        if pattern.source and not await self._collect(pattern):
            return
        self.refresh()
        if not pattern.source:
            return
        if not self.matches.lines:
            self.say(f"{pattern.typed!r} is not in this stage")
        elif jump:
            self._to_match(self.matches.at_or_after(self.line_number))

    async def _collect(self, pattern: Pattern) -> bool:
        found = await self.context.queries.search(self.document.text, pattern) if self._is_pattern(pattern) else None
        if found is not None:
            self.matches.take(found.lines, found.more)
        return found is not None

    def _is_pattern(self, pattern: Pattern) -> bool:
        try:
            pattern.compiled()
        except PatternError as error:
            self.say(f"that is not a regular expression: {error.reason}; \\V before it: plain text")
            return False
        return True

    def next_match(self) -> None:
        if self.document.diff is not None and not self.matches.lines:
            self.next_hunk()
        else:
            self._to_match(self.matches.at_or_after(self.line_number + 1))

    def previous_match(self) -> None:
        if self.document.diff is not None and not self.matches.lines:
            self.previous_hunk()
        else:
            self._to_match(self.matches.before(self.line_number))

    def _to_match(self, line: int | None) -> None:
        if line is None:
            self.say(f"{self.matches.pattern.typed!r} is not in this stage")
            return
        self.go_to(line)
        self.say(self.matches.told(line))

    def search_value(self) -> None:
        if self.value:
            self.find(case_sensitive_regex(use_pattern(self.value)), jump=False)
        else:
            self.say("no name on this line")

    # ---- search in all stages ------------------------------------------------------------------------------------

    def ask_search_all(self) -> None:
        self.context.dialogs.ask(
            "search all stages", self.matches.pattern.typed, lambda text: self.find_all(read_pattern(text))
        )

    def ask_first(self) -> None:
        self.context.dialogs.ask(
            "first stage with", self.matches.pattern.typed, lambda text: self.find_first(read_pattern(text))
        )

    @work(exclusive=True, group="search")
    async def find_all(self, pattern: Pattern) -> None:
        """List the stages in which something is found, and go to the line that is chosen."""
        rows, listed = await self._appearances(pattern)
        if listed:
            self.list_results(pattern.typed, first_and_last_text(rows, listed), listed)

    @work(exclusive=True, group="search")
    async def find_first(self, pattern: Pattern) -> None:
        """Go to the first stage in which something is found; the pattern stays searched for."""
        rows, listed = await self._appearances(pattern)
        if listed:
            self.matches.clear(pattern)
            self.context.layout.show_pane("ir")
            self.go_from_here(StagePosition(listed[0].row.key, listed[0].hits.lines[0]))
            self.say(f"{pattern.typed}: {first_and_last_text(rows, listed)}")

    async def _appearances(self, pattern: Pattern) -> tuple[Sequence[StageRow], list[StageHits]]:
        if not pattern.source or not self._is_pattern(pattern):
            return (), []
        rows = list(self.rows)
        self.searching = True
        self.say(f"searching {len(rows)} stages{self.glyphs.ellipsis} ctrl+c cancels")
        try:
            found = await self.context.queries.search_each([row.stage.text for row in rows], pattern)
        finally:
            self.searching = False
        listed = stages_with_hits(rows, found.hits) if found is not None else []
        if found is not None:
            self.say("" if listed else f"{pattern.typed!r} is in no stage")
        if listed:
            self.matches.clear(pattern)
        return rows, listed

    def list_results(self, title: str, told: str, listed: Sequence[StageHits]) -> None:
        """Open the list of what was found; the line that is chosen is gone to."""
        from buddy.app.screens.results import ResultsScreen

        self.app.push_screen(ResultsScreen(title, told, listed), self._chosen)

    def _chosen(self, place: StagePosition | None) -> None:
        if place is not None:
            self.context.layout.show_pane("ir")
            self.go_from_here(place)
            if place.key == self.key and self.matches.pattern.source:
                self.find(self.matches.pattern, jump=False)

    # ---- definitions and uses ------------------------------------------------------------------------------------

    async def symbols_of(self, stage: Stage) -> tuple[Symbol, ...]:
        """The functions, globals and graphs of a stage."""
        if stage.text not in self._symbols:
            self._symbols[stage.text] = await self.context.queries.symbols(stage.text, stage.language)
            keep_newest(self._symbols, TEXTS)
        return self._symbols[stage.text]

    async def _function_at(self, line: int) -> range:
        """The lines of the function that `line` is in; all lines outside of functions."""
        found = await self.symbols_of(self.stage) if self.stage else ()
        around = next((symbol for symbol in found if symbol.first <= line <= symbol.last), None)
        return range(around.first, around.last + 1) if around else range(self.document.lines)

    @work(exclusive=True, group="search")
    async def go_definition(self) -> None:
        """To where the picked name is defined, or an operand of the line; asked again, the next operand."""
        name = self.picked or self._next_operand()
        if not name:
            self.say("no operand on this line")
            return
        text, line = self.document.text, self.line_number
        found = await self.context.queries.search(text, case_sensitive_regex(definition_pattern(name)))
        if found is None:
            return
        place = _definition(found.lines, name, line, await self._function_at(line))
        if self.document.text != text:
            return
        if place is None:
            self.say(f"{name} is not defined in this stage" if name[0] in "@#!" else f"{name} is not defined above")
        else:
            self.go_to(place)

    def _next_operand(self) -> str:
        """An operand of the cursor's line: on the same line, another one each time."""
        line = self.line_at(self.cursor)
        operands = (used_values(line.text) or all_names(line.text)) if line else []
        if not operands:
            return ""
        origin, turn = self._operand
        turn = (turn + 1) % len(operands) if origin == self.cursor else 0
        self._operand = (self.cursor, turn)
        return operands[turn]

    @work(exclusive=True, group="search")
    async def go_uses(self) -> None:
        """To the next use of the name under the cursor; `n` goes on."""
        name, line = self.value, self.line_number
        hits = await self._uses(name, line)
        if hits is None:
            return
        below = [each for each in hits.lines if each > line]
        self.matches.clear(case_sensitive_regex(use_pattern(name)))
        self.matches.take(below, hits.more)
        self.refresh()
        if below:
            self._to_match(below[0])
        else:
            self.say(f"{name} is not used below")

    @work(exclusive=True, group="search")
    async def list_uses(self) -> None:
        """List the lines of the function that hold the name under the cursor."""
        name, row = self.value, self.shown
        hits = await self._uses(name, self.line_number)
        if hits is not None and row is not None:
            self.matches.clear(case_sensitive_regex(use_pattern(name)))
            self.list_results(name, f"in {len(hits.lines):,} lines", [StageHits(row, hits)])

    async def _uses(self, name: str, line: int) -> Hits | None:
        """Where `name`, of line `line`, stands: a value or label, in its function; others, in the whole stage.

        The cursor may be elsewhere by the time the engine has answered, and another stage be shown, where these lines
        mean nothing: `None`.
        """
        if not name:
            self.say("no name on this line")
            return None
        text = self.document.text
        found = await self.context.queries.search_each([text], case_sensitive_regex(use_pattern(name)))
        if found is None or not found.hits:
            return None
        hits = found.hits[0]
        within = await self._function_at(line) if name[0] in "%^" else range(self.document.lines)
        if self.document.text != text:
            return None
        kept = [place for place, each in enumerate(hits.lines) if each in within]
        excerpts = [hits.excerpts[place] for place in kept if place < len(hits.excerpts)]
        return Hits(hits.text, tuple(hits.lines[place] for place in kept), tuple(excerpts), hits.more)

    # ---- going there and back ------------------------------------------------------------------------------------

    @property
    def place(self) -> StagePosition | None:
        """Where the cursor is."""
        return StagePosition(self.key, self.line_number) if self.key is not None else None

    def go_to(self, line: int) -> None:
        """Jump to a line of this stage, remembering where the cursor was."""
        if self.place is not None:
            self.jumps.leave(self.place)
        self.center(self.row_of(line))

    def go_from_here(self, place: StagePosition) -> None:
        """Jump to a line of any stage, remembering where the cursor was."""
        if self.place is not None:
            self.jumps.leave(self.place)
        self._show(place)

    def _show(self, place: StagePosition) -> None:
        row = next((row for row in self.rows if row.key == place.key), None)
        if row is None:
            self.say(f"there is no stage {place.key[0]} any more")
        elif place.key == self.key and self.stage is not None and self.document.text == self.stage.text:
            self.center(self.row_of(place.line))
        else:
            self.go_place(row, place.line)

    def go_back(self) -> None:
        self._travel(self.jumps.back(self.place) if self.place is not None else None)

    def go_forward(self) -> None:
        self._travel(self.jumps.forward(self.place) if self.place is not None else None)

    def _travel(self, place: StagePosition | None) -> None:
        if place is None:
            self.say("no further jumps")
        else:
            self._show(place)

    def ask_line(self) -> None:
        self.context.dialogs.ask("line", "", self._go_to_number)

    def _go_to_number(self, text: str) -> None:
        number = text.strip().replace(",", "")
        if number.isdecimal():
            self.go_to(max(0, min(int(number[:9]), self.document.lines) - 1))
        elif number:
            self.say(f"{text.strip()!r} is not a line number")


def _definition(lines: Sequence[int], name: str, here: int, function: range) -> int | None:
    """The line among `lines` that defines `name`: the last above in the function, else the first one there is."""
    if name[0] in "@#!":
        return lines[0] if lines else None
    inside = [line for line in lines if line in function]
    above = [line for line in inside if line < here]
    if above:
        return above[-1]
    # Blocks and labels may stand below what branches to them.
    return next((line for line in inside if line > here), None) if name[0] != "%" or _labels_only(name) else None


def _labels_only(name: str) -> bool:
    """Whether a value's name may be that of a block, as LLVM's numbers are."""
    return name[1:].isdecimal()
